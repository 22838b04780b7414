// SPDX-License-Identifier: MIT
// Products of matrices, and sums of columns. Compiled once per instruction set; see core/cpu/isa.h.
#include "linear/cpu/kernels.h"

#include <memory>
#include <numeric>

#include "core/cpu/scratch.h"
#include "linear/cpu/few_panels.h"
#include "linear/cpu/finish.h"
#include "linear/cpu/pack.h"
#include "linear/cpu/tile.h"
#if TFK_ISA_LEVEL >= 3
#include "core/cpu/pair_multiply.h"
#include "linear/cpu/pair_pack.h"
#endif
#if TFK_ISA_LEVEL >= 4
#include "linear/cpu/pair_tile.h"
#endif

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

// How products of T are computed: in the precision of the sums.
template <class T>
struct InNumbers {
  using Result = T;
  using Element = accumulate_t<T>;  // of operands in order
  struct Scope {};
  static constexpr BlockSize kSize = kBlock;
  static constexpr std::int64_t kTermStep = 1;
  static constexpr std::int64_t kTerms = 1;  // of an element
  static constexpr std::int64_t kMostFewRows = kFewRows;
  static constexpr std::int64_t kSumsStep = kSize.cols;  // from one row of a block to the next
};

#if TFK_ISA_LEVEL >= 3
// Or of bfloat16 by the instructions for pairs.
struct InPairs {
  using Result = BFloat16;
  using Element = BFloat16Pair;
  using Scope = PairScope;
  static constexpr BlockSize kSize = kPairBlock;
  static constexpr std::int64_t kTermStep = kSquareTerms;
  static constexpr std::int64_t kTerms = 2;
  // Products in float take half of the rate of pairs, which more rows would notice.
  static constexpr std::int64_t kMostFewRows = 4;
  // Rows begin in different sets of a cache.
  static constexpr std::int64_t kSumsStep = kSize.cols + kPairSide;
};
#endif

template <class E>
using Sum = accumulate_t<typename E::Result>;

// Elements of operands in order.
struct PartInOrder {
  std::int64_t first;
  std::int64_t count;
  std::int64_t most;  // of a part
  std::int64_t all;   // of a line
};
template <class E>
TFK_INLINE PartInOrder part_in_order(std::int64_t terms, std::int64_t index) {
  const Part part = part_of(terms, index, E::kSize.terms);
  const auto elements = [](std::int64_t count) {
    return rounded_up(count, E::kTermStep) / E::kTerms;
  };
  return {part.first / E::kTerms, elements(part.terms), E::kSize.terms / E::kTerms,
          elements(terms)};
}

TFK_INLINE Block block_at(const ProductTask& task, std::int64_t index) {
  const Product& p = task.product;
  const std::int64_t row_blocks = divide_up(p.rows, task.block_rows);
  const std::int64_t row = index % row_blocks * task.block_rows;
  const std::int64_t col = index / row_blocks * task.block_cols;
  return {row, col, std::min(task.block_rows, p.rows - row),
          std::min(task.block_cols, p.cols - col)};
}

template <class F>
void multiply_columns(const TileColumn<F>& column, std::int64_t vectors, bool add) {
  static_assert(kTileWidth == 3);
  switch (vectors) {
    case 1: return multiply_column<F, 1>(column, add);
    case 2: return multiply_column<F, 2>(column, add);
    default: return multiply_column<F, 3>(column, add);
  }
}

