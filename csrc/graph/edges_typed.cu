// SPDX-License-Identifier: MIT
#include <type_traits>

#include "graph/edges.cuh"

namespace transformer_kernels::cuda {
namespace {

template <class T, int kSize>
void launch_edges(const Context& context, const EdgeProblem& p) {
  EdgeLaunch s{.problem = p, .heads = p.spread ? 1 : p.heads};
  if (p.segments.across_rows == 0) s.problem.b = p.a;  // a row that can be read and not used
  s.item_cols = p.cols / s.heads;
  s.row = row_lanes(divide_up(s.item_cols, kSize));
  const std::int64_t items = p.segments.edges * s.heads;
  s.items = run_items(items, device_limits(context.device.index).processors);
  const LaunchShape shape{.ctas = divide_up(items, s.items),
                          .threads = kRunThreads,
                          .after_previous = may_overlap_launches(context)};
  const auto kernel = p.spread ? &edge_spread_kernel<T, kSize> : &edge_products_kernel<T, kSize>;
  launch(p.op, context, shape, kernel, s);
}

}  // namespace

template <class T>
void run_edges(const Context& context, const EdgeProblem& p, bool packs) {
  if (p.segments.count == 0) return;
  if constexpr (!std::is_same_v<T, double>) {
    if (packs) return launch_edges<T, 16 / sizeof(T)>(context, p);
  }
  launch_edges<T, 1>(context, p);
}

template void run_edges<TFK_TYPE>(const Context&, const EdgeProblem&, bool);

}  // namespace transformer_kernels::cuda
