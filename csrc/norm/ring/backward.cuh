// SPDX-License-Identifier: MIT
// The persistent engine, backward pass of the norms on sm_90: one kernel gives dx, dweight and
// dbias, reads x, dy (and dsum) once and writes dx once, and a short column sum follows it.
//
//   xhat = (x - mean) * rstd,  g = dy * w
//   dx = rstd * (g - mean_C(g) - xhat * mean_C(g * xhat)) + dsum     (RMSNorm: no mean_C(g))
//   dweight = sum_rows dy * xhat,  dbias = sum_rows dy
//
// The parameter gradients need few CTAs, so one CTA (or cluster) an SM walks over many rows and
// keeps its share of both sums in registers; see core/cuda/row_ring.cuh. Only a row's two sums
// cross warps. Instruction issue is the bound, not bytes: results of pass 1 stay in registers for
// pass 2 where they fit, and then the stage is refilled even before the sums are exchanged.
#pragma once

#include "core/cuda/column_sum.h"
#include "core/cuda/row_ring.cuh"
#include "core/cuda/scratch.h"
#include "norm/branch_pack.cuh"
#include "norm/kernels.h"
#include "pointwise/dropout_numbers.cuh"

namespace transformer_kernels::cuda {

struct NormBackwardRing {
  NormBackwardProblem problem;
  NormBackwardShape shape;
  float* partial;  // [clusters][2][pitch]; null where no parameter gradient is wanted
  std::int64_t pitch;
};

// With dropout behind it: the gradient of the sum, which the norm gives, goes on to that of x.
struct DropoutNormBackwardRing : NormBackwardRing {
  DropoutBackwardProblem dropout;
  float* bias_partial;  // [clusters][2][pitch], of which the first is used; null as `partial`
};

// With dy and dx of X, 16 bits, beside sums and their gradients of float32.
template <class X>
struct MixedNormBackwardRing : DropoutNormBackwardRing {};

// LayerNorm's sums of g and of g * xhat. Lanes 0-15 hold the first and lanes 16-31 the second, so
// that one reduction serves both.
struct PairSums {
  using Message = float2;
  using Share = float;

  __device__ __forceinline__ float over_warp(float a, float b, int lane) const {
    const bool upper = lane & 16;
    const float mine = upper ? b : a;
    return reduce_lanes<Add, 16>(mine + __shfl_xor_sync(kAllLanes, upper ? a : b, 16));
  }
  __device__ __forceinline__ float2 total(float share) const {
    return {__shfl_sync(kAllLanes, share, 0), __shfl_sync(kAllLanes, share, 16)};
  }
  __device__ __forceinline__ void publish(float2& to, float share, int lane) const {
    if (lane % 16 == 0) (&to.x)[lane / 16] = share;
  }
  template <int kCount>
  __device__ __forceinline__ float2 merge(const float2* parts, int, int) const {
    if constexpr (kCount <= 4) {
      float2 sum{0, 0};
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sum.x += parts[i].x;
        sum.y += parts[i].y;
      }
      return sum;
    } else {
      const int lane = threadIdx.x % kWarp;
      float share = 0;
#pragma unroll
      for (int i = lane % 16; i < kCount; i += 16) share += (&parts[i].x)[lane / 16];
      return total(reduce_lanes<Add, 16>(share));
    }
  }
  static __device__ __forceinline__ float2 bits(float2 message) { return message; }
  static __device__ __forceinline__ float of_g(float2 sums) { return sums.x; }
  static __device__ __forceinline__ float of_gx(float2 sums) { return sums.y; }
};

// RMSNorm's sum of g * xhat.
struct SingleSum {
  using Message = float;
  using Share = float;

  __device__ __forceinline__ float over_warp(float, float b, int) const {
    return reduce_lanes<Add>(b);
  }
  __device__ __forceinline__ float total(float share) const { return share; }
  __device__ __forceinline__ void publish(float& to, float share, int lane) const {
    if (lane == 0) to = share;
  }
  template <int kCount>
  __device__ __forceinline__ float merge(const float* parts, int, int) const {
    if constexpr (kCount <= 4) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum += parts[i];
      return sum;
    } else {
      constexpr int kLanes = kCount <= 8 ? 8 : kCount <= 16 ? 16 : 32;
      const int i = threadIdx.x % kLanes;
      return reduce_lanes<Add, kLanes>(i < kCount ? parts[i] : 0.0f);
    }
  }
  static __device__ __forceinline__ float bits(float message) { return message; }
  static __device__ __forceinline__ float of_g(float) { return 0; }
  static __device__ __forceinline__ float of_gx(float sum) { return sum; }
};

