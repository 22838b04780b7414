// SPDX-License-Identifier: MIT
// The update on CUDA. A warp has kStateBlock elements of a tensor, which share the scales of 8-bit
// states; a lane has four of the first half and four of the second, so that neighbours read
// neighbouring memory. All loads are issued before the first number is used.
#pragma once

#include "core/cuda/launch.cuh"
#include "core/math/philox.h"
#include "optimizer/codes.cuh"
#include "optimizer/rows.cuh"
#include "optimizer/rules.cuh"

namespace transformer_kernels::cuda {

inline constexpr int kFours = 2;  // of a lane
inline constexpr int kLaneElements = 4 * kFours;
static_assert(kLaneElements * kWarp == kStateBlock);

// Random bits of a lane: two words a four, each of two numbers.
struct LaneBits {
  std::uint32_t word[kFours][2];
};

// A counter has the numbers of two neighbouring lanes' fours. The even lane computes that of the
// first half of the block, the odd one that of the second, and each hands the other what is its.
__device__ __forceinline__ LaneBits draw_bits(const UpdateRow& row, RandomUse use,
                                              std::int64_t block, std::uint64_t seed,
                                              std::uint64_t step) {
  constexpr int kHalf = static_cast<int>(kStateBlock) / kFours / kRandomPerCounter;  // counters
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool is_odd = lane % 2 != 0;
  const std::uint64_t counter =
      random_counter(use, row.number, block) + lane / 2 + (is_odd ? kHalf : 0);
  const PhiloxWords own = philox(seed, counter, step);
  LaneBits bits;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t low = own.word[i];
    const std::uint32_t high = own.word[2 + i];
    const std::uint32_t other = __shfl_xor_sync(kAllLanes, is_odd ? low : high, 1);
    bits.word[0][i] = is_odd ? other : low;
    bits.word[1][i] = is_odd ? high : other;
  }
  return bits;
}

// A number between two of bfloat16 becomes the upper one where the bits that it loses and the
// random ones carry.
__device__ __forceinline__ std::uint32_t rounded_randomly(float x, std::uint32_t random) {
  const std::uint32_t bits = __float_as_uint(x);
  return x == x ? (bits + random) >> 16 : bits >> 16 | 0x40;
}

template <bool kIsPack>
__device__ __forceinline__ void store_rounded_randomly(void* data, FourPlace<kIsPack> at,
                                                       const float* x,
                                                       const std::uint32_t* random) {
  std::uint32_t word[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    word[i] = rounded_randomly(x[2 * i], random[i] & 0xffff) |
              rounded_randomly(x[2 * i + 1], random[i] >> 16) << 16;
  }
  store_halves(data, at, word[0], word[1]);
}

// A warp's block of a tensor, as one lane sees it: all of it in packs, or element by element.
template <class A, bool kPacks>
struct LaneOfBlock {
  const UpdateRow& row;
  const UpdateOptions& options;
  std::int64_t block;  // its first element
  FourPlace<kPacks> place[kFours];

  __device__ __forceinline__ LaneOfBlock(const UpdateRow& r, const UpdateOptions& o,
                                         std::int64_t begin)
      : row(r),
        options(o),
        block(begin) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
      const std::int64_t index = begin + (f * kWarp + lane) * 4;
      const std::int64_t rest = kPacks ? 4 : row.elements - index;
      place[f] = {index, static_cast<int>(min(max(rest, std::int64_t{0}), std::int64_t{4}))};
    }
  }

  __device__ __forceinline__ std::int64_t scale_index() const { return block / kStateBlock; }

  __device__ __forceinline__ void load(const void* data, DType dtype, RawFour<A>* raw) const {
#pragma unroll
    for (int f = 0; f < kFours; ++f) load_four(data, dtype, place[f], raw[f]);
  }
  __device__ __forceinline__ void widen(const RawFour<A>* raw, DType dtype, A* x) const {
#pragma unroll
    for (int f = 0; f < kFours; ++f) widen_four(raw[f], dtype, x + 4 * f);
  }
  __device__ __forceinline__ void store(void* data, DType dtype, const A* x) const {
#pragma unroll
    for (int f = 0; f < kFours; ++f) store_four(data, dtype, place[f], x + 4 * f);
  }

  template <bool kFirst>
  __device__ __forceinline__ void widen_moment(const RawFour<A>* raw, const CodeValues& values,
                                               A* x) const {
    if constexpr (sizeof(A) == 4) {
      if (row.state_dtype == DType::kUInt8) {
        const float scale = (kFirst ? row.exp_avg_scales : row.exp_avg_sq_scales)[scale_index()];
#pragma unroll
        for (int f = 0; f < kFours; ++f) {
          widen_codes<kFirst>(raw[f].word[0], values, scale, x + 4 * f);
        }
        return;
      }
    }
    widen(raw, row.state_dtype, x);
  }

  // `x` of elements that are not the tensor's does not count.
  template <bool kFirst>
  __device__ __forceinline__ void store_moment(const A* x, std::uint64_t step) const {
    void* const data = kFirst ? row.exp_avg : row.exp_avg_sq;
    constexpr RandomUse kUse = kFirst ? RandomUse::kFirstMoment : RandomUse::kSecondMoment;
    if constexpr (sizeof(A) == 4) {
      if (row.state_dtype == DType::kUInt8) {
        float* const scales = kFirst ? row.exp_avg_scales : row.exp_avg_sq_scales;
        float counted[kLaneElements];
#pragma unroll
        for (int i = 0; i < kLaneElements; ++i) {
          counted[i] = i % 4 < place[i / 4].count ? x[i] : 0;
        }
        const BlockScale<kFirst> scale(largest_of_warp<kLaneElements>(counted));
        const LaneBits bits = draw_bits(row, kUse, block, options.seed, step);
#pragma unroll
        for (int f = 0; f < kFours; ++f) {
          store_codes(data, place[f], scale.codes(x + 4 * f, bits.word[f]));
        }
        if (threadIdx.x % kWarp == 0) scales[scale_index()] = scale.scale;
        return;
      }
      if (row.rounds_states_randomly) return store_randomly(data, kUse, x, step);
    }
    store(data, row.state_dtype, x);
  }

  __device__ __forceinline__ void store_weights(const A* x, std::uint64_t step) const {
    if constexpr (sizeof(A) == 4) {
      if (row.rounds_param_randomly) {
        return store_randomly(row.weights, RandomUse::kParam, x, step);
      }
    }
    store(row.weights, row.weights_dtype, x);
    if (row.copy != nullptr) store(row.copy, row.copy_dtype, x);
  }

 private:
  __device__ __forceinline__ void store_randomly(void* data, RandomUse use, const float* x,
                                                 std::uint64_t step) const {
    const LaneBits bits = draw_bits(row, use, block, options.seed, step);
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
      store_rounded_randomly(data, place[f], x + 4 * f, bits.word[f]);
    }
  }
};

