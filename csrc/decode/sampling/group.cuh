// SPDX-License-Identifier: MIT
// The CTAs that share a row: a cluster, or one CTA where the device has none. They add up whole
// numbers, so that it does not matter who adds which.
#pragma once

#include "core/cuda/ptx.cuh"
#include "core/cuda/reduce.cuh"
#include "core/rounding.h"
#include "decode/sampling/group_plan.h"
#include "transformer_kernels/decode/sample_logits.h"

namespace transformer_kernels::cuda::sampling {

inline constexpr int kWarps = kThreads / kWarp;
inline constexpr int kBuckets = 2048;

struct Larger {
  __device__ __forceinline__ std::uint64_t operator()(std::uint64_t a, std::uint64_t b) const {
    return a > b ? a : b;
  }
};

// Elements of a CTA's part.
struct Span {
  int begin;
  int end;
};

// The place at which a running sum passes a number, and what of that number is left there.
struct Found {
  int at;
  std::uint64_t left;
};

// A sum over all CTAs, and those before this one, and its own.
struct Sums {
  std::uint64_t all;
  std::uint64_t before;
  std::uint64_t own;
};

// An element of an order: smaller distances come first, and smaller keys among distances of one
// bucket.
struct Item {
  float distance;
  std::uint32_t key;  // smaller ones come first; it never contradicts the distance
  std::uint64_t mass;
};

// The model's own distribution, which is NaN where a logit is.
struct Model {
  bool is_known;
  float top;
  double log_of_sum;
};

struct alignas(16) GroupMemory {
  std::uint64_t mass[kBuckets];   // of this CTA's elements
  std::uint64_t total[kBuckets];  // of all CTAs', in this CTA's share of the buckets
  std::uint64_t of_warp[2][kWarps];
  std::uint64_t of_cta[2][kMostCtas];
  Model model;
  SamplingParameters parameters;
};

__device__ __forceinline__ int lane() { return threadIdx.x % kWarp; }
__device__ __forceinline__ int warp() { return threadIdx.x / kWarp; }

class Group {
 public:
  __device__ __forceinline__ Group(GroupMemory& memory, int ctas)
      : memory_(memory),
        ctas_(ctas),
        rank_(static_cast<int>(blockIdx.x) % ctas) {
    if (ctas_ > 1) arrive();
  }

  // Waits until all CTAs run: only then they have memory.
  __device__ __forceinline__ void start() {
    if (ctas_ > 1) wait();
  }
  __device__ __forceinline__ void sync() {
    if (ctas_ > 1) {
      arrive();
      wait();
    } else {
      __syncthreads();
    }
  }
  __device__ __forceinline__ int ctas() const { return ctas_; }
  __device__ __forceinline__ int rank() const { return rank_; }

  // Over the threads of the CTA.
  template <class Op>
  __device__ __forceinline__ std::uint64_t over_cta(std::uint64_t value) {
    leave_of_warp(reduce_lanes<Op>(value));
    return reduce_lanes<Op, kWarps>(of_warp()[lane() % kWarps]);
  }
  // Over all threads; 0 is the least number.
  template <class Op>
  __device__ __forceinline__ std::uint64_t over_all(std::uint64_t value) {
    const std::uint64_t own = over_cta<Op>(value);
    return ctas_ == 1 ? own : reduce_lanes<Op>(gathered(own));
  }
  // The sums that it leaves for narrowed() are those of this CTA's warps.
  __device__ __forceinline__ Sums sum(std::uint64_t value) {
    const std::uint64_t own = over_cta<Add>(value);
    if (ctas_ == 1) return {own, 0, own};
    const std::uint64_t of_lane = gathered(own);
    return {reduce_lanes<Add>(of_lane), reduce_lanes<Add>(lane() < rank_ ? of_lane : 0), own};
  }

