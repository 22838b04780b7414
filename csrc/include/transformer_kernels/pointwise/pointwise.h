// SPDX-License-Identifier: MIT
// Activation functions f, and products of an activated gate with a second tensor.
//
//   y = f(x + bias)                                     plain ops
//   y = f(x + bias) * (up + up_bias)                    gated ops: x is the gate
//
// The formula of f is in TFK_ACTIVATIONS, the f of an op in TFK_POINTWISE_OPS.
//
// The backward pass multiplies dy by the derivative: f'(0) of relu is 0, and where x is NaN, f' of
// relu is 1. NaN in x makes y NaN; x of any finite size gives a finite f(x) unless that overflows.
// f(inf) is inf; f(-inf) and f'(+-inf) are NaN as in PyTorch's float64 arithmetic, except that
// those of relu and relu_squared are their limits. Sums x + bias are not rounded to the dtype of x.
//
// Shapes: x, up, y and their gradients are (..., C) with a last stride of 1 and leading dimensions
// that step by one common row stride, so that x and up may be the halves of one packed tensor
// (..., 2 C); bias, up_bias and their gradients are (C,), contiguous.
// Dtypes: x is float64, float32, float16 or bfloat16; up, y and the gradients of these are of the
// same dtype; bias, up_bias and their gradients all of x's dtype or all float32. Arithmetic is in
// float32 (float64 for float64).
// Aliasing: an output may be exactly the memory of one of the inputs of its shape; other than that
// outputs overlap neither inputs nor each other.
// Gradients of a bias are sums in an order that depends on the shape alone.
#pragma once

#include <cstdint>

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

// Every activation f, one a row: F(functor in core/math/activation.h, formula). The library
// computes the functor; its tests evaluate the formula in long double. normal_cdf is the standard
// normal distribution, positive(x) is max(x, 0), softplus(x) is log(1 + exp(x)).
#define TFK_ACTIVATIONS(F)                                                   \
  F(Gelu, normal_cdf(x) * x)                                                 \
  F(GeluTanh, x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))) \
  F(Silu, sigmoid(x) * x)                                                    \
  F(Relu, positive(x))                                                       \
  F(ReluSquared, positive(x) * positive(x))                                  \
  F(QuickGelu, sigmoid(1.702 * x) * x)

// Every op of the family, one a row: OP(enumerator, name, its f, whether it is gated).
#define TFK_POINTWISE_OPS(OP)                          \
  OP(kGelu, "gelu", Gelu, false)                       \
  OP(kGeluTanh, "gelu_tanh", GeluTanh, false)          \
  OP(kSilu, "silu", Silu, false)                       \
  OP(kRelu, "relu", Relu, false)                       \
  OP(kReluSquared, "relu_squared", ReluSquared, false) \
  OP(kQuickGelu, "quick_gelu", QuickGelu, false)       \
  OP(kGeGlu, "geglu", Gelu, true)                      \
  OP(kGeGluTanh, "geglu_tanh", GeluTanh, true)         \
  OP(kSwiGlu, "swiglu", Silu, true)                    \
  OP(kReGlu, "reglu", Relu, true)

#define TFK_POINTWISE_ENUMERATOR(enumerator, name, activation, gated) enumerator,
enum class Pointwise : std::uint8_t { TFK_POINTWISE_OPS(TFK_POINTWISE_ENUMERATOR) };
#undef TFK_POINTWISE_ENUMERATOR

#define TFK_POINTWISE_NAME(enumerator, name, activation, gated) name,
inline constexpr const char* kPointwiseNames[] = {TFK_POINTWISE_OPS(TFK_POINTWISE_NAME)};
#undef TFK_POINTWISE_NAME

inline constexpr int kPointwiseCount = sizeof(kPointwiseNames) / sizeof(kPointwiseNames[0]);

constexpr const char* name_of(Pointwise op) { return kPointwiseNames[static_cast<int>(op)]; }

struct PointwiseForward {
  Pointwise op;
  TensorView x;          // the gate of a gated op
  TensorView up{};       // of gated ops alone
  TensorView bias{};     // optional
  TensorView up_bias{};  // optional, of gated ops alone
  TensorView y;
};

struct PointwiseBackward {
  Pointwise op;
  TensorView dy;
  TensorView x;
  TensorView up{};       // of gated ops alone
  TensorView bias{};     // optional
  TensorView up_bias{};  // optional, of gated ops alone
  TensorView dx;
  TensorView dup{};       // of gated ops alone
  TensorView dbias{};     // optional
  TensorView dup_bias{};  // optional, of gated ops alone
  TensorView y{};         // optional: what the forward pass gave, computed again
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void pointwise_forward(const Context& context, const PointwiseForward& arguments);
TFK_API void pointwise_backward(const Context& context, const PointwiseBackward& arguments);

}  // namespace transformer_kernels