template <class E>
void add_part(const ProductTask& task, const Block& block, std::int64_t index, Sum<E>* sums) {
  using F = typename E::Element;
  constexpr std::int64_t kCols = kPanelCols<F>;
  constexpr std::int64_t kRows = kGroupRows<F>;
  static_assert(E::kSize.rows % kRows == 0 && E::kSize.cols % kCols == 0);
  const PartInOrder part = part_in_order<E>(task.product.terms, index);
  TileColumn<F> column{};
  column.left = static_cast<const F*>(task.left) + block.row * part.all + part.first * kRows;
  column.left_step = kRows * part.all;
  column.sums_step = E::kSumsStep;
  column.rows = block.rows;
  column.terms = part.count;
  for (std::int64_t col = 0; col < block.cols; col += kCols) {
    column.right =
        static_cast<const F*>(task.right) + (block.col + col) * part.all + part.first * kCols;
    const bool last = col + kCols >= block.cols;
    column.next = column.right + (last ? part.most * kCols - col * part.all : kCols * part.all);
    column.sums = sums + col;
    const std::int64_t cols = std::min(kCols, block.cols - col);
    multiply_columns(column, divide_up(cols, Vec<F>::kLanes), index > 0);
  }
}

// A block of sums, and of the result before its activation.
template <class E>
void multiply_block(const ProductTask& task, const Block& block, Sum<E>* sums) {
  const Product& p = task.product;
  add_part<E>(task, block, 0, sums);
  for (std::int64_t part = 1; part < divide_up(p.terms, E::kSize.terms); ++part)
    add_part<E>(task, block, part, sums);
  round_rows<typename E::Result>(p, block, {sums, E::kSumsStep});
}

#if TFK_ISA_LEVEL >= 4
// The last part's sums are rounded tile by tile, while they are in the first cache.
template <>
void multiply_block<InPairs>(const ProductTask& task, const Block& block, float* sums) {
  static_assert(kPairBlock.rows % kPanelLines == 0 && kPairBlock.cols % kPanelLines == 0);
  const Product& p = task.product;
  alignas(64) float last_sums[kPanelLines * kPanelLines];
  const std::int64_t parts = std::max<std::int64_t>(1, divide_up(p.terms, kPairBlock.terms));
  for (std::int64_t index = 0; index < parts; ++index) {
    const PartInOrder part = part_in_order<InPairs>(p.terms, index);
    const auto panel = [&](const void* operand, std::int64_t line) {
      return static_cast<const BFloat16Pair*>(operand) + line * part.all + part.first * kPanelLines;
    };
    const bool is_last = index == parts - 1;
    for (std::int64_t col = 0; col < block.cols; col += kPanelLines) {
      const std::int64_t cols = std::min(kPanelLines, block.cols - col);
      for (std::int64_t row = 0; row < block.rows; row += kPanelLines) {
        const std::int64_t rows = std::min(kPanelLines, block.rows - row);
        const PairOut from{sums + row * InPairs::kSumsStep + col, InPairs::kSumsStep};
        const PairOut to = is_last ? PairOut{last_sums, kPanelLines} : from;
        tile_fence();
        multiply_panels(index > 0, rows, cols)(
            {panel(task.left, block.row + row), panel(task.right, block.col + col),
             part.count / kTileSide},
            from, to);
        tile_fence();
        if (is_last) {
          round_rows<BFloat16>(p, {block.row + row, block.col + col, rows, cols},
                               {last_sums, kPanelLines});
        }
      }
    }
  }
}
#endif

template <class E>
void multiply_blocks(const ProductTask& task, std::int64_t begin, std::int64_t end) {
  struct alignas(64) Sums {
    Sum<E> data[E::kSize.rows * E::kSumsStep];
  };
  const Product& p = task.product;
  const std::unique_ptr<Sums> sums(new Sums);
  [[maybe_unused]] const typename E::Scope scope;
  for (std::int64_t index = begin; index < end; ++index) {
    const Block block = block_at(task, index);
    multiply_block<E>(task, block, sums->data);
    if (p.activation) activate<typename E::Result>(p, task.activations, block);
  }
}

// Columns of a block: whole panels, and whole vectors of the result's rows.
template <class E, std::int64_t kPanel>
inline constexpr std::int64_t kColStep = std::lcm(kPanel,
                                                  std::int64_t{vec_t<typename E::Result>::kLanes});

