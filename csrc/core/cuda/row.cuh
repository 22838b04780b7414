// SPDX-License-Identifier: MIT
// One-shot row kernels: a group of threads (of one CTA, or of a cluster) meets each row once.
//
// Where the architecture has it, one bulk copy brings the row, or this CTA's slice of it, to shared
// memory: many small CTAs then keep 64 KB and more in flight on each SM without holding registers.
// Thread t of a group owns the packs t, t + threads, t + 2 threads, ... of its slice, in every pass
// and in every tensor, so that passes over shared memory need no barrier between them.
#pragma once

#include "core/cuda/bulk_span.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/row_plan.h"

namespace transformer_kernels::cuda {

// Partial results on their way between the warps of a group and the CTAs of a cluster.
template <class Plan, class Partial>
struct RowScratch {
  Partial of_warp[Plan::plan.rows][Plan::plan.stack][Plan::plan.warps()];
  Partial of_cta[Plan::plan.stack][Plan::plan.cluster];
  std::uint64_t exchanged;
  std::uint64_t arrived[Plan::plan.rows];
};

// The thread's place in its row, and the packs that it owns.
template <class Plan, class T>
struct Row {
  static constexpr int kPackSize = pack_size(Plan::plan, sizeof(T));
  static constexpr int kThreads = Plan::plan.threads;
  static constexpr int kWarps = Plan::plan.warps();
  // A row of more than 2^31 packs would need 64-bit pack numbers: only the looping plans meet one.
  using Index = std::conditional_t<Plan::plan.packs == 0 && !Plan::plan.bulk, std::int64_t, int>;

  static constexpr int kStack = Plan::plan.stack;
  static constexpr bool kShifted = Plan::plan.shifted;
  static_assert(!kShifted || (Plan::plan.wide && kStack == 1));

  int group;           // of threads, in the CTA
  int thread;          // in the group
  int rank;            // CTA in the cluster
  std::int64_t index;  // first of the group's kStack rows
  int count;           // of its rows that exist
  bool inside;         // there is one
  Index first;         // first pack of the slice
  Index packs;         // of the slice
  Index cols;          // of the row
  int phase;           // elements between the start of pack 0 and the row's: 0 but in shifted plans

  __device__ Row(std::int64_t rows, std::int64_t width)
      : group(Plan::plan.rows == 1 ? 0 : threadIdx.x / kThreads),
        thread(Plan::plan.rows == 1 ? threadIdx.x : threadIdx.x % kThreads),
        rank(Plan::plan.cluster == 1 ? 0 : blockIdx.x % Plan::plan.cluster),
        index(
            (static_cast<std::int64_t>(blockIdx.x / Plan::plan.cluster) * Plan::plan.rows + group) *
            kStack),
        count(kStack == 1 || index + kStack <= rows ? kStack : static_cast<int>(rows - index)),
        inside(Plan::plan.rows == 1 || index < rows),
        cols(static_cast<Index>(width)),
        phase(0) {
    cut();
  }

  // Moves the packs of a shifted plan to where the row lies, which starts at `start`.
  __device__ void align_to(const T* start) {
    if constexpr (kShifted) {
      phase = static_cast<int>(reinterpret_cast<std::uintptr_t>(start) % 16 / sizeof(T));
      cut();
    }
  }

  __device__ int warp() const { return thread / kWarp; }

  // The column from which column() counts.
  __device__ std::int64_t origin() const {
    return kShifted ? 0 : static_cast<std::int64_t>(first) * kPackSize;
  }
  // The column that a pack starts with; less than 0 where the pack starts before the row.
  __device__ Index column(Index pack) const {
    return kShifted ? (first + pack) * kPackSize - phase : pack * kPackSize;
  }
  // Whether the pack, or its k-th element, lies inside the row.
  __device__ bool holds(Index pack) const {
    return !kShifted || (column(pack) >= 0 && column(pack) + kPackSize <= cols);
  }
  __device__ bool holds(Index pack, int k) const {
    return !kShifted || (column(pack) + k >= 0 && column(pack) + k < cols);
  }

  // body(k) for each of the pack's elements that lies inside the row.
  template <class Body>
  __device__ __forceinline__ void for_each_element(Index pack, Body&& body) const {
    const bool all = holds(pack);
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) {
      if (all || holds(pack, k)) body(k);
    }
  }

