// SPDX-License-Identifier: MIT
// Training and decoding have these blocks in common.
#pragma once

#include <cstdint>

#include "tensor.h"

namespace gpt2 {

// A sum of two parts, and its layer norm. The statistics are for a backward pass, and optional.
struct AddNorm {
  tfk::TensorView branch, residual, weight, bias;
  double eps;
  tfk::TensorView sum, y, mean{}, rstd{};
};
void add_norm(const tfk::Context& context, const AddNorm& arguments);

enum Part { kQueries, kKeys, kValues };

// The heads of one part of qkv (B, T, 3 C): (B, T, H, D).
tfk::TensorView heads_in(const tfk::TensorView& qkv, std::int64_t heads, Part part);

// The columns of x (B, T, C) as heads (B, T, H, D).
tfk::TensorView split_heads(const tfk::TensorView& x, std::int64_t heads);

// to = to + part
void add(const tfk::Context& context, const tfk::TensorView& to, const tfk::TensorView& part);

}  // namespace gpt2