// The sum of a column over the groups of a CTA, which meet in `fold`, group by group in order.
template <class Plan, int kOwned, int kSize>
__device__ __forceinline__ void fold_columns(const RingWarp<Plan>& own, float* fold, int cols,
                                             const float (&sum)[kOwned], float* out) {
  constexpr RingPlan kPlan = Plan::plan;
  constexpr int kColumns = kPlan.warps * kPlan.packs * kWarp * kSize;
  __syncthreads();
#pragma unroll
  for (int slot = 0; slot < kPlan.packs; ++slot) {
    float* at =
        fold + own.group * kColumns + ((own.warp * kPlan.packs + slot) * kWarp + own.lane) * kSize;
#pragma unroll
    for (int k = 0; k < kSize; ++k) at[k] = sum[slot * kSize + k];
  }
  __syncthreads();
  const int first_column = own.rank * kColumns;
  const int columns = max(0, min(cols - first_column, kColumns));
  for (int column = threadIdx.x; column < columns; column += kPlan.threads()) {
    float total = 0;
    for (int group = 0; group < kPlan.groups; ++group) total += fold[group * kColumns + column];
    out[first_column + column] = total;
  }
}

// T: storage of the matrices, but for what a mixed launch says. dbias is of LayerNorm alone.
// Launch: of the norm alone, or with dropout.
template <class T, bool kCenter, bool kDsum, class Plan, class Launch>
__global__ void __launch_bounds__(Plan::plan.threads(), Plan::plan.ctas)
    norm_backward_ring_kernel(const __grid_constant__ Launch a) {
  constexpr bool kDropout = !std::is_same_v<Launch, NormBackwardRing>;
  using X = branch_t<Launch, T>;
  constexpr bool kMixed = !std::is_same_v<X, T>;
  using Branch = BranchPack<X>;
  using P = Pack<T, 16 / sizeof(T)>;
  constexpr RingPlan kPlan = Plan::plan;
  constexpr int kSize = P::size;
  constexpr int kPacks = kPlan.packs;
  constexpr int kOwned = kPacks * kSize;
  // LayerNorm of 16-bit rows has three sums of each column when dropout is behind it.
  constexpr bool kCrowded = kDropout && kCenter && sizeof(T) == 2;
  constexpr bool kKeep = kOwned <= 24 && !kCrowded;
  constexpr bool kShifted = kPlan.shifted;
  // A narrow dy comes past the ring, a row ahead in registers.
  using Ring = RowRing<Plan, T, kDsum && !kMixed ? 3 : 2>;
  constexpr int kDsumPlace = kMixed ? 1 : 2;
  static_assert(!kMixed || (kDropout && kDsum && kKeep && !kShifted));
  // Weights in shared memory: as floats, whatever they are stored as, with their offset.
  constexpr int kWeightBytes = ring_weight_bytes(kPlan, sizeof(T));
  using Piece = Pack<float, 4>;
  constexpr int kPieces = kSize / Piece::size;

  const NormBackwardProblem& p = a.problem;
  extern __shared__ __align__(128) unsigned char shared[];  // weights, then the ring
  using Sums = std::conditional_t<kCenter, PairSums, SingleSum>;
  __shared__ RingExchange<Plan, Sums> exchanges[kPlan.groups];
  __shared__ std::uint64_t filled[kPlan.groups * kPlan.warps * kPlan.stages];
  __shared__ std::uint64_t arrived[kSumSlots];

  const int cols = static_cast<int>(p.cols);
  const RingWarp<Plan> own(p.rows, divide_up(cols, kSize));
  const int lane = own.lane;
  const std::uint32_t weights =
      shared_address(shared) + (own.warp * kPacks * kWarp * kPieces + lane) * 16;

  if (threadIdx.x == 0) {
    for (std::uint64_t& barrier : filled) mbarrier_init(shared_address(&barrier), 1);
    for (std::uint64_t& barrier : arrived) mbarrier_init(shared_address(&barrier), 1);
    fence_mbarrier_init();
  }
  // The weights of this CTA's columns, once; groups share them. Piece i of a pack lies a plane
  // behind piece 0, so that a warp reads 512 bytes in a row.
  const float offset = p.zero_centered_weight ? 1.0f : 0.0f;
  for (int slot = 0; slot < kPacks && own.group == 0; ++slot) {
    if (!own.owns(slot)) break;
    float w[kSize];
#pragma unroll
    for (int k = 0; k < kSize; ++k) w[k] = 1.0f - offset;
    const auto read = [&]<class W>(const W* weight) {
      ParameterPack<W, kSize> pack;
      const std::int64_t col = static_cast<std::int64_t>(own.first + lane + slot * kWarp) * kSize;
      if constexpr (kShifted) pack.load_shifted(weight, col, cols);
      if constexpr (!kShifted) pack.load(weight + col);
      pack.unpack(w);
    };
    if (p.weight != nullptr) {
      if (has_float_parameters<T>(p)) {
        read(static_cast<const float*>(p.weight));
      } else {
        read(static_cast<const T*>(p.weight));
      }
    }
#pragma unroll
    for (int k = 0; k < kSize; ++k) w[k] += offset;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      store_shared(weights + (slot * kPieces + i) * kWarp * 16, Piece::pack(w + i * Piece::size));
    }
  }
  __syncthreads();
  if constexpr (kPlan.cluster > 1) {
    cluster_arrive();
    cluster_wait();
  }

  // With mixed dtypes, an absent gradient of the sum has no kernels of its own: x stands for it.
  [[maybe_unused]] const bool has_dsum = p.dsum.data != nullptr;
  const auto operands = [&] {
    if constexpr (kMixed) return std::array{p.x, has_dsum ? p.dsum : p.x};
    if constexpr (kDsum && !kMixed) return std::array{p.x, p.dy, p.dsum};
    if constexpr (!kDsum) return std::array{p.x, p.dy};
  }();
  Ring ring(own, p, a.shape.stages, shared_address(shared) + kWeightBytes, filled, operands);
  T* dx = own.template begin_of<T>(p.dx) + (kShifted ? 0 : lane * kSize);

  const auto weight_of = [&](int slot, float* w) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      Piece::unpack(load_shared(weights + (slot * kPieces + i) * kWarp * 16), w + i * Piece::size);
    }
  };
  [[maybe_unused]] typename Branch::Raw dy_now[kPacks] = {}, dy_ahead[kPacks] = {};
  [[maybe_unused]] const X* next_dy = nullptr;
  if constexpr (kMixed) {
    next_dy = static_cast<const X*>(p.dy.data) + own.row * p.dy.stride +
              static_cast<std::int64_t>(own.first + lane) * kSize;
  }
  const auto read_dy = [&] {
#pragma unroll
    for (int slot = 0; slot < kPacks; ++slot) {
      if (own.owns(slot)) dy_ahead[slot] = Branch::load(next_dy + slot * kWarp * kSize);
    }
    next_dy += own.walkers * p.dy.stride;
  };
  // The last pack of a row may reach out of it.
  const auto clear_behind = [](int inside, float* x, float* dy) {
    if (inside >= kSize) return;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      if (k >= inside) x[k] = dy[k] = 0;
    }
  };
  // g and xhat of one pack, and dy.
  const auto read_pack = [&](std::uint32_t stage, int slot, float mean, float rstd, float* g,
                             float* xhat, float* dy) {
    P::unpack(ring.load(stage, 0, slot), xhat);
    if constexpr (kMixed) {
      Branch::unpack(dy_now[slot], dy);
    } else {
      P::unpack(ring.load(stage, 1, slot), dy);
    }
    if constexpr (kShifted) {
      clear_behind(ring.elements - (lane + slot * kWarp) * kSize, xhat, dy);
    }
    weight_of(slot, g);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      xhat[k] = (kCenter ? xhat[k] - mean : xhat[k]) * rstd;
      // In a row of one element, as only a shifted plan meets it, g cancels against its mean.
      g[k] = kShifted ? product(g[k], dy[k]) : g[k] * dy[k];
    }
  };

  float dweight[kOwned] = {};
  float dbias[kCenter ? kOwned : 1] = {};
  [[maybe_unused]] float dx_bias[kDropout ? kOwned : 1] = {};
  const float inverse_cols = reciprocal(static_cast<float>(p.cols));
  const float* next_mean = kCenter ? static_cast<const float*>(p.mean) + own.row : nullptr;
  const float* next_rstd = static_cast<const float*>(p.rstd) + own.row;
  float mean_ahead = 0, rstd_ahead = 0;
  const auto read_statistics = [&] {
    if constexpr (kCenter) mean_ahead = __ldg(next_mean);
    rstd_ahead = __ldg(next_rstd);
    if constexpr (kCenter) next_mean += own.walkers;
    next_rstd += own.walkers;
  };
  if (own.rows > 0) read_statistics();
  if constexpr (kMixed) {
    if (own.rows > 0) read_dy();
  }

  for (int i = 0; i < own.rows; ++i) {
    const float mean = mean_ahead, rstd = rstd_ahead;
    if (i + 1 < own.rows) read_statistics();
    if constexpr (kMixed) {
#pragma unroll
      for (int slot = 0; slot < kPacks; ++slot) dy_now[slot] = dy_ahead[slot];
      if (i + 1 < own.rows) read_dy();
    }
    const std::uint32_t at = ring.wait();

    // Pass 1: the row's sums of g and g * xhat, and this row's part of the parameter gradients.
    float g[kKeep ? kOwned : kSize], xhat[kKeep ? kOwned : kSize];
    uint4 dsum[kKeep && kDsum ? kPacks : 1];
    float sum_g = 0, sum_gx = 0;
#pragma unroll
    for (int slot = 0; slot < kPacks; ++slot) {
      if (!own.owns(slot)) continue;
      float* gp = g + (kKeep ? slot * kSize : 0);
      float* xp = xhat + (kKeep ? slot * kSize : 0);
      float dy[kSize];
      read_pack(at, slot, mean, rstd, gp, xp, dy);
      if constexpr (kKeep && kDsum) dsum[slot] = ring.load(at, kDsumPlace, slot);
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        dweight[slot * kSize + k] += dy[k] * xp[k];
        if constexpr (kCenter) dbias[slot * kSize + k] += dy[k];
        if constexpr (kCenter) sum_g += gp[k];
        sum_gx += gp[k] * xp[k];
      }
    }
    if constexpr (kKeep) ring.refill(own);

    const auto sums = exchanges[own.group].over_row(own, i, Sums().over_warp(sum_g, sum_gx, lane),
                                                    arrived, Sums());

    // Pass 2: dx.
    const float mean_g = Sums::of_g(sums) * inverse_cols;
    const float mean_gx = Sums::of_gx(sums) * inverse_cols;
    uint4 last{};