  // Elements of the slice.
  __device__ Index elements() const {
    return kShifted ? columns_before(first + packs) - columns_before(first) : packs * kPackSize;
  }

  // Elements that warp `w` of the group owns in this slice.
  __device__ Index elements_of_warp(int w) const {
    const Index rounds = packs / kThreads;
    const Index rest = packs - rounds * kThreads;
    const Index own = (rounds * kWarp + clamp(rest - w * kWarp, kWarp)) * kPackSize;
    if constexpr (!kShifted) return own;
    if (packs == 0) return 0;
    const bool has_first = first == 0 && w == 0;
    const bool has_last = (packs - 1) % kThreads / kWarp == w;
    const Index behind = (first + packs) * kPackSize - phase - cols;
    return own - (has_first ? phase : 0) - (has_last && behind > 0 ? behind : 0);
  }

  // Elements that CTA `r` of the cluster owns.
  __device__ Index elements_of_cta(int r) const {
    const Index slice = slice_of_row();
    if constexpr (kShifted) return columns_before((r + 1) * slice) - columns_before(r * slice);
    return clamp(packs_of_row() - r * slice, slice) * kPackSize;
  }

  // body(slot, pack) for each pack of this thread; `slot` numbers them from 0 and is a constant
  // wherever the plan keeps packs in registers.
  template <class Body>
  __device__ __forceinline__ void for_each_pack(Body&& body) const {
    if constexpr (Plan::plan.packs > 0) {
#pragma unroll
      for (int slot = 0; slot < Plan::plan.packs; ++slot) {
        const Index pack = thread + slot * kThreads;
        if (pack < packs) body(slot, pack);
      }
    } else {
#pragma unroll 2
      for (Index pack = thread; pack < packs; pack += kThreads) body(0, pack);
    }
  }

  // use(slot, pack, read(pack)) for each pack of this thread, in batches of kBatch, of which `slot`
  // is the constant place: all reads of a batch are under way before the first one is used. Where
  // the plan keeps packs in registers, they are the one batch.
  template <int kBatch, class Read, class Use>
  __device__ __forceinline__ void for_each_batch(Read&& read, Use&& use) const {
    constexpr bool kOnce = Plan::plan.packs > 0;
    constexpr int kSlots = kOnce ? Plan::plan.packs : kBatch;
    Index start = thread;
    do {
      decltype(read(start)) value[kSlots];
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const Index pack = start + slot * kThreads;
        if (pack < packs) value[slot] = read(pack);
      }
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const Index pack = start + slot * kThreads;
        if (pack < packs) use(slot, pack, value[slot]);
      }
      start += kSlots * kThreads;
    } while (!kOnce && start < packs);
  }

  __device__ __forceinline__ void sync_group() const {
    if constexpr (kThreads == kWarp) {
      __syncwarp();
    } else if constexpr (Plan::plan.rows == 1) {
      __syncthreads();
    } else {
      named_barrier(1 + group, kThreads);
    }
  }

 private:
  __device__ Index packs_of_row() const {
    if constexpr (!kShifted) return cols / kPackSize;
    return cols > 0 ? (cols + phase + kPackSize - 1) / kPackSize : 0;
  }

  __device__ Index slice_of_row() const {
    return (packs_of_row() + Plan::plan.cluster - 1) / Plan::plan.cluster;
  }

  // Takes this CTA's slice of the row.
  __device__ void cut() {
    first = Plan::plan.cluster == 1 ? 0 : rank * slice_of_row();
    packs =
        Plan::plan.cluster == 1 ? packs_of_row() : clamp(packs_of_row() - first, slice_of_row());
  }

  // Columns of the row in front of its pack `pack`.
  __device__ Index columns_before(Index pack) const {
    return clamp(pack * kPackSize - phase, cols);
  }

  static __device__ Index clamp(Index value, Index high) {
    return value < 0 ? 0 : value < high ? value : high;
  }
};

// A pack of the row that starts at `start`, with zeros for elements outside the row.
template <class P, class Plan, class T>
__device__ __forceinline__ typename P::Raw load_pack(const Row<Plan, T>& row, const T* start,
                                                     typename Row<Plan, T>::Index pack) {
  if (row.holds(pack)) return P::load(start + row.column(pack));
  alignas(16) T element[P::size] = {};
  row.for_each_element(pack, [&](int k) { element[k] = start[row.column(pack) + k]; });
  return reinterpret_cast<const typename P::Raw&>(element);
}

