// SPDX-License-Identifier: MIT
#include <algorithm>

#include "linear/sm90/launch.cuh"
#include "linear/sm90/parts.h"

namespace transformer_kernels::cuda {
namespace {

struct Tile {
  int rows;
  int cols;
};
constexpr Tile kWide{128, 192};
constexpr Tile kNarrow{128, 128};
constexpr Tile kTall{192, 96};

// The time of all rounds of tiles, in products of a processor, with that of finishing a tile; of
// terms in `parts`.
std::int64_t cost(const Context& context, const Product& p, Tile tile, std::int64_t parts = 1) {
  constexpr std::int64_t kTermsOfEpilogue = 256;
  const std::int64_t processors = device_limits(context.device.index).processors;
  const std::int64_t tiles = divide_up(p.rows, tile.rows) * divide_up(p.cols, tile.cols);
  const std::int64_t terms = divide_up(p.terms, parts) + kTermsOfEpilogue;
  return divide_up(tiles * parts, processors) * tile.rows * tile.cols * terms;
}

// The smaller tiles read more of the operands for a product: they have to save 10 %.
template <Tile kOther>
bool is_better(const Context& context, const Product& p) {
  return 11 * cost(context, p, kOther) < 10 * cost(context, p, kWide);
}

// The number of parts of its terms with which a product takes the least time; 1 where no number
// saves a quarter.
std::int64_t best_parts(const Context& context, const Product& p) {
  constexpr std::int64_t kMost = 8;
  const std::int64_t whole =
      std::min({cost(context, p, kWide), cost(context, p, kNarrow), cost(context, p, kTall)});
  std::int64_t best = 1;
  std::int64_t least = whole * 3 / 4;
  const std::int64_t blocks = divide_up(p.terms, 64);
  for (std::int64_t parts = 2; parts <= std::min(kMost, blocks); ++parts) {
    const bool has_empty_part = divide_up(blocks, divide_up(blocks, parts)) != parts;
    const std::int64_t own = cost(context, p, kWide, parts);
    if (has_empty_part || own >= least) continue;
    best = parts;
    least = own;
  }
  return best;
}

template <Major kMajorA, Major kMajorB, Tile kTile, class Results>
void launch_tile(const Context& context, const Product& p, const Results& results) {
  launch_tiles<GemmShape<kMajorA, kMajorB, kTile.rows, kTile.cols>>(context, p, {p.b}, results);
}

template <Major kMajorA, Major kMajorB>
void launch_best(const Context& context, const Product& p) {
  const BiasVector bias = bias_of(p, p.bias);
  if (!is_even(p, p.out)) {
    return launch_tile<kMajorA, kMajorB, kWide>(context, p,
                                                results_of(p, epilogues::StoreUneven{bias, p.out}));
  }
  const auto results =
      results_of(p, with_tensors<Chain<epilogues::AddBias<>>>({{bias}}, {.results = {p.out}}));
  if constexpr (kMajorA == Major::kOther) {  // a weight's gradient is small, and has many terms
    const std::int64_t parts = best_parts(context, p);
    if (parts > 1) return run_gemm_in_parts(context, p, parts);
    const bool tall = cost(context, p, kTall) <= cost(context, p, kNarrow);
    if (tall && is_better<kTall>(context, p)) {
      return launch_tile<kMajorA, kMajorB, kTall>(context, p, results);
    }
  }
  if (is_better<kNarrow>(context, p)) {
    launch_tile<kMajorA, kMajorB, kNarrow>(context, p, results);
  } else {
    launch_tile<kMajorA, kMajorB, kWide>(context, p, results);
  }
}

}  // namespace

bool runs_in_parts(const Context& context, const Product& p) {
  return major_of_a(p) == Major::kOther && is_even(p, p.out) && best_parts(context, p) > 1;
}

void run_gemm_bias(const Context& context, const Product& p) {
  if (major_of_a(p) == Major::kOther) {
    launch_best<Major::kOther, Major::kOther>(context, p);
  } else if (major_of_b(p) == Major::kOther) {
    launch_best<Major::kK, Major::kOther>(context, p);
  } else {
    launch_best<Major::kK, Major::kK>(context, p);
  }
}

}  // namespace transformer_kernels::cuda
