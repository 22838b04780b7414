// SPDX-License-Identifier: MIT
// The engine of small problems, backward pass of the norms on CUDA, in one kernel: the first CTAs
// take a row each and write dx, the others take some columns each and write dweight and dbias over
// all rows. Operands that both read come from memory once and from the L2 cache the second time; no
// CTA waits for another. See core/cuda/direct_row.cuh.
#pragma once

#include "core/cuda/direct_row.cuh"
#include "norm/kernels.h"

namespace transformer_kernels::cuda {

// The arguments that the kernel needs of a problem, and no more: a launch waits for its parameters.
struct DirectNormBackward {
  Rows x;
  Rows dy;
  Rows dsum;
  Rows dx;
  const float* mean;
  const float* rstd;
  const void* weight;  // as the gradients: null where there is none
  void* dweight;
  void* dbias;
  int rows;
  int cols;
  int packs;  // of a row
  bool zero_centered_weight;
};

struct DirectGradientSums {
  float g;   // sum of dy * w
  float gx;  // sum of dy * w * xhat
};

// dx of the row blockIdx.x.
template <class T, class W, bool kCenter, class Plan>
__device__ __forceinline__ void direct_row_gradient(const DirectNormBackward& p) {
  using RowT = DirectRow<T, Plan>;
  using Raw = typename RowT::Raw;
  constexpr int kSize = RowT::kSize;
  constexpr int kPacks = RowT::kPacks;
  constexpr int kWarps = Plan::plan.warps();
  __shared__ DirectGradientSums scratch[kWarps];

  const RowT row{p.packs};
  const auto at = [](const Rows& m) { return static_cast<T*>(m.data) + blockIdx.x * m.stride; };
  Raw x[kPacks], dy[kPacks], dsum[kPacks];
  ParameterPack<W, kSize> weight[kPacks];
  row.load(at(p.x), x);
  row.load(at(p.dy), dy);
  if (p.weight != nullptr) row.load(static_cast<const W*>(p.weight), weight);
  const float mean = kCenter ? p.mean[blockIdx.x] : 0.0f;
  const float rstd = p.rstd[blockIdx.x];
  if (p.dsum.data != nullptr) row.load(at(p.dsum), dsum);

  // g = dy * w and xhat of a pack; g is 0 where the row has none.
  const auto values = [&](int slot, auto&& unpack, float* g, float* xhat) {
    unpack(x[slot], xhat);
    unpack(dy[slot], g);
    if (p.weight != nullptr) {
      const float offset = p.zero_centered_weight ? 1.0f : 0.0f;
      float w[kSize];
      unpack(weight[slot], w);
#pragma unroll
      for (int k = 0; k < kSize; ++k) g[k] *= w[k] + offset;
    }
#pragma unroll
    for (int k = 0; k < kSize; ++k) xhat[k] = (xhat[k] - mean) * rstd;
  };
  const auto first = [](const auto& raw, float* out) { raw.unpack(out); };
  const auto again = [](const auto& raw, float* out) { raw.unpack_again(out); };

  DirectGradientSums sums{0, 0};
#pragma unroll
  for (int slot = 0; slot < kPacks; ++slot) {
    float g[kSize], xhat[kSize];
    values(slot, first, g, xhat);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      if constexpr (kCenter) sums.g += g[k];
      sums.gx = fmaf(g[k], xhat[k], sums.gx);
    }
  }
  sums = {kCenter ? reduce_lanes<Add>(sums.g) : 0.0f, reduce_lanes<Add>(sums.gx)};
  sums = gather_warps(scratch, sums, {0, 0});
  const float per_element = reciprocal(static_cast<float>(p.cols));
  const float mean_g = kCenter ? reduce_lanes<Add, kWarps>(sums.g) * per_element : 0.0f;
  const float mean_gx = reduce_lanes<Add, kWarps>(sums.gx) * per_element;

#pragma unroll
  for (int slot = 0; slot < kPacks; ++slot) {
    float g[kSize], xhat[kSize];
    values(slot, again, g, xhat);
#pragma unroll
    for (int k = 0; k < kSize; ++k) g[k] = rstd * (g[k] - mean_g - xhat[k] * mean_gx);
    if (p.dsum.data != nullptr) {
      float other[kSize];
      dsum[slot].unpack(other);
#pragma unroll
      for (int k = 0; k < kSize; ++k) g[k] += other[k];
    }
    row.store(at(p.dx), slot, RowT::P::pack(g));
  }
}

// Eight neighbouring lanes read 128 bytes of a row, the other lanes of a warp those of other rows.
inline constexpr int kColumnLanes = 8;
inline constexpr int kRowsOfWarp = kWarp / kColumnLanes;

template <class T>
inline constexpr int kDirectColumns = kColumnLanes * 16 / static_cast<int>(sizeof(T));