// load_pack() of a pack that lies in shared memory.
template <class P, class Plan, class T>
__device__ __forceinline__ uint4 load_staged(const Row<Plan, T>& row, std::uint32_t address,
                                             typename Row<Plan, T>::Index pack) {
  uint4 raw = load_shared(address);
  if (!row.holds(pack)) {
    T* const element = reinterpret_cast<T*>(&raw);
#pragma unroll
    for (int k = 0; k < P::size; ++k) {
      if (!row.holds(pack, k)) element[k] = T{};
    }
  }
  return raw;
}

// load_pack() of memory that this thread has written before.
template <class P, class Plan, class T>
__device__ __forceinline__ typename P::Raw reload_pack(const Row<Plan, T>& row, const T* start,
                                                       typename Row<Plan, T>::Index pack) {
  if (row.holds(pack)) {
    return *reinterpret_cast<const typename P::Raw*>(start + row.column(pack));
  }
  alignas(16) T element[P::size] = {};
  row.for_each_element(pack, [&](int k) { element[k] = start[row.column(pack) + k]; });
  return reinterpret_cast<const typename P::Raw&>(element);
}

template <class P, class Plan, class T>
__device__ __forceinline__ void store_pack(const Row<Plan, T>& row, T* start,
                                           typename Row<Plan, T>::Index pack,
                                           const typename P::Raw& raw) {
  if (row.holds(pack)) return P::store(start + row.column(pack), raw);
  const T* const element = reinterpret_cast<const T*>(&raw);
  row.for_each_element(pack, [&](int k) { start[row.column(pack) + k] = element[k]; });
}

// A slice's place in shared memory: that of row `r` of the group's stack, of tensor `tensor`.
template <class Plan, class T>
__device__ __forceinline__ std::uint32_t stage_of(const Row<Plan, T>& row, std::int64_t cols,
                                                  int tensor, int tensors, int r = 0) {
  extern __shared__ __align__(128) unsigned char stage[];
  constexpr RowPlan kPlan = Plan::plan;
  const int slice = static_cast<int>(slice_packs(kPlan, cols, sizeof(T)));
  const int place = (row.group * Plan::plan.stack + r) * tensors + tensor;
  return shared_address(stage) + place * slice * 16;
}

// One operand: its memory at the group's first row, the way to the next row, and all of it.
template <class T>
struct RowSource {
  const T* first;
  std::int64_t stride;
  Extent<T> extent;

  template <class Plan>
  __device__ RowSource(const Row<Plan, T>& row, const void* matrix, std::int64_t row_stride,
                       std::int64_t rows, std::int64_t cols)
      : first(static_cast<const T*>(matrix) + row.index * row_stride),
        stride(row_stride),
        extent(matrix, row_stride, rows, cols) {}
};

// The packs that a shifted plan's slice of a source lies in.
template <class Plan, class T>
__device__ BulkSpan slice_span(const Row<Plan, T>& row, std::int64_t cols,
                               const RowSource<T>& source, int tensor, int tensors) {
  const std::uintptr_t begin =
      reinterpret_cast<std::uintptr_t>(source.first) / 16 * 16 + row.first * 16;
  return bulk_span(source.extent, begin, begin + row.packs * 16,
                   stage_of(row, cols, tensor, tensors));
}

// Starts the bulk copies of this group's slices of each source.
template <class Plan, class T, class Partial, class... Sources>
__device__ __forceinline__ void fetch_rows(const Row<Plan, T>& row,
                                           RowScratch<Plan, Partial>& scratch, std::int64_t cols,
                                           Sources... sources) {
#if __CUDA_ARCH__ >= 900
  constexpr int kSources = sizeof...(sources);
  const std::uint32_t barrier = shared_address(&scratch.arrived[row.group]);
  if (row.thread == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    const std::uint32_t bytes = static_cast<std::uint32_t>(row.packs) * 16;
    if constexpr (Plan::plan.shifted) {
      if (row.inside) {
        int tensor = 0;
        const BulkSpan spans[] = {slice_span(row, cols, sources, tensor++, kSources)...};
        load_spans(spans, barrier);
      }
    } else if (row.inside) {
      mbarrier_arrive_expect(barrier, bytes * kSources * row.count);
      for (int r = 0; r < row.count && bytes > 0; ++r) {
        int tensor = 0;
        (bulk_load(stage_of(row, cols, tensor++, kSources, r),
                   sources.first + r * sources.stride + row.origin(), bytes, barrier),
         ...);
      }
    }
  }
  row.sync_group();
#endif
}