  // The place of [begin, end) at which the running sum of numbers passes `part`. All threads of the
  // CTA call it.
  template <class NumberAt>
  __device__ __forceinline__ Found locate(Span span, std::uint64_t part, NumberAt number_at) {
    while (span.end - span.begin > kLast) {
      const int share = shared_out(span.end - span.begin);
      const Span own = piece(span, share, warp());
      std::uint64_t sum = 0;
      for (int i = own.begin + lane(); i < own.end; i += kWarp) sum += number_at(i);
      leave_of_warp(reduce_lanes<Add>(sum));
      narrow(span, share, part);
    }
    return locate_last(span, part, number_at);
  }
  // locate() in the span of `share` elements a warp whose sums the last sum() has left.
  template <class NumberAt>
  __device__ __forceinline__ Found locate_again(Span span, std::uint64_t part, NumberAt number_at) {
    narrow(span, shared_out(span.end - span.begin), part);
    return locate(span, part, number_at);
  }

  // The key of the item with which, in their order, a mass is reached that is not 0. `span` are
  // elements of this warp.
  template <class ItemAt>
  __device__ __forceinline__ std::uint32_t last_kept(Span span, std::uint64_t mass,
                                                     ItemAt item_at) {
    constexpr int kRounds = 4;  // by distance, then by the key's bits
    int distance = 0;
    std::uint32_t prefix = 0;
    std::uint32_t known = 0;  // bits of the key
    std::uint64_t part = mass - 1;
    for (int round = 0; round < kRounds; ++round) {
      const int shift = round == 1 ? 21 : round == 2 ? 10 : 0;
      const std::uint32_t digits = round == 3 ? 0x3ff : 0x7ff;
      clear();
      for (int i = span.begin + lane(); i < span.end; i += kWarp) {
        const Item item = item_at(i);
        const int own = bucket_of(item.distance);
        if (round == 0) {
          add(own, item.mass);
        } else if (own == distance && ((item.key ^ prefix) & known) == 0) {
          add(static_cast<int>(item.key >> shift & digits), item.mass);
        }
      }
      const Found found = locate_bucket(part);
      part = found.left;
      if (round == 0) {
        distance = found.at;
      } else {
        prefix |= static_cast<std::uint32_t>(found.at) << shift;
        known |= digits << shift;
      }
    }
    return prefix;
  }

 private:
  static constexpr int kPerLane = 4;
  static constexpr int kLast = kWarp * kPerLane;  // elements that one warp looks at in a step

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  static __device__ __forceinline__ void arrive() { cluster_arrive(); }
  static __device__ __forceinline__ void wait() { cluster_wait(); }
  static __device__ __forceinline__ void store(std::uint64_t& own, int cta, std::uint64_t value) {
    const std::uint32_t address = map_to_rank(shared_address(&own), cta);
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address), "l"(value) : "memory");
  }
  static __device__ __forceinline__ std::uint64_t load(const std::uint64_t& own, int cta) {
    const std::uint32_t address = map_to_rank(shared_address(&own), cta);
    std::uint64_t value;
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(value) : "r"(address) : "memory");
    return value;
  }
#else  // one CTA a row
  static __device__ __forceinline__ void arrive() {}
  static __device__ __forceinline__ void wait() {}
  static __device__ __forceinline__ void store(std::uint64_t& own, int, std::uint64_t value) {
    own = value;
  }
  static __device__ __forceinline__ std::uint64_t load(const std::uint64_t& own, int) {
    return own;
  }
