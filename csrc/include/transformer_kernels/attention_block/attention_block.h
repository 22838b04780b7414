// SPDX-License-Identifier: MIT
// An attention layer from its input to the norm behind it, as transformers have it.
//
//   qkv   = x qkv_weight^T + qkv_bias             the heads of q, then those of k, then those of v
//   heads = attention(q, k, v)
//   sum   = residual + dropout(heads out_weight^T + out_bias)
//   y     = norm(sum)
//
// Each pass is a sequence of the library's ops, whose headers have the formulas, aliasing rules and
// dtypes: linear/linear.h, attention/attention.h, and the norms of norm/norm.h behind dropout. The
// forward pass is four of them, on CUDA four kernels where the products run on Hopper's engine: the
// product with its bias, attention, the second product, and all that follows it.
//
// Shapes: x, residual, y, sum, projected, their gradients and dprojected are (B, T, C), qkv and
// dqkv (B, T, (H + 2 Hk) D), heads and dheads (B, T, H D), lse and lse_rest (B, H, T), mean and
// rstd (B, T); qkv_weight is ((H + 2 Hk) D, C), out_weight (C, H D), both of any strides; biases
// have one number for each row of their weight, norm_weight and norm_bias (C,). H is a multiple of
// Hk. All else is contiguous.
// Dtypes: all tensors have that of x, with the exceptions that the ops make: float32 biases and
// parameters beside 16 bits, a float32 residual, sum, dsum and dresidual, float32 statistics.
// Memory: the caller gives it, also for what lies between the ops. `projected`, `dprojected`,
// `dheads` and `dqkv` may be freed after the call; qkv, heads and the statistics are for the
// backward pass, and qkv may be computed again there, by linear_forward. The gradient of qkv is
// written by attention into one tensor, without a copy.
#pragma once

#include <cstdint>
#include <optional>

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

enum class BlockNorm : std::uint8_t { kLayerNorm, kRmsNorm };

// The inputs of both the forward and the backward pass.
struct AttentionBlockInputs {
  TensorView x;
  TensorView qkv_weight;
  TensorView qkv_bias{};  // optional
  TensorView out_weight;
  TensorView out_bias{};        // optional, like all below
  TensorView norm_weight{};     //
  TensorView norm_bias{};       //
  TensorView attention_seed{};  // needed with attention_dropout
  TensorView seed{};            // needed with dropout
  std::int64_t num_heads = 1;
  std::int64_t num_kv_heads = 1;
  bool causal = false;
  std::optional<double> scale{};  // default: 1 / sqrt(D)
  double attention_dropout = 0;
  double dropout = 0;
  BlockNorm norm = BlockNorm::kLayerNorm;
  std::optional<double> eps{};  // default: that of the norm
};

struct AttentionBlockForward {
  AttentionBlockInputs inputs;
  TensorView residual;
  TensorView qkv;
  TensorView heads;
  TensorView projected;
  TensorView lse{};       // optional, for the backward pass, like all below
  TensorView lse_rest{};  //
  TensorView mean{};      // of layer_norm
  TensorView rstd{};      //
  TensorView y;
  TensorView sum;
};

struct AttentionBlockBackward {
  AttentionBlockInputs inputs;
  TensorView dy;
  TensorView dsum{};  // optional: the gradient that reaches the sum by another path
  TensorView qkv;     // what the forward pass returned, as all up to rstd
  TensorView heads;
  TensorView lse;
  TensorView lse_rest{};  // optional
  TensorView sum;
  TensorView mean{};  // of layer_norm
  TensorView rstd;
  TensorView dprojected;
  TensorView dheads;
  TensorView dqkv;
  TensorView dx{};  // optional, like all below but dresidual
  TensorView dresidual;
  TensorView dqkv_weight{};
  TensorView dqkv_bias{};
  TensorView dout_weight{};
  TensorView dout_bias{};
  TensorView dnorm_weight{};
  TensorView dnorm_bias{};
  bool deterministic = false;  // as in AttentionBackward
};

// Throws Error, with nothing written, when an argument does not meet the contract above; the
// message begins with the name of the op inside that refuses it.
TFK_API void attention_block_forward(const Context& context,
                                     const AttentionBlockForward& arguments);
TFK_API void attention_block_backward(const Context& context,
                                      const AttentionBlockBackward& arguments);

}  // namespace transformer_kernels