template <class Rule, class A, bool kPacks>
__device__ __forceinline__ void update_block(const LaneOfBlock<A, kPacks>& lane,
                                             const CodeValues& values,
                                             const StepNumbers<A>& numbers) {
  const UpdateRow& row = lane.row;
  RawFour<A> raw_g[kFours], raw_p[kFours], raw_m[kFours], raw_v[kFours], raw_top[kFours];
  lane.load(row.grad, row.grad_dtype, raw_g);
  lane.load(row.weights, row.weights_dtype, raw_p);
  lane.load(row.exp_avg, row.state_dtype, raw_m);
  if constexpr (Rule::has_second) lane.load(row.exp_avg_sq, row.state_dtype, raw_v);
  if constexpr (Rule::has_top) lane.load(row.max_exp_avg_sq, row.state_dtype, raw_top);
  const StepNumbers<A> n = numbers;
  if (n.skips) return;

  A g[kLaneElements], p[kLaneElements], m[kLaneElements], v[kLaneElements], top[kLaneElements];
  lane.widen(raw_g, row.grad_dtype, g);
  lane.widen(raw_p, row.weights_dtype, p);
  lane.template widen_moment<true>(raw_m, values, m);
  if constexpr (Rule::has_second) lane.template widen_moment<false>(raw_v, values, v);
  if constexpr (Rule::has_top) lane.widen(raw_top, row.state_dtype, top);
  if (lane.options.unscales_gradients) {
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) g[i] = product(g[i], n.unscale);
    lane.store(row.grad, row.grad_dtype, g);
  }
#pragma unroll
  for (int i = 0; i < kLaneElements; ++i) {
    Element<A> x{.g = g[i], .p = p[i], .m = m[i]};
    if constexpr (Rule::has_second) x.v = v[i];
    if constexpr (Rule::has_top) x.top = top[i];
    Rule::apply(n, x);
    p[i] = x.p, m[i] = x.m;
    if constexpr (Rule::has_second) v[i] = x.v;
    if constexpr (Rule::has_top) top[i] = x.top;
  }
  lane.store_weights(p, n.step);
  lane.template store_moment<true>(m, n.step);
  if constexpr (Rule::has_second) lane.template store_moment<false>(v, n.step);
  if constexpr (Rule::has_top) lane.store(row.max_exp_avg_sq, row.state_dtype, top);
}

// A CTA has kUpdateChunk elements of a tensor.
template <class Rule, class A, int kRows>
__global__ void __launch_bounds__(kUpdateThreads)
    update_kernel(const __grid_constant__ RowTable<UpdateRow, kRows> table,
                  const __grid_constant__ UpdateOptions options, const StepNumbers<A>* numbers) {
  __shared__ CodeValues values;
  const int chunk = static_cast<int>(blockIdx.x);
  const int number = row_of_chunk(table, chunk);
  const UpdateRow& row = table.row[number];
  if (sizeof(A) == 4 && row.state_dtype == DType::kUInt8) {
    values.fill();
    __syncthreads();
  }
  const std::int64_t block =
      (chunk - table.first_chunk[number]) * kUpdateChunk + threadIdx.x / kWarp * kStateBlock;
  if (row.has_packs && block + kStateBlock <= row.elements) {
    update_block<Rule>(LaneOfBlock<A, true>(row, options, block), values, numbers[number]);
  } else if (block < row.elements) {
    update_block<Rule>(LaneOfBlock<A, false>(row, options, block), values, numbers[number]);
  }
}

template <class Rule, class A, int kRows>
void run_update(const char* op, const Context& context, const RowTable<UpdateRow, kRows>& table,
                std::int64_t chunks, const UpdateOptions& options, const StepNumbers<A>* numbers) {
  launch(op, context, {.ctas = chunks, .threads = kUpdateThreads}, update_kernel<Rule, A, kRows>,
         table, options, numbers);
}

}  // namespace transformer_kernels::cuda
