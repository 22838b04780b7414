// SPDX-License-Identifier: MIT
#include "core/cuda/column_sum.h"
#include "core/cuda/scratch.h"
#include "linear/sm80/products.cuh"

namespace transformer_kernels::cuda::ampere {

// Columns are summed while the tile is at hand, in a line for each row of warps.
void run_slope(const Context& context, const Product& p) {
  if (p.dbias == nullptr) return launch_activated(context, p, Sloped{});
  using Own = Shape<Major::kK, Major::kK>;
  const int rows = tiles_of<Own>(p).rows * Own::kWarpsDown;
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
              device_limits(context.device.index).architecture >= 90);
}

}  // namespace transformer_kernels::cuda::ampere