// Adds a thread's rows to dweight and dbias of its kSize columns, the first of which is `col`:
// every `step`-th row from `start` on.
template <class T, bool kCenter, int kSize>
__device__ __forceinline__ void add_rows(const DirectNormBackward& p, int col, int start, int step,
                                         float* dweight, float* dbias) {
  constexpr int kAhead = 4;  // rows under way
  const T* const x = static_cast<const T*>(p.x.data) + col;
  const T* const dy = static_cast<const T*>(p.dy.data) + col;
  for (; start < p.rows; start += kAhead * step) {
    ParameterPack<T, kSize> raw_x[kAhead], raw_dy[kAhead];
    float mean[kAhead], rstd[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int row = start + i * step;
      raw_x[i] = raw_dy[i] = {};
      mean[i] = rstd[i] = 0;
      if (row >= p.rows) continue;
      raw_x[i].load_in_order(x + row * p.x.stride);
      raw_dy[i].load_in_order(dy + row * p.dy.stride);
      if constexpr (kCenter) mean[i] = p.mean[row];
      rstd[i] = p.rstd[row];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      float v[kSize], g[kSize];
      raw_x[i].unpack(v);
      raw_dy[i].unpack(g);
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        dweight[k] += g[k] * ((v[k] - mean[i]) * rstd[i]);
        dbias[k] += g[k];
      }
    }
  }
}

// dweight and dbias of the columns from `first` on.
template <class T, class W, bool kCenter, class Plan>
__device__ __forceinline__ void direct_column_gradients(const DirectNormBackward& p, int first) {
  constexpr int kSize = DirectRow<T, Plan>::kSize;
  constexpr int kColumns = kDirectColumns<T>;
  __shared__ float sums[Plan::plan.warps()][2][kColumns];

  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int warps = blockDim.x / kWarp;
  const int col = first + lane % kColumnLanes * kSize;
  float dweight[kSize] = {}, dbias[kSize] = {};
  if (col < p.cols) {
    add_rows<T, kCenter, kSize>(p, col, threadIdx.x / kColumnLanes, warps * kRowsOfWarp, dweight,
                                dbias);
  }
  // The rows of a warp, then the warps.
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
#pragma unroll
    for (int offset = kColumnLanes; offset < kWarp; offset *= 2) {
      dweight[k] += __shfl_xor_sync(kAllLanes, dweight[k], offset);
      dbias[k] += __shfl_xor_sync(kAllLanes, dbias[k], offset);
    }
  }
  if (lane < kColumnLanes) {
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      sums[warp][0][lane * kSize + k] = dweight[k];
      sums[warp][1][lane * kSize + k] = dbias[k];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * kColumns; i += blockDim.x) {
    W* const out = static_cast<W*>(i < kColumns ? p.dweight : p.dbias);
    const int column = first + i % kColumns;
    if (out == nullptr || column >= p.cols) continue;
    float total = 0;
    for (int w = 0; w < warps; ++w) total += sums[w][i / kColumns][i % kColumns];
    out[column] = narrow<W>(total);
  }
}

// T, W: storage of matrices and parameters. Grid: rows, then ceil(cols / kDirectColumns<T>) where a
// parameter gradient is wanted. dx is not dy, which other CTAs read.
template <class T, class W, bool kCenter, class Plan>
__global__ void __launch_bounds__(Plan::plan.most_threads, Plan::plan.min_ctas)
    direct_norm_backward_kernel(const __grid_constant__ DirectNormBackward p) {
  follow_previous_kernel();
  const int columns = static_cast<int>(blockIdx.x) - p.rows;
  if (columns < 0) {
    direct_row_gradient<T, W, kCenter, Plan>(p);
  } else {
    direct_column_gradients<T, W, kCenter, Plan>(p, columns * kDirectColumns<T>);
  }
}

template <class T, class W, bool kCenter, class Plan>
void launch_norm_backward_direct(const Context& context, const NormBackwardProblem& p) {
  const int packs = static_cast<int>(p.cols / DirectRow<T, Plan>::kSize);
  const bool parameters = p.dweight != nullptr || p.dbias != nullptr;
  const std::int64_t column_ctas = parameters ? divide_up(p.cols, kDirectColumns<T>) : 0;
  const DirectNormBackward problem{.x = p.x,
                                   .dy = p.dy,
                                   .dsum = p.dsum,
                                   .dx = p.dx,
                                   .mean = static_cast<const float*>(p.mean),
                                   .rstd = static_cast<const float*>(p.rstd),
                                   .weight = p.weight,
                                   .dweight = p.dweight,
                                   .dbias = p.dbias,
                                   .rows = static_cast<int>(p.rows),
                                   .cols = static_cast<int>(p.cols),
                                   .packs = packs,
                                   .zero_centered_weight = p.zero_centered_weight};
  launch_direct<Plan>(p.op, context, p.rows + column_ctas, packs,
                      &direct_norm_backward_kernel<T, W, kCenter, Plan>, problem);
}

template <class T>
void run_norm_backward_direct(const Context& context, const NormBackwardProblem& p,
                              std::size_t plan) {
  if constexpr (!std::is_same_v<T, double>) {
    dispatch_norm_backward<T, is_direct>(p, plan, [&]<class Plan, bool kCenter, bool kResidual>() {
      if (has_float_parameters<T>(p)) {
        launch_norm_backward_direct<T, float, kCenter, Plan>(context, p);
      } else {
        launch_norm_backward_direct<T, T, kCenter, Plan>(context, p);
      }
    });
  }
}

}  // namespace transformer_kernels::cuda
