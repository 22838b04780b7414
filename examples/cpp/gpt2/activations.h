// SPDX-License-Identifier: MIT
// The memory of a training's passes.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor.h"
#include "train.h"

namespace gpt2 {

// A layer takes the stream of the layers before it, and what the last of them adds to it.
// The stream is float32 whatever the products compute in.
struct Stream {
  Tensor branch, residual;  // (B, T, C)
};

// A layer leaves these for its backward pass.
struct Activations {
  Tensor sum_1, norm_1, mean_1, rstd_1;  // (B, T, C) twice, (B, T) twice
  Tensor qkv, heads, lse, projected;     // (B, T, 3 C), (B, T, C), (B, H, T), (B, T, C)
  Tensor norm_2, mean_2, rstd_2, z, h;   // z and h are (B, T, 4 C)
};

// A pass over `sequences` of `tokens` each, whose products compute in `dtype`.
struct Batch {
  std::int64_t sequences, tokens;
  tfk::DType dtype;
  Device& device;

  Tensor matrix(std::int64_t columns) const {
    return {dtype, {sequences, tokens, columns}, device};
  }
  Tensor stream(std::int64_t columns) const {
    return {tfk::DType::kFloat32, {sequences, tokens, columns}, device};
  }
  Tensor statistic() const { return {tfk::DType::kFloat32, {sequences, tokens}, device}; }
  Tensor numbers(std::int64_t calls) const {
    return {tfk::DType::kInt32, {calls, sequences, tokens}, device};
  }
};

// The place of each token in its sequence, for one call.
Tensor positions_of(const Batch& batch);

// A bias that keeps rows behind those of the vocabulary out of the head's loss and gradients; none
// where there are no such rows.
Tensor bias_of_head(const Batch& batch, std::int64_t rows, std::int64_t vocabulary);

// Each layer has its own; where all that a layer computes is computed again, all share one in turn.
std::vector<Activations> activations_of(const Batch& batch, const Config& config,
                                        Recompute recompute);

}  // namespace gpt2
