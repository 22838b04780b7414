// SPDX-License-Identifier: MIT
#include "linear/cpu/quantized.h"
#include "core/cpu/columns.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"

namespace transformer_kernels::cpu {
namespace {

constexpr const char* kOp = "quantized_linear";

// Lines, or terms, that are a plain matrix at a time: a block of columns of the result, so wide
// that the other operand is seldom brought in order.
constexpr std::int64_t kPlainCols = 768;

const QuantizedKernels& kernels() {
  constexpr const QuantizedKernels* kTables[] = TFK_PER_ISA(quantized_kernels);
  return *kTables[static_cast<int>(isa())];
}

void dequantize(const Context& context, DType dtype, const DequantizeTask& task,
                std::int64_t lines) {
  const auto run = kernels().dequantize[static_cast<int>(dtype)];
  parallel_for(context, lines, rows_per_range(task.terms),
               [&](std::int64_t begin, std::int64_t end) { run(task, begin, end); });
}

void multiply_where_it_lies(const Context& context, const QuantizedMatrix& weight,
                            const Product& product) {
  const AlignedScratch left(
      context, padded_rows(product.rows) * padded_terms(product.terms) * sizeof(float));
  const FewRowsTask few{product, left.data(), nullptr};
  const QuantizedTask task{few, weight, few_rows_kernels_of(product.dtype)};
  kernels().arrange[static_cast<int>(product.dtype)](task);
  const auto run = kernels().multiply[weight.bits == 4 ? 1 : 0];
  parallel_for(context, divide_up(product.cols, kFewCols), rows_per_range(product.terms * kFewCols),
               [&](std::int64_t begin, std::int64_t end) { run(task, begin, end); });
}

// Columns of the result by blocks of the weight that are dequantised in the order of products.
// `cols_are_lines`: whether a line of the weight belongs to a column of the result, or to a term.
bool multiply_packed(const Context& context, const QuantizedMatrix& weight, const Product& product,
                     bool cols_are_lines) {
  const QuantizedKernels& own = kernels();
  const ProductKernels& k = product_kernels(product.dtype);
  const bool in_pairs = product.dtype == DType::kBFloat16 && k.term_step > 1;
  const PackQuantized& packs = cols_are_lines ? own.pairs_of_lines
                               : in_pairs     ? own.pairs_of_terms
                                              : own.numbers_of_terms;
  const auto pack = packs.of[weight.bits == 4 ? 1 : 0];
  const std::int64_t numbers = cols_are_lines ? product.terms : product.cols;
  const bool fits = in_pairs || (product.dtype == DType::kFloat32 && !cols_are_lines);
  if (!fits || pack == nullptr || numbers % own.step != 0 || weight.group % own.step != 0) {
    return false;
  }
  constexpr std::int64_t kSquare = 16;
  const std::int64_t size = size_of(product.dtype);
  const std::int64_t elements = rounded_up(product.terms, k.term_step) / (in_pairs ? 2 : 1);
  const std::int64_t most = std::min(rounded_up(kPlainCols, k.col_step), product.cols);
  const AlignedScratch memory(
      context, rounded_up(most, k.right_width) * elements * (in_pairs ? 2 : 1) * k.term_bytes);
  for (std::int64_t col = 0; col < product.cols; col += most) {
    Product p = product;
    p.cols = std::min(most, product.cols - col);
    p.packed_b = memory.data();
    p.out.data = static_cast<std::byte*>(product.out.data) + col * size;
    if (p.bias != nullptr) {
      p.bias =
          static_cast<const std::byte*>(product.bias) + col * size_of(accumulate_dtype(p.dtype));
    }
    const PackQuantizedTask task{weight,   col,           p.cols,       p.terms,
                                 elements, k.right_width, memory.data()};
    const std::int64_t parts = cols_are_lines ? divide_up(p.cols, kSquare) : elements;
    const std::int64_t a_part = cols_are_lines ? kSquare * p.terms : p.cols;
    parallel_for(context, parts, rows_per_range(a_part),
                 [&](std::int64_t begin, std::int64_t end) { pack(task, begin, end); });
    multiply(context, p);
  }
  return true;
}

// Columns of the result by blocks of lines of the weight.
void multiply_by_lines(const Context& context, const QuantizedMatrix& weight,
                       const Product& product) {
  if (multiply_packed(context, weight, product, true)) return;
  const std::int64_t size = size_of(product.dtype);
  const std::int64_t wide = size_of(accumulate_dtype(product.dtype));
  const std::int64_t most = std::min(kPlainCols, product.cols);
  const AlignedScratch plain(context, most * product.terms * size);
  for (std::int64_t col = 0; col < product.cols; col += most) {
    Product p = product;
    p.cols = std::min(most, product.cols - col);
    p.b = {plain.data(), 1, product.terms};
    p.out.data = static_cast<std::byte*>(product.out.data) + col * size;
    if (p.bias != nullptr) p.bias = static_cast<const std::byte*>(product.bias) + col * wide;
    dequantize(context, p.dtype, {weight, col, 0, p.terms, plain.data()}, p.cols);
    multiply(context, p);
  }
}

// Columns of the result by blocks of terms of the weight; `product` multiplies with its transpose.
void multiply_by_terms(const Context& context, const QuantizedMatrix& weight,
                       const Product& product) {
  if (multiply_packed(context, weight, product, false)) return;
  const std::int64_t size = size_of(product.dtype);
  const std::int64_t most = std::min(kPlainCols, product.cols);
  const AlignedScratch plain(context, most * product.terms * size);
  for (std::int64_t col = 0; col < product.cols; col += most) {
    Product p = product;
    p.cols = std::min(most, product.cols - col);
    p.b = {plain.data(), p.cols, 1};
    p.out.data = static_cast<std::byte*>(product.out.data) + col * size;
    dequantize(context, p.dtype, {weight, 0, col, p.cols, plain.data()}, p.terms);
    multiply(context, p);
  }
}

}  // namespace

void quantized_linear_forward(const Context& context, const QuantizedLinearForwardProblem& p) {
  log_cpu_kernel(kOp, p);
  const WideParameter bias(
      context, p.dtype,
      {.data = p.bias, .cols = p.bias != nullptr ? p.cols : 0, .is_wide = p.bias_dtype != p.dtype});
  const Product product{.op = kOp,
                        .dtype = p.dtype,
                        .rows = p.rows,
                        .cols = p.cols,
                        .terms = p.terms,
                        .a = matrix_of(p.x),
                        .b = {},
                        .out = matrix_of(p.y),
                        .bias = p.bias != nullptr ? bias.data() : nullptr};
  const bool streams =
      p.rows <= kFewRows && p.dtype != DType::kFloat64 && p.weight.group % kernels().step == 0;
  (streams ? multiply_where_it_lies : multiply_by_lines)(context, p.weight, product);
}

void quantized_linear_backward(const Context& context, const QuantizedLinearBackwardProblem& p) {
  log_cpu_kernel(kOp, p);
  if (p.dx.data != nullptr && p.rows > 0 && p.terms > 0) {
    multiply_by_terms(context, p.weight,
                      {.op = kOp,
                       .dtype = p.dtype,
                       .rows = p.rows,
                       .cols = p.terms,
                       .terms = p.cols,
                       .a = matrix_of(p.dy),
                       .b = {},
                       .out = matrix_of(p.dx)});
  }
  if (p.dbias != nullptr) linear_backward(context, p.of_bias());
}

}  // namespace transformer_kernels::cpu
