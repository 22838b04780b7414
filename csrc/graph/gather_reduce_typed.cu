// SPDX-License-Identifier: MIT
#include <optional>
#include <type_traits>

#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "graph/sum_rows.cuh"

namespace transformer_kernels::cuda {
namespace {

constexpr std::size_t kAlignment = 256;  // of arrays in the memory

// Arrays for as many long segments as there can be, one after the other.
template <class A>
struct LongMemory {
  std::int64_t segments;
  std::int64_t pieces;
  std::int64_t pitch;
  bool places;

  std::size_t bytes() const { return fill(nullptr).second; }
  LongSegments<A> at(char* memory) const { return fill(memory).first; }

 private:
  std::pair<LongSegments<A>, std::size_t> fill(char* memory) const {
    std::size_t used = 0;
    const auto take = [&]<class E>(E*& array, std::int64_t count) {
      array = reinterpret_cast<E*>(memory + used);
      used += rounded_up(count * sizeof(E), kAlignment);
    };
    LongSegments<A> longs{};
    longs.pitch = pitch;
    take(longs.counts, 2);
    take(longs.segment, segments);
    take(longs.piece, pieces);
    take(longs.value, pieces * pitch);
    if (places) take(longs.place, pieces * pitch);
    return {longs, used};
  }
};

// CTAs of a kernel that learns on the device how much there is to do.
std::int64_t ctas_for(const Context& context, std::int64_t most) {
  constexpr std::int64_t kCtasPerProcessor = 8;
  return std::clamp<std::int64_t>(
      most, 1, kCtasPerProcessor * device_limits(context.device.index).processors);
}

// Rows of x as they lie, one for each place.
bool are_in_order(const ReduceProblem& p) {
  const Segments& s = p.segments;
  return !s.indices.present && !s.order.present && p.weight == nullptr && !p.degrees.present &&
         !p.chosen.present;
}

// The first kernel: all segments but long ones.
template <class T, int kSize, bool kLargest>
void launch_segments(const Context& context, ReduceLaunch<accumulate_t<T>> s) {
  const ReduceProblem& p = s.problem;
  const std::int64_t threads = p.segments.count * s.row.chunks << s.row.bits;
  auto kernel = &reduce_segments_kernel<T, kSize, kLargest>;
  if constexpr (!kLargest) {
    if (are_in_order(p)) {
      kernel = &sum_rows_kernel<T, kSize>;
      s.segments = segments_of_row(threads, device_limits(context.device.index).processors);
    }
  }
  const std::int64_t units = divide_up(p.segments.count, s.segments) * s.row.chunks;
  const LaunchShape shape{.ctas = divide_up(units << s.row.bits, kGraphThreads),
                          .threads = kGraphThreads};
  launch(p.op, context, shape, kernel, s);
}

template <class T, int kSize, bool kLargest>
void launch_reduce(const Context& context, const ReduceProblem& p) {
  using A = accumulate_t<T>;
  const RowLanes row = row_lanes(divide_up(p.cols, kSize));
  ReduceLaunch<A> s{p, row, {}};
  const std::int64_t edges = p.segments.edges;
  const bool may_be_long = edges > kLongSegment;
  std::optional<Scratch> scratch;
  if (may_be_long) {
    const LongMemory<A> memory{most_long_segments(edges), most_pieces(edges),
                               rounded_up(p.cols, kSize), kLargest};
    scratch.emplace(p.op, context, memory.bytes());
    s.longs = memory.at(scratch->template as<char>());
    check_cuda(p.op, cudaMemsetAsync(s.longs.counts, 0, 2 * sizeof(*s.longs.counts),
                                     static_cast<cudaStream_t>(context.stream)));
  }
  launch_segments<T, kSize, kLargest>(context, s);
  if (!may_be_long) return;
  LaunchShape shape{.threads = kGraphThreads, .after_previous = may_overlap_launches(context)};
  shape.ctas =
      ctas_for(context, divide_up(most_pieces(edges) * row.chunks << row.bits, kGraphThreads));
  launch(p.op, context, shape, &reduce_pieces_kernel<T, kSize, kLargest>, s);
  shape.ctas = ctas_for(context, most_long_segments(edges) * divide_up(p.cols, kMergeCols));
  launch(p.op, context, shape, &merge_pieces_kernel<T, kLargest>, s);
}

}  // namespace

template <class T>
void run_reduce(const Context& context, const ReduceProblem& p, bool packs) {
  dispatch_bool(p.largest, [&]<bool kLargest>() {
    if constexpr (!std::is_same_v<T, double>) {
      if (packs) return launch_reduce<T, 16 / sizeof(T), kLargest>(context, p);
    }
    launch_reduce<T, 1, kLargest>(context, p);
  });
}

template void run_reduce<TFK_TYPE>(const Context&, const ReduceProblem&, bool);

}  // namespace transformer_kernels::cuda
