// SPDX-License-Identifier: MIT
// The stable counting sort of assignments by expert, without the host and without atomics between
// CTAs: warps count their runs of assignments, the counts of each expert are summed from run to
// run, and the warps walk through their runs again and number what they find.
#include <algorithm>

#include "core/cuda/launch.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/scratch.h"
#include "core/rounding.h"
#include "moe/dispatch/problem.h"

namespace transformer_kernels::cuda {
namespace {

constexpr int kRunAssignments = 256;  // of a warp
constexpr int kScanWarps = 32;
constexpr int kMostKeysOfFourWarps = 2048;

struct SortLaunch {
  SortProblem problem;
  std::int32_t* counts;  // [runs][keys], then the rank of each run's first assignment
  std::int32_t* totals;  // [keys]
  int keys;              // experts, and one for indices that are none
  int runs;
  int warps;  // of a CTA
};

// Calls body(assignment, key, whether it is one) for 32 assignments at a time.
template <class Body>
__device__ __forceinline__ void for_run(const SortLaunch& s, int run, Body&& body) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const auto count = static_cast<std::uint32_t>(s.problem.assignments());
  const std::uint32_t first = static_cast<std::uint32_t>(run) * kRunAssignments;
  for (std::uint32_t i = first; i < min(first + kRunAssignments, count); i += kWarp) {
    const bool is_one = i + lane < count;
    body(i + lane, is_one ? s.problem.expert(s.problem.indices[i + lane]) : -1, is_one);
  }
}

__global__ void count_assignments_kernel(const __grid_constant__ SortLaunch s) {
  extern __shared__ std::int32_t shared[];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int run = static_cast<int>(blockIdx.x) * s.warps + warp;
  if (run >= s.runs) return;
  std::int32_t* const own = shared + warp * s.keys;
  for (int e = lane; e < s.keys; e += kWarp) own[e] = 0;
  __syncwarp();
  for_run(s, run, [&](std::uint32_t, int key, bool is_one) {
    if (is_one) atomicAdd(&own[key], 1);
  });
  __syncwarp();
  for (int e = lane; e < s.keys; e += kWarp) s.counts[std::int64_t{run} * s.keys + e] = own[e];
}

// A CTA has 32 keys; each of its warps has a part of the runs.
__global__ void __launch_bounds__(kScanWarps* kWarp)
    scan_counts_kernel(const __grid_constant__ SortLaunch s) {
  __shared__ std::int32_t sums[kScanWarps][kWarp];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int key = static_cast<int>(blockIdx.x) * kWarp + lane;
  const int part = (s.runs + kScanWarps - 1) / kScanWarps;
  const int begin = warp * part;
  const int end = key < s.keys ? min(begin + part, s.runs) : 0;
  std::int32_t sum = 0;
#pragma unroll 8
  for (int run = begin; run < end; ++run) sum += s.counts[std::int64_t{run} * s.keys + key];
  sums[warp][lane] = sum;
  __syncthreads();
  std::int32_t before = 0;
  std::int32_t total = 0;
#pragma unroll
  for (int w = 0; w < kScanWarps; ++w) {
    before += w < warp ? sums[w][lane] : 0;
    total += sums[w][lane];
  }
  if (key < s.keys && warp == 0) s.totals[key] = total;
#pragma unroll 8
  for (int run = begin; run < end; ++run) {
    std::int32_t& count = s.counts[std::int64_t{run} * s.keys + key];
    const std::int32_t own = count;
    count = before;
    before += own;
  }
}

// The sum over the lower lanes, and over all.
struct LaneScan {
  std::int32_t before;
  std::int32_t total;

