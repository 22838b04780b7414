// SPDX-License-Identifier: MIT
// Split-K for a small result with many terms, as the gradient of a weight: its tiles alone would
// leave most SMs without work. Parts of the terms are summed into matrices of their own.
#include "core/cuda/scratch.h"
#include "linear/cuda/sum_of_parts.h"
#include "linear/sm90/launch.cuh"

namespace transformer_kernels::cuda {

void run_gemm_in_parts(const Context& context, const Product& p, std::int64_t parts) {
  const Scratch partial(p.op, context, parts * p.rows * p.cols * sizeof(float));
  using Shape = GemmShape<Major::kOther, Major::kOther, 128, 192>;
  const int blocks = blocks_of<Shape>(p);
  const PartsOfTerms units{tiles_of<Shape>(p), blocks, static_cast<int>(parts),
                           static_cast<int>(divide_up(blocks, parts))};
  const auto results = results_of(p, epilogues::StorePart{partial.as<float>()});
  dispatch_narrow(p.dtype, [&]<class T>() {
    launch_gemm<T, Shape>(p.op, context, loader_of<Shape>(p, {p.b}), units, results);
  });
  sum_parts(context, p, partial.as<float>(), parts);
}

}  // namespace transformer_kernels::cuda