template <class Plan, class T, class Partial>
__device__ __forceinline__ void wait_for_row(const Row<Plan, T>& row,
                                             RowScratch<Plan, Partial>& scratch) {
#if __CUDA_ARCH__ >= 900
  if (row.inside) mbarrier_wait(shared_address(&scratch.arrived[row.group]), 0);
#endif
}

// A cluster's CTAs must all run, and their barriers stand, before one writes to another. Split, so
// that the wait hides behind the row's arrival.
template <class Plan, class Partial>
__device__ __forceinline__ void announce_to_cluster(RowScratch<Plan, Partial>& scratch) {
#if __CUDA_ARCH__ >= 900
  if constexpr (Plan::plan.cluster > 1) {
    if (threadIdx.x == 0) {
      const std::uint32_t barrier = shared_address(&scratch.exchanged);
      mbarrier_init(barrier, 1);
      fence_mbarrier_init();
    }
    __syncwarp();
    cluster_arrive();
  }
#endif
}

// Publishes this warp's partial results (the same in all its lanes), one a row of the stack. Behind
// it scratch.of_warp[group][r] holds those of all warps of the group. Once a kernel.
template <class Plan, class T, class Partial>
__device__ __forceinline__ void share_stack_in_group(const Row<Plan, T>& row,
                                                     RowScratch<Plan, Partial>& scratch,
                                                     const Partial* partials) {
  if (row.thread % kWarp == 0) {
#pragma unroll
    for (int r = 0; r < Plan::plan.stack; ++r) {
      scratch.of_warp[row.group][r][row.warp()] = partials[r];
    }
  }
  row.sync_group();
}

// Publishes this CTA's partial results (the same in all its threads). Behind it scratch.of_cta[r]
// holds those of all CTAs of the cluster. Once a kernel, after announce_to_cluster().
template <class Plan, class T, class Partial>
__device__ __forceinline__ void share_stack_in_cluster(const Row<Plan, T>& row,
                                                       RowScratch<Plan, Partial>& scratch,
                                                       const Partial* partials) {
#if __CUDA_ARCH__ >= 900
  using Message = std::conditional_t<sizeof(Partial) == sizeof(float4), float4, float2>;
  static_assert(sizeof(Partial) == sizeof(Message));
  cluster_wait();
  const std::uint32_t barrier = shared_address(&scratch.exchanged);
  if (row.thread == 0) mbarrier_arrive_expect(barrier, sizeof(scratch.of_cta));
  if (row.thread < Plan::plan.cluster) {
#pragma unroll
    for (int r = 0; r < Plan::plan.stack; ++r) {
      const std::uint32_t slot = shared_address(&scratch.of_cta[r][row.rank]);
      store_cluster_async(map_to_rank(slot, row.thread),
                          reinterpret_cast<const Message&>(partials[r]),
                          map_to_rank(barrier, row.thread));
    }
  }
  __syncwarp();
  mbarrier_wait_cluster(barrier, 0);
#endif
}

// Shares the partial result of one row, and returns the results of all warps, or CTAs.
template <class Plan, class T, class Partial>
__device__ __forceinline__ const Partial* share_in_group(const Row<Plan, T>& row,
                                                         RowScratch<Plan, Partial>& scratch,
                                                         const Partial& partial) {
  share_stack_in_group(row, scratch, &partial);
  return scratch.of_warp[row.group][0];
}

template <class Plan, class T, class Partial>
__device__ __forceinline__ const Partial* share_in_cluster(const Row<Plan, T>& row,
                                                           RowScratch<Plan, Partial>& scratch,
                                                           const Partial& partial) {
  share_stack_in_cluster(row, scratch, &partial);
  return scratch.of_cta[0];
}

}  // namespace transformer_kernels::cuda