  __device__ __forceinline__ explicit LaneScan(std::int32_t own) {
    std::int32_t sum = own;
    const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const std::int32_t below = __shfl_up_sync(kAllLanes, sum, offset);
      sum += lane >= offset ? below : 0;
    }
    before = sum - own;
    total = __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
};

// Fills in where the kept assignments of each expert begin, and where its dropped ones do. One warp
// runs it.
__device__ void find_starts(const SortLaunch& s, std::int32_t* kept, std::int32_t* dropped) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const auto capacity = static_cast<std::int32_t>(s.problem.capacity);
  const auto kept_of = [&](int key) {
    return key < s.problem.experts ? min(s.totals[key], capacity) : 0;
  };
  std::int32_t next = 0;
  for (int first = 0; first < s.keys; first += kWarp) {
    const int key = first + lane;
    const LaneScan scan(key < s.keys ? kept_of(key) : 0);
    if (key < s.keys) kept[key] = next + scan.before;
    next += scan.total;
  }
  for (int first = 0; first < s.keys; first += kWarp) {
    const int key = first + lane;
    const LaneScan scan(key < s.keys ? s.totals[key] - kept_of(key) : 0);
    if (key < s.keys) dropped[key] = next + scan.before;
    next += scan.total;
  }
}

__global__ void place_assignments_kernel(const __grid_constant__ SortLaunch s) {
  extern __shared__ std::int32_t shared[];
  const SortProblem& p = s.problem;
  std::int32_t* const kept = shared;
  std::int32_t* const dropped = kept + s.keys;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  if (warp == 0) find_starts(s, kept, dropped);
  __syncthreads();
  if (blockIdx.x == 0) {
    for (int e = static_cast<int>(threadIdx.x); e < s.keys; e += static_cast<int>(blockDim.x)) {
      p.offsets[e] = kept[e];
    }
  }
  const int run = static_cast<int>(blockIdx.x) * s.warps + warp;
  if (run >= s.runs) return;
  std::int32_t* const next = dropped + s.keys + warp * s.keys;  // the rank of an expert's next
  for (int e = lane; e < s.keys; e += kWarp) next[e] = s.counts[std::int64_t{run} * s.keys + e];
  __syncwarp();
  for_run(s, run, [&](std::uint32_t i, int key, bool is_one) {
    const unsigned peers = __match_any_sync(kAllLanes, key);
    const int above = __popc(peers & ((1u << lane) - 1));
    const std::int32_t rank = is_one ? next[key] + above : 0;
    __syncwarp();
    if (is_one && above == 0) next[key] = rank + __popc(peers);
    __syncwarp();
    if (!is_one) return;
    const auto capacity = key < p.experts ? static_cast<std::int32_t>(p.capacity) : 0;
    const bool is_kept = rank < capacity;
    const std::int32_t at = is_kept ? kept[key] + rank : dropped[key] + rank - capacity;
    const auto assigned = static_cast<std::uint32_t>(p.assigned);
    p.token_of[at] = is_kept ? static_cast<std::int32_t>(i / assigned) : -1;
    p.places[i] = is_kept ? at : ~at;
  });
}

}  // namespace

void moe_sort(const Context& context, const SortProblem& p) {
  SortLaunch s{.problem = p, .keys = p.experts + 1};
  s.runs = static_cast<int>(divide_up(p.assignments(), kRunAssignments));
  s.warps = s.keys <= kMostKeysOfFourWarps ? 4 : 1;
  const Scratch scratch(p.op, context, (std::int64_t{s.runs} + 1) * s.keys * sizeof(std::int32_t));
  s.totals = scratch.as<std::int32_t>();
  s.counts = s.totals + s.keys;
  const LaunchShape by_run{.ctas = std::max<std::int64_t>(1, divide_up(s.runs, s.warps)),
                           .threads = s.warps * kWarp,
                           .shared_bytes = s.warps * s.keys * sizeof(std::int32_t)};
  if (s.runs > 0) launch(p.op, context, by_run, &count_assignments_kernel, s);
  launch(p.op, context, {.ctas = divide_up(s.keys, kWarp), .threads = kScanWarps * kWarp},
         &scan_counts_kernel, s);
  LaunchShape with_starts = by_run;
  with_starts.shared_bytes += 2 * s.keys * sizeof(std::int32_t);
  launch(p.op, context, with_starts, &place_assignments_kernel, s);
}

}  // namespace transformer_kernels::cuda
