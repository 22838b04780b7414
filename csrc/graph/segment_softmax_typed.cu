// SPDX-License-Identifier: MIT
#include <optional>
#include <type_traits>

#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "graph/segment_softmax.cuh"

namespace transformer_kernels::cuda {
namespace {

template <class T, int kSize, bool kBackward, bool kOrdered>
void launch_softmax(const Context& context, SoftmaxLaunch s) {
  const Segments& segments = s.problem.segments;
  s.lanes = softmax_lanes(segments.edges, segments.count, divide_up(s.problem.cols, kSize));
  const LaunchShape shape{.ctas = divide_up(segments.count << s.lanes.bits, kGraphThreads),
                          .threads = kGraphThreads};
  launch(s.problem.op, context, shape, &segment_softmax_kernel<T, kSize, kBackward, kOrdered>, s);
}

// Packs are for edges without an order.
template <class T, bool kBackward>
void launch_softmax(const Context& context, const SoftmaxLaunch& s, bool packs) {
  if (s.problem.segments.order.present) return launch_softmax<T, 1, kBackward, true>(context, s);
  if constexpr (!std::is_same_v<T, double>) {
    if (packs) return launch_softmax<T, 16 / sizeof(T), kBackward, false>(context, s);
  }
  launch_softmax<T, 1, kBackward, false>(context, s);
}

}  // namespace

template <class T>
void run_softmax(const Context& context, const SegmentSoftmaxProblem& p, bool packs) {
  const Segments& segments = p.segments;
  SoftmaxLaunch s{p, {}, softmax_lanes(segments.edges, segments.count, p.cols), {}};
  const std::int64_t most_long = segments.edges / (kLongSoftmax + 1);
  std::optional<Scratch> scratch;
  if (most_long > 0) {
    scratch.emplace(p.op, context, (most_long + 1) * sizeof(std::int64_t));
    s.longs = {scratch->as<unsigned long long>(), scratch->as<std::int64_t>() + 1};
    check_cuda(p.op, cudaMemsetAsync(s.longs.count, 0, sizeof(*s.longs.count),
                                     static_cast<cudaStream_t>(context.stream)));
  }
  dispatch_bool(p.dy.data != nullptr, [&]<bool kBackward>() {
    launch_softmax<T, kBackward>(context, s, packs);
    if (most_long == 0) return;
    const std::int64_t processors = device_limits(context.device.index).processors;
    const LaunchShape shape{.ctas = std::min(most_long, 2 * processors),
                            .threads = kLongSoftmaxThreads,
                            .after_previous = may_overlap_launches(context)};
    launch(p.op, context, shape, &long_segment_softmax_kernel<T, kBackward>, s);
  });
}

template void run_softmax<TFK_TYPE>(const Context&, const SegmentSoftmaxProblem&, bool);

}  // namespace transformer_kernels::cuda
