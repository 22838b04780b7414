// SPDX-License-Identifier: MIT
// Products without an activation. A small result with many terms, as the gradient of a weight, has
// too few tiles for all SMs: parts of its terms are summed into matrices of their own (split-K).
#include "core/cuda/scratch.h"
#include "linear/cuda/sum_of_parts.h"
#include "linear/sm80/launch.cuh"

namespace transformer_kernels::cuda::ampere {
namespace {

bool is_plain(const Product& p) { return !p.accumulates && p.out_dtype == p.dtype; }

bool has_rows_of_packs(const Product& p) {
  return p.cols % 8 == 0 && p.out.row_step % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(p.out.data) % 16 == 0;
}

epilogues::StoreSums stored_sums(const Product& p) {
  const std::size_t pair = 2 * size_of(p.out_dtype);
  return {.bias = bias_of(p, p.bias),
          .out = p.out,
          .is_wide = p.out_dtype != p.dtype,
          .in_pairs =
              p.out.row_step % 2 == 0 && reinterpret_cast<std::uintptr_t>(p.out.data) % pair == 0,
          .accumulates = p.accumulates};
}

// The number of parts of its terms with which a product takes the least time; 1 where no number
// saves a quarter. A CTA takes the time of its terms and that of finishing a tile.
template <class Shape>
std::int64_t best_parts(const Context& context, const Product& p) {
  constexpr std::int64_t kMost = 8;
  constexpr std::int64_t kTermsOfEpilogue = 256;
  const std::int64_t ctas =
      std::int64_t{Shape::kCtas} * device_limits(context.device.index).processors;
  const std::int64_t tiles = tiles_of<Shape>(p).count();
  const auto cost = [&](std::int64_t parts) {
    return divide_up(tiles * parts, ctas) * (divide_up(p.terms, parts) + kTermsOfEpilogue);
  };
  const std::int64_t blocks = blocks_of<Shape>(p);
  std::int64_t best = 1;
  std::int64_t least = cost(1) * 3 / 4;
  for (std::int64_t parts = 2; parts <= std::min(kMost, blocks); ++parts) {
    const bool has_empty_part = divide_up(blocks, divide_up(blocks, parts)) != parts;
    if (has_empty_part || cost(parts) >= least) continue;
    best = parts;
    least = cost(parts);
  }
  return best;
}

template <class Shape>
void run_in_parts(const Context& context, const Product& p, std::int64_t parts) {
  const Scratch partial(p.op, context, parts * p.rows * p.cols * sizeof(float));
  const int blocks = blocks_of<Shape>(p);
  launch_gemm<Shape>(context, p, {p.b},
                     PartsOfTerms{tiles_of<Shape>(p), blocks, static_cast<int>(parts),
                                  static_cast<int>(divide_up(blocks, parts))},
                     epilogues::StorePart{partial.as<float>()});
  sum_parts(context, p, partial.as<float>(), parts);
}

template <Major kMajorA, Major kMajorB>
void run_in_order(const Context& context, const Product& p) {
  using Own = Shape<kMajorA, kMajorB>;
  const bool in_packs = has_rows_of_packs(p);
  if constexpr (kMajorA == Major::kOther) {
    const std::int64_t parts = in_packs ? best_parts<Own>(context, p) : 1;
    if (parts > 1) return run_in_parts<Own>(context, p, parts);
  }
  if (in_packs && is_plain(p)) {
    launch_gemm<Own>(
        context, p, {p.b}, whole_tiles_of<Own>(p),
        with_tensors<Chain<epilogues::AddBias<>>>({{bias_of(p, p.bias)}}, {.results = {p.out}}));
  } else {
    launch_gemm<Own>(context, p, {p.b}, whole_tiles_of<Own>(p), stored_sums(p));
  }
}

}  // namespace

void run_sums(const Context& context, const Product& p) {
  if (major_of_a(p) == Major::kOther) {
    run_in_order<Major::kOther, Major::kOther>(context, p);
  } else if (major_of_b(p) == Major::kOther) {
    run_in_order<Major::kK, Major::kOther>(context, p);
  } else {
    run_in_order<Major::kK, Major::kK>(context, p);
  }
}

}  // namespace transformer_kernels::cuda::ampere
