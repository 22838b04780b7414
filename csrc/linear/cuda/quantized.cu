// SPDX-License-Identifier: MIT
// Quantised weights: few rows are multiplied with the packed weight; for more rows it becomes a
// plain matrix first.
#include <array>

#include "core/cuda/built.h"
#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "core/select.h"
#include "linear/cuda/dequantize.h"
#include "linear/cuda/engines.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "quantized_linear";

// The weight's rows are columns of the product in the forward pass, and its terms in the backward
// one.
void run_plain_weight(const Context& context, Product p, const QuantizedMatrix& weight,
                      bool is_forward) {
  const std::int64_t rows = is_forward ? p.cols : p.terms;
  const std::int64_t cols = is_forward ? p.terms : p.cols;
  const Scratch memory(kOp, context, rows * cols * size_of(p.dtype));
  const Matrix plain{memory.as<void>(), cols, 1};
  dispatch_float(p.dtype, [&]<class T>() { dequantize<T>(context, weight, rows, cols, plain); });
  p.b = is_forward ? plain.transposed() : plain;
  multiply(context, p);
}

constexpr auto engines() {
  std::array<Engine<Product, QuantizedMatrix>, kBuildsSm90a + kBuildsSm80> table{};
  std::size_t next = 0;
  if constexpr (kBuildsSm90a) {
    table[next++] = {"streamed_rows",
                     ByName<Product, QuantizedMatrix>::refusal<streamed_rows_refusal>,
                     run_streamed_rows};
  }
  if constexpr (kBuildsSm80) table[next] = {"few_rows", few_rows_refusal, run_few_rows};
  return table;
}
constexpr auto kEngines = engines();

}  // namespace

void quantized_linear_forward(const Context& context, const QuantizedLinearForwardProblem& p) {
  const Product product{.op = kOp,
                        .dtype = p.dtype,
                        .rows = p.rows,
                        .cols = p.cols,
                        .terms = p.terms,
                        .a = matrix_of(p.x),
                        .b = {},
                        .out = matrix_of(p.y),
                        .bias = p.bias,
                        .bias_dtype = p.bias_dtype};
  const auto chosen =
      find_kernel(kOp, kEngines, p, [&](const Engine<Product, QuantizedMatrix>& engine) {
        return engine.refusal(context, product, p.weight);
      });
  if (chosen) return kEngines[*chosen].run(context, product, p.weight);
  run_plain_weight(context, product, p.weight, true);
}

void quantized_linear_backward(const Context& context, const QuantizedLinearBackwardProblem& p) {
  if (p.dx.data != nullptr) {
    run_plain_weight(context,
                     {.op = kOp,
                      .dtype = p.dtype,
                      .rows = p.rows,
                      .cols = p.terms,
                      .terms = p.cols,
                      .a = matrix_of(p.dy),
                      .b = {},
                      .out = matrix_of(p.dx)},
                     p.weight, false);
  }
  if (p.dbias != nullptr) linear_backward(context, p.of_bias());
}

}  // namespace transformer_kernels::cuda
