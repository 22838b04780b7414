// SPDX-License-Identifier: MIT
// The passes call the public ops one after the other: once to check all arguments, which no call
// writes before, and once to run.
#include "transformer_kernels/attention_block/attention_block.h"

#include "core/check.h"
#include "transformer_kernels/attention/attention.h"
#include "transformer_kernels/linear/linear.h"
#include "transformer_kernels/norm/norm.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "attention_block";

using NormForwardCall = void (*)(const Context&, const BiasDropoutAddNormForward&);
using NormBackwardCall = void (*)(const Context&, const BiasDropoutAddNormBackward&);

NormForwardCall forward_of(BlockNorm norm) {
  return norm == BlockNorm::kLayerNorm ? bias_dropout_add_layer_norm_forward
                                       : bias_dropout_add_rms_norm_forward;
}

NormBackwardCall backward_of(BlockNorm norm) {
  return norm == BlockNorm::kLayerNorm ? bias_dropout_add_layer_norm_backward
                                       : bias_dropout_add_rms_norm_backward;
}

void check_rows(const char* name, const TensorView& view) {
  check_value(view.defined(), kOp, ": ", name, " is missing");
  check_value(view.rank == 3, kOp, ": ", name, " has ", view.rank,
              " dimensions, expected 3 (batch, time, channels)");
}

// The checks of the ops inside take for granted that the heads divide the channels.
void check_heads(const AttentionBlockInputs& in, const TensorView& qkv, const TensorView& heads) {
  check_value(in.num_heads > 0, kOp, ": num_heads is ", in.num_heads, ", expected 1 or more");
  check_value(in.num_kv_heads > 0 && in.num_heads % in.num_kv_heads == 0, kOp, ": num_kv_heads is ",
              in.num_kv_heads, ", expected a divisor of num_heads (", in.num_heads, ")");
  check_rows("x", in.x);
  check_rows("qkv", qkv);
  check_rows("heads", heads);
  const std::int64_t count = in.num_heads + 2 * in.num_kv_heads;
  check_value(qkv.sizes[2] % count == 0, kOp, ": qkv has ", qkv.sizes[2],
              " columns, expected a multiple of ", count, " (the heads of q, k and v)");
  const std::int64_t channels = qkv.sizes[2] / count * in.num_heads;
  check_value(heads.sizes[2] == channels, kOp, ": heads has ", heads.sizes[2],
              " columns, expected ", channels, " (those of q in qkv)");
}

// `count` heads of `rows` (B, T, columns) from head `first` on, as (B, T, count, dim).
TensorView heads_of(const TensorView& rows, std::int64_t first, std::int64_t count,
                    std::int64_t dim) {
  TensorView view = rows;
  if (rows.data != nullptr) {
    view.data = static_cast<char*>(rows.data) + first * dim * size_of(rows.dtype);
  }
  view.rank = 4;
  view.sizes[2] = count;
  view.sizes[3] = dim;
  view.strides[2] = dim;
  view.strides[3] = 1;
  return view;
}

struct Heads {
  TensorView q, k, v;
};

Heads split(const AttentionBlockInputs& in, const TensorView& qkv) {
  const std::int64_t heads = in.num_heads;
  const std::int64_t kv_heads = in.num_kv_heads;
  const std::int64_t dim = qkv.sizes[2] / (heads + 2 * kv_heads);
  return {heads_of(qkv, 0, heads, dim), heads_of(qkv, heads, kv_heads, dim),
          heads_of(qkv, heads + kv_heads, kv_heads, dim)};
}

TensorView all_heads(const AttentionBlockInputs& in, const TensorView& rows) {
  return heads_of(rows, 0, in.num_heads, rows.sizes[2] / in.num_heads);
}

AttentionInputs attention_inputs(const AttentionBlockInputs& in, const TensorView& qkv) {
  const auto [q, k, v] = split(in, qkv);
  return {.q = q,
          .k = k,
          .v = v,
          .seed = in.attention_seed,
          .scale = in.scale,
          .causal = in.causal,
          .dropout = in.attention_dropout};
}

void run(const Context& context, const AttentionBlockForward& a) {
  const AttentionBlockInputs& in = a.inputs;
  linear_forward(context, {.x = in.x, .weight = in.qkv_weight, .bias = in.qkv_bias, .y = a.qkv});
  attention_forward(context, {.inputs = attention_inputs(in, a.qkv),
                              .out = all_heads(in, a.heads),
                              .lse = a.lse,
                              .lse_rest = a.lse_rest});
  linear_forward(context, {.x = a.heads, .weight = in.out_weight, .y = a.projected});
  BiasDropoutAddNormForward norm;
  norm.x = a.projected;
  norm.x_bias = in.out_bias;
  norm.residual = a.residual;
  norm.weight = in.norm_weight;
  norm.bias = in.norm_bias;
  norm.y = a.y;
  norm.sum = a.sum;
  norm.mean = a.mean;
  norm.rstd = a.rstd;
  norm.eps = in.eps;
  norm.seed = in.seed;
  norm.p = in.dropout;
  forward_of(in.norm)(context, norm);
}

void through_norm(const Context& context, const AttentionBlockBackward& a) {
  BiasDropoutAddNormBackward norm;
  norm.dy = a.dy;
  norm.dsum = a.dsum;
  norm.x = a.sum;
  norm.mean = a.mean;
  norm.rstd = a.rstd;
  norm.weight = a.inputs.norm_weight;
  norm.dx = a.dprojected;
  norm.dweight = a.dnorm_weight;
  norm.dbias = a.dnorm_bias;
  norm.dresidual = a.dresidual;
  norm.dx_bias = a.dout_bias;
  norm.seed = a.inputs.seed;
  norm.p = a.inputs.dropout;
  backward_of(a.inputs.norm)(context, norm);
}

void run(const Context& context, const AttentionBlockBackward& a) {
  const AttentionBlockInputs& in = a.inputs;
  through_norm(context, a);
  linear_backward(context, {.dy = a.dprojected,
                            .x = a.heads,
                            .weight = in.out_weight,
                            .dx = a.dheads,
                            .dweight = a.dout_weight});
  const auto [dq, dk, dv] = split(in, a.dqkv);
  attention_backward(context, {.inputs = attention_inputs(in, a.qkv),
                               .out = all_heads(in, a.heads),
                               .lse = a.lse,
                               .lse_rest = a.lse_rest,
                               .dout = all_heads(in, a.dheads),
                               .dq = dq,
                               .dk = dk,
                               .dv = dv,
                               .deterministic = a.deterministic});
  linear_backward(context, {.dy = a.dqkv,
                            .x = in.x,
                            .weight = in.qkv_weight,
                            .dx = a.dx,
                            .dweight = a.dqkv_weight,
                            .dbias = a.dqkv_bias});
}

template <class Arguments>
void check_and_run(const Context& context, const Arguments& arguments) {
  Context checking = context;
  checking.checks_only = true;
  run(checking, arguments);
  if (!context.checks_only) run(context, arguments);
}

}  // namespace

void attention_block_forward(const Context& context, const AttentionBlockForward& arguments) {
  check_heads(arguments.inputs, arguments.qkv, arguments.heads);
  check_rows("projected", arguments.projected);
  check_and_run(context, arguments);
}

void attention_block_backward(const Context& context, const AttentionBlockBackward& arguments) {
  check_heads(arguments.inputs, arguments.qkv, arguments.heads);
  check_rows("dqkv", arguments.dqkv);
  check_rows("dheads", arguments.dheads);
  check_and_run(context, arguments);
}

}  // namespace transformer_kernels