#pragma unroll(kKeep || kDropout ? kPacks : 1)
    for (int slot = 0; slot < kPacks; ++slot) {
      if (!kShifted && !own.owns(slot)) continue;
      float* gp = g + (kKeep ? slot * kSize : 0);
      float* xp = xhat + (kKeep ? slot * kSize : 0);
      float other[kSize];
      if constexpr (!kKeep) read_pack(at, slot, mean, rstd, gp, xp, other);
      if constexpr (kDsum) {
        if constexpr (kKeep) {
          P::unpack(dsum[slot], other);
        } else {
          P::unpack(ring.load(at, kDsumPlace, slot), other);
        }
      }
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        gp[k] = rstd * ((kCenter ? gp[k] - mean_g : gp[k]) - xp[k] * mean_gx);
        if constexpr (kDsum) gp[k] += kMixed && !has_dsum ? 0.0f : other[k];
      }
      if constexpr (kShifted) {
        store_shifted(dx, ring.elements, lane, slot, P::pack(gp), last);
      } else {
        const uint4 raw = P::pack(gp);
        P::store(dx + slot * kWarp * kSize, raw);
        if constexpr (kDropout) {
          const std::int64_t row = own.row + static_cast<std::int64_t>(i) * own.walkers;
          const std::int64_t col =
              static_cast<std::int64_t>(own.first + lane + slot * kWarp) * kSize;
          const DropoutDraw& draw = a.dropout.draw;
          uint4 numbers{};
          if (!draw.keeps_all() && !draw.keeps_none()) {
            numbers = DropoutNumbers(draw).of_pack<kSize>(row * p.cols + col);
          }
          float dropped[kSize];
          P::unpack(raw, dropped);
          drop<0>(numbers, draw.below, static_cast<float>(draw.scale), dropped);
          X* const to = static_cast<X*>(a.dropout.dx.data) + row * a.dropout.dx.stride + col;
          if constexpr (kMixed) {
            Branch::store(to, Branch::pack(dropped));
          } else {
            P::store(to, P::pack(dropped));
          }
#pragma unroll
          for (int k = 0; k < kSize; ++k) dx_bias[slot * kSize + k] += dropped[k];
        }
      }
    }
    if constexpr (!kKeep) ring.refill(own);
    dx += own.walkers * p.dx.stride;
    ring.advance(own);
  }

  let_next_kernel_start();
  if constexpr (kPlan.cluster > 1) {
    cluster_arrive();
    cluster_wait();
  }
  if constexpr (kDropout) {
    if (a.bias_partial != nullptr) {
      fold_columns<Plan, kOwned, kSize>(own, reinterpret_cast<float*>(shared + kWeightBytes), cols,
                                        dx_bias, a.bias_partial + own.cluster * 2 * a.pitch);
    }
  }
  if (a.partial == nullptr) return;
  // The groups' sums meet in the ring's memory, group by group in order: one partial row a CTA.
  __syncthreads();
  float* fold = reinterpret_cast<float*>(shared + kWeightBytes);
  constexpr int kColumns = kPlan.warps * kPacks * kWarp * kSize;
