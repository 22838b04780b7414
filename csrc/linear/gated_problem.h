// SPDX-License-Identifier: MIT
// Checked arguments of a gated linear layer, as plain matrices.
#pragma once

#include <cstddef>
#include <string>

#include "core/rounding.h"
#include "linear/problem.h"
#include "pointwise/problem.h"
#include "transformer_kernels/linear/gated_linear.h"

namespace transformer_kernels {

// Sizes are T rows of x, K columns of it, and N columns of y.
struct GatedLinearProblem {
  Pointwise activation;
  DType dtype;
  DType bias_dtype;
  std::int64_t rows;
  std::int64_t terms;
  std::int64_t cols;
  Rows x;
  Matrix weight;
  Matrix up_weight;
  const void* bias;  // either may be null
  const void* up_bias;
  Rows gate;  // null where they are not kept
  Rows up;
  Rows y;

  constexpr bool keeps() const { return gate.data != nullptr; }

  LinearForwardProblem layer(const Matrix& own, const Rows& to) const {
    return {.dtype = dtype,
            .bias_dtype = dtype,
            .rows = rows,
            .terms = terms,
            .cols = cols,
            .activation = {},
            .x = x,
            .weight = own,
            .bias = nullptr,
            .z = {},
            .y = to};
  }
  PointwiseForwardProblem product_of(const Rows& own_gate, const Rows& own_up) const {
    return {.op = activation,
            .dtype = dtype,
            .bias_dtype = bias_dtype,
            .rows = rows,
            .cols = cols,
            .x = own_gate,
            .up = own_up,
            .y = y,
            .bias = bias,
            .up_bias = up_bias};
  }
};

// The gated layer as two layers and the pointwise op. Results that are not kept lie in `memory`, of
// bytes_in_three().
constexpr std::int64_t bytes_of_layer(const GatedLinearProblem& p) {
  constexpr std::int64_t kAlignment = 256;
  const std::int64_t bytes = p.rows * p.cols * static_cast<std::int64_t>(size_of(p.dtype));
  return p.keeps() ? 0 : rounded_up(bytes, kAlignment);
}
constexpr std::int64_t bytes_in_three(const GatedLinearProblem& p) { return 2 * bytes_of_layer(p); }

template <class Linear, class Product>
void run_in_three(const Context& context, const GatedLinearProblem& p, void* memory,
                  Linear&& linear, Product&& product) {
  std::byte* const second = static_cast<std::byte*>(memory) + bytes_of_layer(p);
  const Rows gate = p.keeps() ? p.gate : Rows{memory, p.cols};
  const Rows up = p.keeps() ? p.up : Rows{second, p.cols};
  linear(context, p.layer(p.weight, gate));
  linear(context, p.layer(p.up_weight, up));
  product(context, p.product_of(gate, up));
}

// Sizes are T rows, N columns of dy as terms, and K columns of gate.
struct LinearDgatedProblem {
  Pointwise activation;
  DType dtype;
  DType bias_dtype;
  std::int64_t rows;
  std::int64_t terms;
  std::int64_t cols;
  Rows dy;
  Matrix weight;
  Rows gate;
  Rows up;
  const void* bias;  // either may be null
  const void* up_bias;
  Rows dgate;
  Rows dup;
  Rows h;  // may be null

  // The gradient of h lies where that of the gate will. If one of the two lies over what it is the
  // gradient of, it lies where h will, or in memory of bytes_of_dh().
  bool is_over() const { return dgate.data == gate.data || dup.data == up.data; }
  std::int64_t bytes_of_dh() const {
    return is_over() && h.data == nullptr ? rows * cols * size_of(dtype) : 0;
  }
  Rows place_of_dh(void* memory) const {
    if (!is_over()) return dgate;
    return h.data != nullptr ? h : Rows{memory, cols};
  }

  LinearBackwardProblem product_to(const Rows& dh) const {
    return {.dtype = dtype,
            .bias_dtype = dtype,
            .rows = rows,
            .terms = cols,
            .cols = terms,
            .activation = {},
            .dy = dy,
            .x = {},
            .weight = weight,
            .z = {},
            .dx = dh,
            .dweight = {},
            .dbias = nullptr};
  }
  // The activation's backward pass, which reads each element before it writes there.
  PointwiseBackwardProblem slope_times(const Rows& dh) const {
    return {.op = activation,
            .dtype = dtype,
            .bias_dtype = bias_dtype,
            .rows = rows,
            .cols = cols,
            .dy = dh,
            .x = gate,
            .up = up,
            .dx = dgate,
            .dup = dup,
            .y = h,
            .bias = bias,
            .up_bias = up_bias,
            .dbias = nullptr,
            .dup_bias = nullptr};
  }
};

std::string describe(const GatedLinearProblem& problem);
std::string describe(const LinearDgatedProblem& problem);

namespace cpu {
void gated_linear_forward(const Context& context, const GatedLinearProblem& problem);
void linear_dgated(const Context& context, const LinearDgatedProblem& problem);
}  // namespace cpu
namespace cuda {
void gated_linear_forward(const Context& context, const GatedLinearProblem& problem);
void linear_dgated(const Context& context, const LinearDgatedProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
