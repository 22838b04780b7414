// SPDX-License-Identifier: MIT
#include "blocks.h"

#include <transformer_kernels/norm/norm.h>
#include <transformer_kernels/pointwise/dropout.h>

namespace gpt2 {

using tfk::TensorView;

void add_norm(const tfk::Context& context, const AddNorm& arguments) {
  tfk::BiasDropoutAddNormForward pass;
  pass.x = arguments.branch;
  pass.residual = arguments.residual;
  pass.weight = arguments.weight;
  pass.bias = arguments.bias;
  pass.eps = arguments.eps;
  pass.sum = arguments.sum;
  pass.y = arguments.y;
  pass.mean = arguments.mean;
  pass.rstd = arguments.rstd;
  tfk::bias_dropout_add_layer_norm_forward(context, pass);
}

TensorView heads_in(const TensorView& qkv, std::int64_t heads, Part part) {
  const std::int64_t channels = qkv.sizes[2] / 3;
  TensorView view = qkv;
  view.data = static_cast<std::byte*>(qkv.data) + part * channels * tfk::size_of(qkv.dtype);
  view.sizes[2] = channels;
  return split_heads(view, heads);
}

TensorView split_heads(const TensorView& x, std::int64_t heads) {
  TensorView view = x;
  view.rank = 4;
  view.sizes[2] = heads;
  view.sizes[3] = x.sizes[2] / heads;
  view.strides[2] = view.sizes[3];
  view.strides[3] = 1;
  return view;
}

void add(const tfk::Context& context, const TensorView& to, const TensorView& part) {
  tfk::bias_dropout_add_forward(context, {.x = part, .residual = to, .y = to});
}

}  // namespace gpt2
