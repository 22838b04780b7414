// SPDX-License-Identifier: MIT
// The parts that epilogues of products on tensor cores are made of (chain.cuh), and the epilogues
// that store sums from the registers in which they are. Each of the latter is a struct whose
// storer<T>(unit, extent) returns a function of a place and of the two sums that begin there.
#pragma once

#include "core/math/activation.h"
#include "linear/cuda/chain.cuh"
#include "linear/problem.h"
#include "pointwise/dropout_numbers.cuh"

namespace transformer_kernels::cuda {

// A bias of T or of float32.
struct BiasVector {
  const void* data;  // may be null
  bool is_wide;      // float32

  template <class T>
  __device__ __forceinline__ float at(int col) const {
    if (data == nullptr) return kNothing;
    return is_wide ? static_cast<const float*>(data)[col] : widen(static_cast<const T*>(data)[col]);
  }

  template <class T>
  __device__ __forceinline__ void two(int col, float (&v)[2]) const {
    if (data == nullptr) {
      v[0] = v[1] = kNothing;
    } else if (is_wide) {
      const float2 two = __ldg(static_cast<const float2*>(data) + col / 2);
      v[0] = two.x;
      v[1] = two.y;
    } else {
      widen_word<T>(__ldg(static_cast<const std::uint32_t*>(data) + col / 2), v);
    }
  }

  // Brings a tile's columns to L1. A lane takes a sector of 32 bytes. It is a load, as prefetches
  // to L1 bring nothing there.
  __device__ __forceinline__ void touch(int col, int cols, int lane) const {
    if (data == nullptr) return;
    const int bytes = is_wide ? 4 : 2;
    const int at = min(col + lane * 32 / bytes, cols - 2);
    [[maybe_unused]] std::uint32_t unused;
    asm volatile("ld.global.nc.u32 %0, [%1];"
                 : "=r"(unused)
                 : "l"(static_cast<const char*>(data) + at * bytes));
  }

 private:
  static constexpr float kNothing = -0.0f;  // changes nothing that it is added to
};

namespace epilogues {

// v += bias, of kCount values from kFirst on.
template <int kCount = 1, int kFirst = 0>
struct AddBias {
  BiasVector bias[kCount];

  struct Columns {
    float v[kCount][ChunkColumns::kEights][2];
  };
  template <class T>
  __device__ __forceinline__ Columns columns(const ChunkColumns& at) const {
    Columns columns;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const BiasVector own = bias[i];  // a copy: `this` would be read again for every two columns
#pragma unroll
      for (int eight = 0; eight < ChunkColumns::kEights; ++eight) {
        own.template two<T>(at.two(eight), columns.v[i][eight]);
      }
    }
    return columns;
  }
  template <class T>
  __device__ __forceinline__ void touch(int col, int cols, int lane) const {
    for (const BiasVector& each : bias) each.touch(col, cols, lane);
  }
  template <class F>
  __device__ __forceinline__ void apply(const F& f, const Columns& columns) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int e = 0; e < 8; ++e) f.v[kFirst + i][e] += columns.v[i][f.eight(e)][e % 2];
    }
  }
};

// Rounds the first kCount values to T.
template <int kCount = 1>
struct Round {
  template <class F>
  __device__ __forceinline__ void apply(const F& f) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) f.round(i);
  }
};

// Rounds the first kCount values to T, and keeps them.
template <int kCount = 1>
struct Keep {
  static constexpr int kKeeps = kCount;

  template <class F>
  __device__ __forceinline__ void apply(const F& f) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      f.keep(i, f.v[i]);
      f.round(i);
    }
  }
};

// f(v).
template <class Activation>
struct Activate {
  template <class F>
  __device__ __forceinline__ void apply(const F& f) const {
#pragma unroll
    for (float& v : f.v[0]) v = Activation::value(math::Fast{}, v);
  }
};

// f(gate) up, of two products.
template <class Activation>
struct Gate {
  template <class F>
  __device__ __forceinline__ void apply(const F& f) const {
    static_assert(F::kProducts == 2);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      f.v[0][e] = Activation::value(math::Fast{}, f.v[0][e]) * f.v[1][e];
    }
  }
};

// v f'(z), and f(z) is kept: z is read.
template <class Activation>
struct Slope {
  static constexpr int kReads = 1;
  static constexpr int kKeeps = 1;
  static constexpr bool kKeepsOnDemand = true;

  template <class F>
  __device__ __forceinline__ void apply(const F& f) const {
    float value[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const auto both = Activation::value_and_slope(math::Fast{}, f.read[0][e]);
      value[e] = both.value;
      f.v[0][e] *= both.slope;
    }
    f.keep(0, value);
  }
};

// v f'(gate) up and v f(gate), the gradients of gate and up, and f(gate) up is kept: both are read.
template <class Activation>
struct GateSlope {
  static constexpr int kReads = 2;
  static constexpr int kKeeps = 1;
  static constexpr bool kKeepsOnDemand = true;
  static constexpr int kResults = 2;

  template <class F>
  __device__ __forceinline__ void apply(const F& f) const {
    float product[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float sum = f.v[0][e];
      const float up = f.read[1][e];
      const auto both = Activation::value_and_slope(math::Fast{}, f.read[0][e]);
      product[e] = both.value * up;
      f.v[0][e] = sum * up * both.slope;
      f.v[1][e] = sum * both.value;
    }
    f.keep(0, product);
  }
};

// v times the factor of its row, where there are factors.
struct ScaleRows {
  const float* factors;

