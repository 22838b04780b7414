// SPDX-License-Identifier: MIT
#include "core/cuda/column_sum.h"
#include "core/cuda/scratch.h"
#include "linear/bias_gradient.h"
#include "linear/sm90/launch_gemm.cuh"

namespace transformer_kernels::cuda {
namespace {

// From so many terms on the epilogue has time to sum its columns under the products of the other
// tile. With fewer it bounds the kernel.
constexpr std::int64_t kFewestTermsToSumColumns = 2048;

void sum_in_epilogue(const Context& context, const Product& p) {
  const int rows = static_cast<int>(divide_up(p.rows, kTileRows)) * kGemmWarps;
  const Scratch partial(p.op, context, 2 * rows * p.cols * sizeof(float));
  launch_activated<Epilogue::kSlope>(context, p, {.partial = partial.as<float>()});
  sum_columns(p.op, context, p.bias_dtype,
              PartialGradients<float>{.partial = partial.as<float>(),
                                      .rows = rows,
                                      .pitch = p.cols,
                                      .cols = p.cols,
                                      .dweight = nullptr,
                                      .dbias = p.dbias},
              true);
}

}  // namespace

void run_gemm_slope(const Context& context, const Product& p) {
  if (p.dbias != nullptr && p.terms >= kFewestTermsToSumColumns) {
    return sum_in_epilogue(context, p);
  }
  launch_activated<Epilogue::kSlope>(context, p);
  bias_gradient(context, p);
}

}  // namespace transformer_kernels::cuda
