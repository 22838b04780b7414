// SPDX-License-Identifier: MIT
// Persistent row kernels: one CTA (or cluster) an SM walks over many rows. A group of warps takes
// one row at a time. Each warp owns the same 32 * packs packs of every row of its group, and a ring
// of stages in shared memory that it fills itself by bulk copies, so no warp waits for another's
// loads. Only sums over a row cross warps.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <tuple>

#include "core/cuda/bulk_span.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/ring_plan.h"
#include "core/rows.h"

namespace transformer_kernels::cuda {

// Who this thread is, which packs of a row are its own, and which rows its group walks over.
template <class Plan>
struct RingWarp {
  static constexpr RingPlan kPlan = Plan::plan;

  int lane;
  int cta_warp;
  int group;         // of warps, in the CTA
  int warp;          // in the group
  int rank;          // CTA in the cluster
  int cluster;       // in the grid
  int clusters;      // of the grid
  int walkers;       // groups that share out the rows
  int first;         // pack of the row, the warp's
  int packs;         // of the row, the warp's
  std::int64_t row;  // first one
  int rows;          // that the group takes, each `walkers` behind the one before

  __device__ RingWarp(std::int64_t all_rows, int row_packs)
      : lane(threadIdx.x % kWarp),
        cta_warp(threadIdx.x / kWarp),
        group(cta_warp / kPlan.warps),
        warp(cta_warp % kPlan.warps),
        rank(kPlan.cluster > 1 ? static_cast<int>(cluster_rank()) : 0),
        cluster(blockIdx.x / kPlan.cluster),
        clusters(gridDim.x / kPlan.cluster),
        walkers(clusters * kPlan.groups),
        first((rank * kPlan.warps + warp) * kPlan.packs * kWarp),
        packs(max(0, min(row_packs - first, kPlan.packs * kWarp))),
        row(static_cast<std::int64_t>(group) * clusters + cluster),
        rows(row < all_rows ? static_cast<int>((all_rows - 1 - row) / walkers) + 1 : 0) {}

  // The warp's share of its first row.
  template <class T>
  __device__ T* begin_of(const Rows& matrix) const {
    return static_cast<T*>(matrix.data) + row * matrix.stride +
           first * (16 / static_cast<int>(sizeof(T)));
  }

  // Whether the thread's pack `slot`, first + lane + slot * 32 of the row, lies inside the row (its
  // start does, in a shifted plan).
  __device__ bool owns(int slot) const { return lane + slot * kWarp < packs; }

  // Elements of a row of `cols` that the warp owns.
  template <class T>
  __device__ int elements(int cols) const {
    constexpr int kSize = 16 / static_cast<int>(sizeof(T));
    return max(0, min(cols - first * kSize, packs * kSize));
  }
};

// The stages of one warp, each with its share of a row of kTensors operands.
template <class Plan, class T, int kTensors>
struct RowRing {
  static constexpr bool kShifted = Plan::plan.shifted;
  static constexpr int kSegment = Plan::plan.segment_bytes();
  static constexpr int kStage = kSegment * kTensors;

  int stages;
  std::uint32_t ring;  // this lane's first pack of stage 0
  std::uint32_t full;  // barriers
  const T* next[kTensors];
  std::array<Rows, kTensors> operands;
  int left;  // rows that are still to be fetched
  int stage = 0;
  std::uint32_t parity = 0;
  // Shifted plans: elements of a row that the warp owns, how far behind a multiple of 16 bytes they
  // start in the row at hand, and where the operands lie.
  int elements;
  int shift[kTensors];
  Extent<T> extent[kTensors];

  // `shared` is the CTA's ring memory, `filled` its barriers, initialised.
  template <class Problem>
  __device__ RowRing(const RingWarp<Plan>& own, const Problem& p, int depth, std::uint32_t shared,
                     const std::uint64_t* filled, const std::array<Rows, kTensors>& tensors)
      : stages(depth),
        ring(shared + own.cta_warp * depth * kStage + own.lane * 16),
        full(shared_address(filled + own.cta_warp * Plan::plan.stages)),
        operands(tensors),
        left(own.rows),
        elements(own.template elements<T>(static_cast<int>(p.cols))) {
#pragma unroll
    for (int t = 0; t < kTensors; ++t) {
      next[t] = own.template begin_of<const T>(operands[t]);
      shift[t] = static_cast<int>(reinterpret_cast<std::uintptr_t>(next[t]) % 16);
      extent[t] = Extent<T>(operands[t].data, operands[t].stride, p.rows, p.cols);
    }
    for (int i = 0; i < depth; ++i) fetch(own, i);
  }