#pragma unroll
  for (int slot = 0; slot < kPacks; ++slot) {
    float* at =
        fold + own.group * 2 * kColumns + ((own.warp * kPacks + slot) * kWarp + lane) * kSize;
#pragma unroll
    for (int k = 0; k < kSize; k += 4) {
      const float* w = dweight + slot * kSize + k;
      *reinterpret_cast<float4*>(at + k) = make_float4(w[0], w[1], w[2], w[3]);
      if constexpr (kCenter) {
        const float* b = dbias + slot * kSize + k;
        *reinterpret_cast<float4*>(at + kColumns + k) = make_float4(b[0], b[1], b[2], b[3]);
      }
    }
  }
  __syncthreads();
  const int first_column = own.rank * kColumns;
  const int columns = max(0, min(cols - first_column, kColumns));
  for (int i = threadIdx.x * 4; i < (kCenter ? 2 : 1) * kColumns; i += kPlan.threads() * 4) {
    const int which = i / kColumns;
    const int column = i % kColumns;
    if (column >= columns) continue;
    float4 sum = *reinterpret_cast<float4*>(fold + i);
    for (int other = 1; other < kPlan.groups; ++other) {
      const float4 v = *reinterpret_cast<float4*>(fold + other * 2 * kColumns + i);
      sum.x += v.x;
      sum.y += v.y;
      sum.z += v.z;
      sum.w += v.w;
    }
    float* out = a.partial + (static_cast<std::int64_t>(own.cluster) * 2 + which) * a.pitch;
    *reinterpret_cast<float4*>(out + first_column + column) = sum;
  }
}

