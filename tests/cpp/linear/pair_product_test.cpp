// SPDX-License-Identifier: MIT
// Products of bfloat16 in pairs by every instruction set that has them, also while another set is
// in use. Sums of whole numbers are exact.
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <utility>
#include <vector>

#include "core/rounding.h"
#include "core/types.h"
#include "linear/cpu/kernels.h"

namespace transformer_kernels::cpu {
namespace {

// Elements of a matrix, with others between them.
struct Elements {
  std::vector<BFloat16> data;
  Matrix matrix;

  Elements(std::int64_t rows, std::int64_t cols, bool by_rows, std::int64_t gap, std::mt19937& any)
      : data(rows * cols * gap) {
    for (BFloat16& element : data) {
      constexpr std::uint16_t kNumbers[] = {0, 0x3f80, 0xbf80};  // 0, 1, -1
      element.bits = kNumbers[any() % 3];
    }
    matrix = by_rows ? Matrix{data.data(), cols * gap, gap} : Matrix{data.data(), gap, rows * gap};
  }

  float at(std::int64_t row, std::int64_t col) const {
    return number(data[row * matrix.row_step + col * matrix.col_step]);
  }
  static float number(BFloat16 element) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(element.bits) << 16);
  }
};

std::vector<std::byte> packed(const ProductKernels& k, const Matrix& source, std::int64_t lines,
                              std::int64_t terms, bool is_left) {
  const std::int64_t width = is_left ? k.left_width : k.right_width;
  std::vector<std::byte> memory(rounded_up(lines, width) * rounded_up(terms, k.term_step) *
                                k.term_bytes);
  (is_left ? k.pack_left : k.pack_right)({source, lines, terms, width, memory.data()}, 0,
                                         divide_up(lines, width) * divide_up(terms, k.block.terms));
  return memory;
}

void check(const ProductKernels& k, std::int64_t rows, std::int64_t terms, std::int64_t cols,
           bool by_rows, std::int64_t gap) {
  std::mt19937 any(1);
  const Elements left(rows, terms, by_rows, gap, any);
  const Elements right(cols, terms, by_rows, gap, any);
  std::vector<BFloat16> result(rows * cols);
  std::vector<float> total(rows * cols, 1000);
  const Product product{.op = "linear",
                        .dtype = DType::kBFloat16,
                        .rows = rows,
                        .cols = cols,
                        .terms = terms,
                        .a = left.matrix,
                        .b = right.matrix.transposed(),
                        .out = {result.data(), cols, 1}};
  Product added = product;
  added.out_dtype = DType::kFloat32;
  added.accumulates = true;
  added.out.data = total.data();
  const auto left_in_order = packed(k, left.matrix, rows, terms, true);
  const auto right_in_order = packed(k, right.matrix, cols, terms, false);
  constexpr PointwiseKernels kNone{};
  for (const Product* p : {&product, &std::as_const(added)}) {
    k.multiply({*p, left_in_order.data(), right_in_order.data(), k.block.rows, k.block.cols, kNone},
               0, divide_up(rows, k.block.rows) * divide_up(cols, k.block.cols));
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) {
      float sum = 0;
      for (std::int64_t i = 0; i < terms; ++i) sum += left.at(row, i) * right.at(col, i);
      ASSERT_EQ(Elements::number(result[row * cols + col]), sum) << row << ", " << col;
      ASSERT_EQ(total[row * cols + col], 1000 + sum) << row << ", " << col;
    }
  }
}

TEST(LinearPairProduct, sums_whole_numbers_exactly_in_every_set) {
  constexpr const LinearKernels* kTables[] = TFK_PER_ISA(linear_kernels);
  for (const Isa isa : usable_isas()) {
    if (isa < Isa::kAvx512Bf16) continue;
    SCOPED_TRACE(name_of(isa));
    const ProductKernels& k = kTables[static_cast<int>(isa)]->product_of_pairs;
    for (const bool by_rows : {true, false}) {
      check(k, 64, 64, 96, by_rows, 1);
      check(k, 33, 545, 50, by_rows, 1);
      check(k, 7, 3, 49, by_rows, 2);
      check(k, 1, 0, 5, by_rows, 1);
    }
    check(k, 200, 33, 400, true, 1);
  }
}

}  // namespace
}  // namespace transformer_kernels::cpu