  __device__ __forceinline__ void fetch(const RingWarp<Plan>& own, int at) {
    if (own.lane == 0 && left > 0) {
      const std::uint32_t barrier = full + at * 8;
      const std::uint32_t place = ring + at * kStage;
      if constexpr (kShifted) {
        BulkSpan spans[kTensors];
#pragma unroll
        for (int t = 0; t < kTensors; ++t) spans[t] = span_of(t, place + t * kSegment);
        load_spans(spans, barrier);
      } else {
        const std::uint32_t bytes = own.packs * 16;
        mbarrier_arrive_expect(barrier, bytes * kTensors);
#pragma unroll
        for (int t = 0; t < kTensors; ++t) {
          if (bytes > 0) bulk_load(place + t * kSegment, next[t], bytes, barrier);
        }
      }
#pragma unroll
      for (int t = 0; t < kTensors; ++t) next[t] += own.walkers * operands[t].stride;
    }
    --left;
  }

  // Pack `slot` of this thread, of operand `t`, in the stage at hand.
  __device__ __forceinline__ uint4 load(std::uint32_t at, int t, int slot) const {
    const std::uint32_t address = at + t * kSegment + slot * kWarp * 16;
    const uint4 pack = load_shared(address);
    if constexpr (!kShifted) return pack;
    return shift_packs<sizeof(T)>(pack, load_shared(address + 16), shift[t]);
  }

  // The address of this thread's packs of the next row, once it is there.
  __device__ __forceinline__ std::uint32_t wait() const {
    mbarrier_wait(full + stage * 8, parity);
    return ring + stage * kStage;
  }

  // All lanes have read the stage: it may be filled again. Nothing but the fence keeps the copy
  // behind loads whose values no one has asked for yet: they may wait behind stores for longer than
  // a copy takes.
  __device__ __forceinline__ void refill(const RingWarp<Plan>& own) {
    fence_async_shared();
    __syncwarp();
    fetch(own, stage);
  }

  __device__ __forceinline__ void advance(const RingWarp<Plan>& own) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
    if constexpr (kShifted) {
#pragma unroll
      for (int t = 0; t < kTensors; ++t) {
        const auto step = static_cast<int>(own.walkers * operands[t].stride % 16);
        shift[t] = (shift[t] + step * static_cast<int>(sizeof(T))) % 16;
      }
    }
  }

 private:
  // The packs that the warp's share of the next row of operand `t` lies in.
  __device__ BulkSpan span_of(int t, std::uint32_t place) const {
    const auto first = reinterpret_cast<std::uintptr_t>(next[t]);
    if (elements == 0) return {place, first, 0};
    return bulk_span(extent[t], first / 16 * 16, (first + elements * sizeof(T) + 15) / 16 * 16,
                     place);
  }
};

// Stores a warp's share of a row, `elements` from `start` on, at any alignment: pack `slot` of each
// lane, slots in order, in aligned packs that a lane makes of its own elements and those of the
// pack before. `last` hands lane 31's pack on to lane 0's next one. All lanes take part.
template <class T>
__device__ __forceinline__ void store_shifted(T* start, int elements, int lane, int slot, uint4 raw,
                                              uint4& last) {
  constexpr int kSize = 16 / static_cast<int>(sizeof(T));
  const auto rotated = [&](std::uint32_t word) {
    return __shfl_sync(kAllLanes, word, (lane + kWarp - 1) % kWarp);
  };
  uint4 before = make_uint4(rotated(raw.x), rotated(raw.y), rotated(raw.z), rotated(raw.w));
  if (lane == 0) {
    const uint4 next = before;
    before = last;
    last = next;
  }
  const int shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(start) % 16);
  // Elements [first, first + kSize) lie in an aligned pack, and so do the kSize behind them, which
  // the next lane stores.
  const int own = (lane + slot * kWarp) * kSize;
  const int first = own - shift / static_cast<int>(sizeof(T));
  const bool whole = first >= 0 && first + kSize <= elements;
  const bool next_whole = first + 2 * kSize <= elements;
  if (whole) {
    const uint4 pack = shift == 0 ? raw : shift_packs<sizeof(T)>(before, raw, 16 - shift);
    store_global(start + first, pack);
  }
  if (!whole || !next_whole) {
    const T* const element = reinterpret_cast<const T*>(&raw);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const bool stored = own + k < first + kSize ? whole : next_whole;
      if (!stored && own + k < elements) start[own + k] = element[k];
    }
  }
}

