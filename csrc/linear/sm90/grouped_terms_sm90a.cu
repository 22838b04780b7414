// SPDX-License-Identifier: MIT
// Gradients of the weights of groups of rows on Hopper: products whose terms are a group's rows.
#include "linear/sm90/gradient_writer.cuh"
#include "linear/sm90/grouped_launch.cuh"

namespace transformer_kernels::cuda {
namespace {

// Rows as terms, in boxes of 64 columns that end where a group does.
CUtensorMap map_of_terms(const GroupedGradient& p, const IndexedRows& rows, std::int64_t cols) {
  return encode_tensor_map(p.op,
                           ragged_layout(matrix_layout(p.dtype, rows.rows.data, cols, p.groups.rows,
                                                       rows.rows.stride, 64, 64)));
}

template <Gathered kGathered>
void launch_gradient(const Context& context, const GroupedGradient& p) {
  using Shape = GemmShape<Major::kOther, Major::kOther, kGroupRows, kGroupCols>;
  using Loader = GroupedTermsLoader<kGathered>;
  Loader loader{};
  if constexpr (kGathered != Gathered::kA) loader.a = map_of_terms(p, p.a, p.rows);
  if constexpr (kGathered != Gathered::kB) loader.b = map_of_terms(p, p.b, p.cols);
  if constexpr (kGathered == Gathered::kA) loader.gathered = gathered_rows(p.a, p.rows);
  if constexpr (kGathered == Gathered::kB) loader.gathered = gathered_rows(p.b, p.cols);
  const GroupedTerms tiles{p.groups.offsets,
                           static_cast<int>(p.groups.count),
                           {static_cast<int>(divide_up(p.rows, Shape::kRows)),
                            static_cast<int>(divide_up(p.cols, Shape::kCols))}};
  const DirectResults<GroupGradients> results{{.data = p.out.first.data,
                                               .group_step = p.out.step,
                                               .row_step = p.out.first.row_step,
                                               .is_wide = p.out_dtype == DType::kFloat32,
                                               .accumulates = p.accumulates},
                                              {static_cast<int>(p.rows), static_cast<int>(p.cols)}};
  dispatch_narrow(p.dtype,
                  [&]<class T>() { launch_gemm<T, Shape>(p.op, context, loader, tiles, results); });
}

// The gradient whose results are the transposes of these.
GroupedGradient transposed(const GroupedGradient& p) {
  GroupedGradient other = p;
  std::swap(other.rows, other.cols);
  std::swap(other.a, other.b);
  other.out = p.out.transposed();
  return other;
}

}  // namespace

void run_hopper(const Context& context, const GroupedGradient& p) {
  if (p.out.first.col_step != 1) return run_hopper(context, transposed(p));
  if (p.a.index != nullptr) return launch_gradient<Gathered::kA>(context, p);
  if (p.b.index != nullptr) return launch_gradient<Gathered::kB>(context, p);
  launch_gradient<Gathered::kNone>(context, p);
}

}  // namespace transformer_kernels::cuda