template <class Plan, class Kernel>
std::int64_t ring_clusters(const Context& context, const NormBackwardProblem& p, Kernel kernel,
                           int shared_bytes) {
  const int resident =
      resident_clusters(p.op, kernel, Plan::plan, shared_bytes, context.device.index);
  return std::min<std::int64_t>(resident, divide_up(p.rows, Plan::plan.groups));
}

template <class Plan>
LaunchShape ring_launch_shape(std::int64_t clusters, int shared_bytes) {
  return {.ctas = clusters * Plan::plan.cluster,
          .threads = Plan::plan.threads(),
          .cluster = Plan::plan.cluster,
          .shared_bytes = static_cast<std::size_t>(shared_bytes)};
}

template <class T, bool kCenter, bool kDsum, class Plan>
void launch_norm_backward_ring(const Context& context, const NormBackwardProblem& p) {
  const auto kernel = &norm_backward_ring_kernel<T, kCenter, kDsum, Plan, NormBackwardRing>;
  const NormBackwardShape shape =
      norm_backward_shape(Plan::plan, p, device_limits(context.device.index));
  const std::int64_t clusters = ring_clusters<Plan>(context, p, kernel, shape.shared_bytes);
  void* const dbias = kCenter ? p.dbias : nullptr;
  const bool parameters = p.dweight != nullptr || dbias != nullptr;
  const std::int64_t pitch = rounded_up(p.cols, 4);
  const std::size_t bytes = parameters ? clusters * 2 * pitch * sizeof(float) : 0;
  const Scratch scratch(p.op, context, std::max<std::size_t>(bytes, 16));
  float* partial = parameters ? scratch.as<float>() : nullptr;
  launch(p.op, context, ring_launch_shape<Plan>(clusters, shape.shared_bytes), kernel,
         NormBackwardRing{p, shape, partial, pitch});
  if (!parameters) return;
  sum_columns(
      p.op, context, p.weight_dtype,
      PartialGradients<float>{partial, static_cast<int>(clusters), pitch, p.cols, p.dweight, dbias},
      true);
}