template <class E, std::int64_t kPanel>
void multiply_few(const FewRowsTask& task, std::int64_t begin, std::int64_t end) {
  using F = typename E::Element;
  using S = Sum<E>;
  constexpr std::int64_t kCols = kColStep<E, kPanel>;
  constexpr std::int64_t kPart = E::kSize.terms / E::kTerms;
  const Product& p = task.product;
  const std::int64_t count = rounded_up(p.terms, E::kTermStep) / E::kTerms;
  alignas(64) S sums[kFewRows * kCols];
  for (std::int64_t col = begin * kCols; col < std::min(end * kCols, p.cols); col += kCols) {
    const std::int64_t cols = std::min(kCols, p.cols - col);
    __builtin_memset(sums, 0, sizeof(sums));
    for (std::int64_t panel = 0; panel < cols; panel += kPanel) {
      const F* const right = static_cast<const F*>(p.packed_b) + (col + panel) * count;
      for (std::int64_t k = 0; k < count; k += kPart) {
        for_each_row_tile(p.rows, [&]<int kRows>(std::int64_t row) {
          const S* const x = static_cast<const S*>(task.left) + row * padded_terms(p.terms) +
                             k * E::kTerms * kRows;
          add_panel<F, kPanel / Vec<F>::kLanes, kRows>(
              x, right + k * kPanel, std::min(kPart, count - k), sums + row * kCols + panel, kCols);
        });
      }
    }
    finish_block<typename E::Result>(p, task.activations, {0, col, p.rows, cols}, {sums, kCols});
  }
}

template <class T>
TFK_FLATTEN void sum_columns(const ColumnSumTask& task, std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  const std::int64_t wide = wide_cols(task.cols);
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    A* const sums = static_cast<A*>(task.partials) + chunk * 2 * wide;
    __builtin_memset(sums, 0, wide * sizeof(A));
    const std::int64_t first = chunk * task.rows_per_chunk;
    const std::int64_t last = std::min(first + task.rows_per_chunk, task.rows);
    for (std::int64_t row = first; row < last; ++row) {
      const T* const source = row_of<T>(task.matrix, row);
      for_each_vector<T>(task.cols, [&](std::int64_t i, int, auto lanes) {
        store_wide<T>(sums + i, load_wide<T>(sums + i, lanes) + load(source + i, lanes), lanes);
      });
    }
  }
}

template <class E, auto kPackLeft, auto kPackRight, std::int64_t kRightWidth>
constexpr ProductKernels product_of(std::int64_t left_width) {
  return {.left_width = left_width,
          .right_width = kRightWidth,
          .col_step = kColStep<E, kRightWidth>,
          .term_step = E::kTermStep,
          .term_bytes = sizeof(typename E::Element) / E::kTerms,
          .block = E::kSize,
          .pack_left = kPackLeft,
          .pack_right = kPackRight,
          .multiply = multiply_blocks<E>,
          .few_rows = E::kMostFewRows,
          .multiply_few = multiply_few<E, kRightWidth>};
}
template <class T>
constexpr ProductKernels product_of() {
  using F = accumulate_t<T>;
  return product_of<InNumbers<T>, pack<T>, pack<T>, kPanelCols<F>>(kGroupRows<F>);
}

#if TFK_ISA_LEVEL >= 4
constexpr ProductKernels product_of_pairs() {
  return product_of<InPairs, pack_pairs<PairOrder::kLine>, pack_pairs<PairOrder::kPair>,
                    kPanelLines>(kPanelLines);
}
#elif TFK_ISA_LEVEL == 3
constexpr ProductKernels product_of_pairs() {
  constexpr auto* kPack = pack_pairs<PairOrder::kPair>;
  return product_of<InPairs, kPack, kPack, kPanelCols<BFloat16Pair>>(kGroupRows<BFloat16Pair>);
}
#else
constexpr ProductKernels product_of_pairs() { return product_of<BFloat16>(); }
#endif

}  // namespace

const LinearKernels linear_kernels = {
    {product_of<double>(), product_of<float>(), product_of<Half>(), product_of<BFloat16>()},
    product_of_pairs(),
    {sum_columns<double>, sum_columns<float>, sum_columns<Half>, sum_columns<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
