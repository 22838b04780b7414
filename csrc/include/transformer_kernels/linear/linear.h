// SPDX-License-Identifier: MIT
// A linear layer, optionally followed by an activation.
//
//   z = x weight^T + bias,   y = f(z)                    f is the identity without an activation
//
//   dz = dy f'(z),   dx = dz weight,   dweight = dz^T x,   dbias = the sum of the rows of dz
//
// and the gradient at an activation that is followed by a layer, y = f(z) weight^T:
//
//   h = f(z),   dz = (dy weight) f'(z),   dbias = the sum of the rows of dz
//
// Shapes: x is (..., K), weight (N, K), bias (N,), z and y (..., N); a gradient has the shape of
// its tensor. In linear_dact, dy is (..., N), weight (N, K), z, dz and h (..., K), dbias (K,). Any
// of the sizes may be 0: an empty sum is 0. Strides: x, z, y and their gradients have a last stride
// of 1 and leading dimensions that step by one common row stride; weight and dweight have any
// strides, so that a weight kept as (K, N) is read where it lies. bias and dbias are contiguous.
// Dtypes: x is float64, float32, float16 or bfloat16, and all others have the same dtype, except
// that bias, dbias and dweight may be float32. Products are summed in float32 (float64 for
// float64), and a sum is rounded once, to the dtype of its result. The order of a sum depends on K,
// below 17 rows also on the strides of weight, and on CUDA also on N and the device. z is rounded
// to the dtype of x before f, as if it were an op of its own.
// Accumulation: a gradient that accumulates is added to what its tensor holds, with one rounding of
// old + sum to the dtype of the tensor; cuBLASLt rounds a sum of 16 bits also before it adds it.
// Without terms the tensor stays as it is.
// Packed: the CPU reads a packed weight (packed_weight.h) in place of weight, of which only shape
// and dtype count then. A sum has another order then, which also depends on how many rows there
// are.
// Aliasing: outputs overlap neither inputs nor each other, but that the dz of linear_dact may be
// exactly z's memory.
//
// On CUDA, GEMMs of 16-bit elements with 16-byte aligned rows are fast on Hopper, and those of at
// most 16 rows from compute capability 8.0 on. cuBLASLt takes most others, where it is found; what
// is left runs on a kernel that takes everything and is slow. A caller may ask for cuBLASLt by the
// number of an algorithm, counted from 0 in the order in which cuBLASLt offers them; a number that
// it does not offer is refused.
#pragma once

#include <optional>

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/pointwise/pointwise.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

inline constexpr std::int64_t kAnyAlgorithm = -1;
// On CUDA cuBLASLt's first algorithm, where it takes the product; else as kAnyAlgorithm.
inline constexpr std::int64_t kPreferCublasLt = -2;

struct LinearForward {
  TensorView x;
  TensorView weight;
  TensorView packed{};                    // optional: weight as pack_weight() leaves it
  TensorView bias{};                      // optional
  std::optional<Pointwise> activation{};  // none of the gated ones
  TensorView z{};                         // optional: what the backward pass reads of f
  TensorView y;
  std::int64_t algorithm = kAnyAlgorithm;  // of cuBLASLt
};

// Each output is optional; without one, its accumulate_... means nothing.
struct LinearBackward {
  TensorView dy;
  TensorView x;
  TensorView weight{};  // optional with dweight and without dx, which alone reads its elements
  std::optional<Pointwise> activation{};
  TensorView z{};  // with an activation
  TensorView dx{};
  TensorView dweight{};
  TensorView dbias{};
  std::int64_t dx_algorithm = kAnyAlgorithm;
  std::int64_t dweight_algorithm = kAnyAlgorithm;
  bool accumulate_dx = false;
  bool accumulate_dweight = false;
  bool accumulate_dbias = false;
};

struct LinearDact {
  TensorView dy;
  TensorView weight;
  TensorView z;
  Pointwise activation;  // none of the gated ones
  TensorView dz;
  TensorView h{};      // optional
  TensorView dbias{};  // optional: of the bias that z has
  bool accumulate_dbias = false;
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void linear_forward(const Context& context, const LinearForward& arguments);
TFK_API void linear_backward(const Context& context, const LinearBackward& arguments);
TFK_API void linear_dact(const Context& context, const LinearDact& arguments);

}  // namespace transformer_kernels