template <class T, bool kCenter, class Plan, class Launch = DropoutNormBackwardRing>
void launch_dropout_norm_backward_ring(const Context& context,
                                       const DropoutNormBackwardProblem& problem,
                                       const NormBackwardShape& shape) {
  const NormBackwardProblem& p = problem.norm;
  const auto kernel = &norm_backward_ring_kernel<T, kCenter, true, Plan, Launch>;
  const std::int64_t clusters = ring_clusters<Plan>(context, p, kernel, shape.shared_bytes);
  void* const dbias = kCenter ? p.dbias : nullptr;
  const std::int64_t pitch = rounded_up(p.cols, 4);
  const Scratch scratch(p.op, context, 2 * clusters * 2 * pitch * sizeof(float));
  float* const partial = scratch.as<float>();
  float* const bias_partial = partial + clusters * 2 * pitch;
  const bool parameters = p.dweight != nullptr || dbias != nullptr;
  void* const dx_bias = problem.dropout.dbias;
  launch(p.op, context, ring_launch_shape<Plan>(clusters, shape.shared_bytes), kernel,
         Launch{DropoutNormBackwardRing{{p, shape, parameters ? partial : nullptr, pitch},
                                        problem.dropout,
                                        dx_bias != nullptr ? bias_partial : nullptr}});
  const auto sum = [&](DType dtype, const float* of, void* first, void* second, bool after) {
    sum_columns(
        p.op, context, dtype,
        PartialGradients<float>{of, static_cast<int>(clusters), pitch, p.cols, first, second},
        after);
  };
  if (parameters) sum(p.weight_dtype, partial, p.dweight, dbias, true);
  if (dx_bias) sum(problem.dropout.bias_dtype, bias_partial, dx_bias, nullptr, !parameters);
}

template <class T>
void run_dropout_norm_backward_ring(const Context& context, const DropoutNormBackwardProblem& p,
                                    std::size_t plan) {
  if (!p.norm.center && p.norm.dbias != nullptr) sum_norm_bias_gradient<T>(context, p.norm);
  dispatch_index<std::size(kDropoutNormBackwardPlans)>(plan, [&]<std::size_t kIndex>() {
    using Plan = DropoutNormBackwardPlanAt<kIndex>;
    const NormBackwardShape shape =
        norm_backward_shape(Plan::plan, p.norm, device_limits(context.device.index));
    dispatch_bool(p.norm.center, [&]<bool kCenter>() {
      launch_dropout_norm_backward_ring<T, kCenter, Plan>(context, p, shape);
    });
  });
}

template <class X>
void run_mixed_norm_backward_ring(const Context& context, const DropoutNormBackwardProblem& p,
                                  std::size_t plan) {
  using Launch = MixedNormBackwardRing<X>;
  dispatch_index<std::size(kMixedNormBackwardPlans)>(plan, [&]<std::size_t kIndex>() {
    using Plan = MixedNormBackwardPlanAt<kIndex>;
    const NormBackwardShape shape =
        mixed_norm_backward_shape(Plan::plan, p, device_limits(context.device.index));
    dispatch_bool(p.norm.center, [&]<bool kCenter>() {
      launch_dropout_norm_backward_ring<float, kCenter, Plan, Launch>(context, p, shape);
    });
  });
}

template <class T>
void run_norm_backward_ring(const Context& context, const NormBackwardProblem& p,
                            std::size_t plan) {
  // RMSNorm comes without a bias as a rule, which is not worth kernels. First: dx may be dy.
  if (!p.center && p.dbias != nullptr) sum_norm_bias_gradient<T>(context, p);
  dispatch_norm_backward<T, is_ring>(p, plan, [&]<class Plan, bool kCenter, bool kDsum>() {
    launch_norm_backward_ring<T, kCenter, kDsum, Plan>(context, p);
  });
}

}  // namespace transformer_kernels::cuda