#endif

  static __device__ __forceinline__ int shared_out(int elements) {
    return divide_up(divide_up(elements, kWarps), kWarp) * kWarp;
  }
  static __device__ __forceinline__ Span piece(Span span, int share, int at) {
    const int begin = min(span.begin + at * share, span.end);
    return {begin, min(begin + share, span.end)};
  }
  // A memory of sums is written again by the call after the next, before which all have read it.
  __device__ __forceinline__ const std::uint64_t* of_warp() const { return memory_.of_warp[turn_]; }
  __device__ __forceinline__ void leave_of_warp(std::uint64_t value) {
    turn_ ^= 1;
    if (lane() == 0) memory_.of_warp[turn_][warp()] = value;
    __syncthreads();
  }
  // Each CTA's number in the lane of its rank, 0 in the lanes behind.
  __device__ __forceinline__ std::uint64_t gathered(std::uint64_t own) {
    round_ ^= 1;
    if (static_cast<int>(threadIdx.x) < ctas_)
      store(memory_.of_cta[round_][rank_], threadIdx.x, own);
    sync();
    return of_cta();
  }
  __device__ __forceinline__ std::uint64_t of_cta() const {
    return lane() < ctas_ ? memory_.of_cta[round_][lane()] : 0;
  }

  // The lane, below `lanes`, whose number is the first with which the running sum passes `part`.
  static __device__ __forceinline__ Found over_lanes(std::uint64_t own, std::uint64_t part,
                                                     int lanes) {
    std::uint64_t running = own;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const std::uint64_t before = __shfl_up_sync(kAllLanes, running, offset);
      if (lane() >= offset) running += before;
    }
    const unsigned passed = __ballot_sync(kAllLanes, running > part);
    const int at = min(passed == 0 ? kWarp : __ffs(static_cast<int>(passed)) - 1, lanes - 1);
    return {at, part - __shfl_sync(kAllLanes, running - own, at)};
  }
  // To the piece of a warp.
  __device__ __forceinline__ void narrow(Span& span, int share, std::uint64_t& part) const {
    const Found found = over_lanes(lane() < kWarps ? of_warp()[lane()] : 0, part, kWarps);
    span = piece(span, share, found.at);
    part = found.left;
  }
  // Every warp finds it.
  template <class NumberAt>
  static __device__ __forceinline__ Found locate_last(Span span, std::uint64_t part,
                                                      NumberAt number_at) {
    const int begin = span.begin + lane() * kPerLane;
    std::uint64_t own[kPerLane];
    std::uint64_t sum = 0;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      own[k] = begin + k < span.end ? number_at(begin + k) : 0;
      sum += own[k];
    }
    const Found of_lane = over_lanes(sum, part, kWarp);
    Found found{begin, of_lane.left};
    bool walks = true;
#pragma unroll
    for (int k = 0; k + 1 < kPerLane; ++k) {
      walks = walks && found.left >= own[k];
      if (walks) found = {found.at + 1, found.left - own[k]};
    }
    return {__shfl_sync(kAllLanes, found.at, of_lane.at),
            __shfl_sync(kAllLanes, found.left, of_lane.at)};
  }

  // ---- selection

  // 48 buckets for each power of two that weights differ by, as far as they are not 0.
  static __device__ __forceinline__ int bucket_of(float distance) {
    return min(static_cast<int>(distance * 48.0f), kBuckets - 1);
  }
  __device__ __forceinline__ void clear() {
    for (int i = threadIdx.x; i < kBuckets; i += kThreads) memory_.mass[i] = 0;
    __syncthreads();
  }
  // Shared memory adds words of 32 bits.
  __device__ __forceinline__ void add(int bucket, std::uint64_t mass) {
    auto* const words = reinterpret_cast<std::uint32_t*>(&memory_.mass[bucket]);
    const auto low = static_cast<std::uint32_t>(mass);
    auto high = static_cast<std::uint32_t>(mass >> 32);
    if (low != 0 && atomicAdd(words, low) + low < low) ++high;  // the carry
    if (high != 0) atomicAdd(words + 1, high);
  }
  // The bucket at which the running sum of masses passes `part`. Each CTA adds up, over all CTAs, a
  // share of the buckets.
  __device__ __forceinline__ Found locate_bucket(std::uint64_t part) {
    sync();
    const int share = kBuckets / ctas_;
    std::uint64_t own = 0;
    for (int i = threadIdx.x; i < share; i += kThreads) {
      std::uint64_t total = 0;
      for (int cta = 0; cta < ctas_; ++cta) total += load(memory_.mass[rank_ * share + i], cta);
      memory_.total[i] = total;
      own += total;
    }
    sum(own);
    const Found cta = ctas_ == 1 ? Found{0, part} : over_lanes(of_cta(), part, ctas_);
    const Found found =
        locate({0, share}, cta.left, [&](int i) { return load(memory_.total[i], cta.at); });
    return {cta.at * share + found.at, found.left};
  }

  GroupMemory& memory_;
  int ctas_;
  int rank_;
  int turn_ = 0;
  int round_ = 0;
};

}  // namespace transformer_kernels::cuda::sampling