// The exchange of a row's sums between the warps of its group and, where a cluster shares the row,
// between its CTAs. Sums are merged within each CTA first, so few messages leave it. There are two
// slots: a warp can publish row i + 1 while another still reads row i, and no more, because each
// row has a barrier.
//
// Sums defines Sums::Message, the sums that travel, and Sums::Share, the part of its warp's that a
// lane holds, and
//   publish(to, share, lane)           the warp writes its message
//   total(share)                       the warp's message in every lane
//   merge<kCount>(parts, first, span)  kCount messages as one, in every lane; the i-th stands for
//                                      the packs first + i * span and on
//   bits(message)                      the floats that store_cluster_async() takes
template <class Plan, class Sums>
struct RingExchange {
  using Message = typename Sums::Message;
  static constexpr int kWarps = Plan::plan.warps;
  static constexpr int kCluster = Plan::plan.cluster;
  static constexpr int kSpan = Plan::plan.packs * kWarp;  // packs of a row that a warp owns

  Message of_warp[kSumSlots][kWarps];
  Message of_cta[kSumSlots][kCluster];

  // The row's message in every lane. `arrived` are the cluster's barriers, one a slot; `row` counts
  // the rows of the group from 0.
  __device__ __forceinline__ Message over_row(const RingWarp<Plan>& own, int row,
                                              typename Sums::Share share, std::uint64_t* arrived,
                                              const Sums& sums) {
    if constexpr (kWarps * kCluster == 1) return sums.total(share);
    const int slot = row % kSumSlots;
    sums.publish(of_warp[slot][own.warp], share, own.lane);
    named_barrier(1 + own.group, kWarps * kWarp);
    const int first = own.rank * kWarps * kSpan;
    if constexpr (kCluster == 1) {
      return sums.template merge<kWarps>(of_warp[slot], first, kSpan);
    } else {
#if __CUDA_ARCH__ >= 900
      const std::uint32_t barrier = shared_address(&arrived[slot]);
      if (own.warp == 0) {
        if (own.lane == 0) mbarrier_arrive_expect(barrier, sizeof(of_cta[slot]));
        const Message message = sums.template merge<kWarps>(of_warp[slot], first, kSpan);
        if (own.lane < kCluster) {
          store_cluster_async(map_to_rank(shared_address(&of_cta[slot][own.rank]), own.lane),
                              sums.bits(message), map_to_rank(barrier, own.lane));
        }
      }
      mbarrier_wait_cluster(barrier, row / kSumSlots % 2);
#endif
      return sums.template merge<kCluster>(of_cta[slot], 0, kWarps * kSpan);
    }
  }
};

// How many clusters of a kernel the device keeps running at a time.
template <class Kernel>
int resident_clusters(const char* op, Kernel* kernel, const RingPlan& plan, int shared_bytes,
                      int device) {
  static std::mutex mutex;
  static std::map<std::tuple<const void*, int, int>, int> known;
  const std::lock_guard lock(mutex);
  const std::tuple key{reinterpret_cast<const void*>(kernel), device, shared_bytes};
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const auto bytes = static_cast<std::size_t>(shared_bytes);
  allow_attributes(op, kernel, {.cluster = plan.cluster, .shared_bytes = bytes}, device);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(plan.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.cluster));
  config.blockDim = dim3(static_cast<unsigned>(plan.threads()));
  config.dynamicSmemBytes = bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  check_cuda(op, cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  known.emplace(key, clusters);
  return clusters;
}

}  // namespace transformer_kernels::cuda
