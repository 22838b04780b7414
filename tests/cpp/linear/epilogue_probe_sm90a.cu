// SPDX-License-Identifier: MIT
#include "linear/epilogue_probe.h"

#include "core/cuda/column_sum.h"
#include "core/cuda/scratch.h"
#include "linear/sm90/launch.cuh"

namespace transformer_kernels::testing {
namespace {

using namespace cuda;
using namespace cuda::epilogues;

template <int kCols>
using Shape = GemmShape<Major::kK, Major::kK, 128, kCols>;
using Wide = Shape<192>;
using Narrow = Shape<128>;  // for a chain that wants many registers

// The sums of columns, where an epilogue has them.
class Totals {
 public:
  Totals(const Context& context, const Product& p)
      : context_(context),
        p_(p),
        rows_(static_cast<int>(divide_up(p.rows, Wide::kRows)) * kGemmWarps),
        partial_(p.op, context, 2 * rows_ * p.cols * sizeof(float)) {}

  SumColumns part() const { return {partial_.as<float>()}; }
  void finish() const {
    sum_columns(p_.op, context_, p_.bias_dtype,
                PartialGradients<float>{.partial = partial_.as<float>(),
                                        .rows = rows_,
                                        .pitch = p_.cols,
                                        .cols = p_.cols,
                                        .dweight = nullptr,
                                        .dbias = p_.dbias},
                true);
  }

 private:
  const Context& context_;
  const Product& p_;
  int rows_;
  Scratch partial_;
};

}  // namespace

void multiply_dropout_add(const Context& context, const Product& p, const DropoutDraw& draw,
                          const Matrix& residual) {
  launch_tiles<Wide>(
      context, p, {p.b},
      results_of<Chain<AddBias<>, Dropout, AddResidual>>(
          p, {{bias_of(p, p.bias)}, {draw}}, {.reads = {residual}, .results = {p.out}}));
}

void multiply_relu_dropout_add(const Context& context, const Product& p, const DropoutDraw& draw,
                               const Matrix& residual) {
  const Totals totals(context, p);
  launch_tiles<Narrow>(
      context, p, {p.b},
      results_of<Chain<AddBias<>, Keep<>, Activate<math::Relu>, Dropout, AddResidual, SumColumns>>(
          p, {{bias_of(p, p.bias)}, {}, {}, {draw}, {}, totals.part()},
          {.reads = {residual}, .results = {p.out}, .kept = {p.kept}}));
  totals.finish();
}

void multiply_scale_rows(const Context& context, const Product& p, const float* factors) {
  const Totals totals(context, p);
  launch_tiles<Wide>(
      context, p, {p.b},
      results_of<Chain<AddBias<>, ScaleRows, SumColumns>>(
          p, {{bias_of(p, p.bias)}, {factors}, totals.part()}, {.results = {p.out}}));
  totals.finish();
}

}  // namespace transformer_kernels::testing
