// SPDX-License-Identifier: MIT
#include <type_traits>

#include "graph/edges.cuh"

namespace transformer_kernels::cuda {
namespace {

template <class T, int kSize, bool kOfSegment>
void launch_units(const Context& context, const EdgeProblem& p, std::int64_t units) {
  const std::int64_t cols = p.spread ? p.cols : p.cols / p.heads;
  const EdgeLaunch s{p, row_lanes(divide_up(cols, kSize)), units};
  const std::int64_t rows = units * (p.spread ? s.row.chunks : p.heads);
  const LaunchShape shape{.ctas = divide_up(rows << s.row.bits, kGraphThreads),
                          .threads = kGraphThreads,
                          .after_previous = may_overlap_launches(context)};
  const auto kernel = p.spread ? &edge_spread_kernel<T, kSize, kOfSegment>
                               : &edge_products_kernel<T, kSize, kOfSegment>;
  launch(p.op, context, shape, kernel, s);
}

template <class T, int kSize>
void launch_edges(const Context& context, const EdgeProblem& p) {
  if (p.segments.count > 0) launch_units<T, kSize, true>(context, p, p.segments.count);
  if (p.segments.edges <= kLongSegment || p.segments.count == 0) return;
  launch_units<T, kSize, false>(context, p, divide_up(p.segments.edges, kRunEdges));
}

}  // namespace

template <class T>
void run_edges(const Context& context, const EdgeProblem& p, bool packs) {
  if constexpr (!std::is_same_v<T, double>) {
    if (packs) return launch_edges<T, 16 / sizeof(T)>(context, p);
  }
  launch_edges<T, 1>(context, p);
}

template void run_edges<TFK_TYPE>(const Context&, const EdgeProblem&, bool);

}  // namespace transformer_kernels::cuda
