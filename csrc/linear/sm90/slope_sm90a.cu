// SPDX-License-Identifier: MIT
#include "core/cuda/column_sum.h"
#include "core/cuda/scratch.h"
#include "linear/sm90/products.cuh"

namespace transformer_kernels::cuda {

// Columns are summed while the tile is at hand: a pass that reads the result again takes longer,
// of few terms too.
void run_gemm_slope(const Context& context, const Product& p) {
  if (p.dbias == nullptr) return launch_activated(context, p, Sloped{});
  const int rows = static_cast<int>(divide_up(p.rows, kTileRows)) * kGemmWarps;
  const Scratch partial(p.op, context, 2 * rows * p.cols * sizeof(float));
  launch_activated(context, p, Sloped{.partial = partial.as<float>()});
  sum_columns(p.op, context, p.bias_dtype,
              PartialGradients<float>{.partial = partial.as<float>(),
                                      .rows = rows,
                                      .pitch = p.cols,
                                      .cols = p.cols,
                                      .dweight = nullptr,
                                      .dbias = p.dbias,
                                      .accumulates = p.accumulates_dbias},
              true);
}

}  // namespace transformer_kernels::cuda