  template <class F>
  __device__ __forceinline__ void apply(const F& f) const {
    if (factors == nullptr) return;
    const float upper = __ldg(factors + min(f.row(0), f.extent.rows - 1));
    const float lower = __ldg(factors + min(f.row(2), f.extent.rows - 1));
#pragma unroll
    for (int e = 0; e < 8; ++e) f.v[0][e] *= e / 2 % 2 == 0 ? upper : lower;
  }
};

// Dropout of v, with the numbers that element row * cols + col has in the pointwise ops. The seed
// is read again for each fragment: it would take registers.
struct Dropout {
  DropoutDraw draw;

  // Four lanes share four groups of eight elements, two in each of their rows. Each draws one group
  // and gets its own two numbers of every group.
  template <class F>
  __device__ __forceinline__ void apply(const F& f) const {
    const int lane = f.own.lane;
    const std::int64_t row = f.origin.row + lane / 4 + 8 * (lane % 2);
    const int col = f.origin.col + 8 * (lane / 2 % 2);
    uint4 numbers = DropoutNumbers(draw).aligned(row * f.extent.cols + col);
    swap_halves(lane & 1, 1, numbers.x, numbers.y);
    swap_halves(lane & 1, 1, numbers.z, numbers.w);
    swap_halves(lane & 2, 2, numbers.x, numbers.z);
    swap_halves(lane & 2, 2, numbers.y, numbers.w);
    drop<0>(numbers, draw.below, static_cast<float>(draw.scale), f.v[0]);
  }

 private:
  // The lower of two lanes gives its second word for the other's first.
  static __device__ __forceinline__ void swap_halves(bool is_upper, int distance,
                                                     std::uint32_t& first, std::uint32_t& second) {
    const std::uint32_t other = __shfl_xor_sync(~0u, is_upper ? first : second, distance);
    if (is_upper) {
      first = other;
    } else {
      second = other;
    }
  }
};

// v += residual, which is read.
struct AddResidual {
  static constexpr int kReads = 1;

  template <class F>
  __device__ __forceinline__ void apply(const F& f) const {
#pragma unroll
    for (int e = 0; e < 8; ++e) f.v[0][e] += f.read[0][e];
  }
};

// Sums of the columns of the first result, as rounded: ColumnTotals says how they lie.
struct SumColumns {
  static constexpr bool kSumsColumns = true;

  float* partial;  // null where they are not wanted

  template <class F>
  __device__ __forceinline__ void apply(const F&) const {}
};

// A part's sums, as they are, in a matrix of its own.
struct StorePart {
  float* partial;

  template <class T>
  __device__ __forceinline__ auto storer(const GemmUnit& unit, GemmExtent extent) const {
    float* const matrix = partial + std::int64_t{unit.part} * extent.rows * extent.cols;
    return [=](MatrixOrigin at, const float* sums) {
      float* const to = matrix + std::int64_t{at.row} * extent.cols + at.col;
      *reinterpret_cast<float2*>(to) = {sums[0], sums[1]};
    };
  }
};

// sum + bias where rows of out have any alignment, so that they do not leave in packs.
struct StoreUneven {
  BiasVector bias;
  Matrix out;

  template <class T>
  __device__ __forceinline__ auto storer(const GemmUnit&, GemmExtent extent) const {
    return [=, this](MatrixOrigin at, const float* sums) {
      T* const to = static_cast<T*>(out.data) + at.row * out.row_step + at.col;
      to[0] = narrow<T>(sums[0] + bias.at<T>(at.col));
      if (at.col + 1 < extent.cols) to[1] = narrow<T>(sums[1] + bias.at<T>(at.col + 1));
    };
  }
};

// sum + bias, in T or in float32, or added to what is there; rows of out have any alignment.
struct StoreSums {
  BiasVector bias;
  Matrix out;
  bool is_wide;      // float32
  bool in_pairs;     // two sums of out lie at a multiple of their size
  bool accumulates;  // without a bias

  template <class T>
  __device__ __forceinline__ auto storer(const GemmUnit&, GemmExtent extent) const {
    return [=, this](MatrixOrigin at, const float* sums) {
      const bool has_two = at.col + 1 < extent.cols;
      const float v[2] = {sums[0] + bias.at<T>(at.col),
                          has_two ? sums[1] + bias.at<T>(at.col + 1) : 0};
      if (is_wide) {
        store<float>(at, v, has_two);
      } else {
        store<T>(at, v, has_two);
      }
    };
  }

 private:
  template <class Out>
  struct alignas(2 * sizeof(Out)) Pair {
    Out of[2];
  };

  template <class Out>
  __device__ __forceinline__ void store(MatrixOrigin at, const float (&v)[2], bool has_two) const {
    Out* const to = static_cast<Out*>(out.data) + at.row * out.row_step + at.col;
    const auto sum = [&](float own, Out old) {
      return narrow<Out>(accumulates ? widen(old) + own : own);
    };
    if (in_pairs && has_two) {
      Pair<Out>& pair = *reinterpret_cast<Pair<Out>*>(to);
      const Pair<Out> old = accumulates ? pair : Pair<Out>{};
      pair = {sum(v[0], old.of[0]), sum(v[1], old.of[1])};
    } else {
      to[0] = sum(v[0], accumulates ? to[0] : Out{});
      if (has_two) to[1] = sum(v[1], accumulates ? to[1] : Out{});
    }
  }
};

}  // namespace epilogues
}  // namespace transformer_kernels::cuda
