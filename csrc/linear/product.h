// SPDX-License-Identifier: MIT
// A matrix product and its epilogue: the unit of work of the family's passes, on every device.
#pragma once

#include <optional>
#include <string>

#include "linear/problem.h"

namespace transformer_kernels {

// sum = a b, a of rows x terms and b of terms x cols. Each of the operands and results has a step
// of 1 in one direction at least, but where an engine says otherwise.
//
//   out = sum + bias                               without an activation
//   out = f(z), kept = z, z = sum + bias           with one
//   out = sum f'(z), kept = f(z)                   with one, and z given
//   out = out + sum                                if it accumulates: without bias and activation
//
// z is rounded to dtype before f. With z given, dbias is the sum of the rows of out, as rounded.
// out_dtype is dtype, or without bias and activation also that of the sum.
// The CPU's engine takes neither z nor dbias; there elements of a row of each result are together,
// and bias is a wide row (core/cpu/columns.h) whatever its dtype was.
struct Product {
  const char* op;
  DType dtype;  // of all but out and biases
  DType out_dtype = dtype;
  bool accumulates = false;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t terms;
  Matrix a;
  Matrix b;
  const void* packed_b = nullptr;  // on the CPU: b as pack_weight() leaves it; may be null
  Matrix out;
  Matrix kept{};               // may be null
  Matrix z{};                  // may be null
  const void* bias = nullptr;  // may be null
  DType bias_dtype{};          // of bias and of dbias
  std::optional<Pointwise> activation{};
  void* dbias = nullptr;  // may be null; elements of a row of out are together
  bool accumulates_dbias = false;
  std::int64_t algorithm = kAnyAlgorithm;  // of cuBLASLt, which is the engine then

  // The product whose result is the transpose of this one's, which has neither bias nor activation.
  Product transposed() const {
    Product p = *this;
    p.rows = cols;
    p.cols = rows;
    p.a = b.transposed();
    p.b = a.transposed();
    p.out = out.transposed();
    return p;
  }
};

// Whether the product changes no element of out. It may still have a gradient of a bias.
constexpr bool leaves_out(const Product& p) {
  return p.rows == 0 || p.cols == 0 || (p.terms == 0 && p.accumulates);
}

std::string describe(const Product& product);

}  // namespace transformer_kernels
