// SPDX-License-Identifier: MIT
#include "model.h"

#include <transformer_kernels/attention/decode.h>
#include <transformer_kernels/embedding/embedding.h>
#include <transformer_kernels/linear/linear.h>

#include <algorithm>
#include <stdexcept>

#include "blocks.h"

namespace gpt2 {
namespace {

using tfk::DType;
using tfk::TensorView;

DType dtype_of(Precision precision) {
  return precision == Precision::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
}

std::int64_t pages_of(std::int64_t tokens) { return (tokens + kPage - 1) / kPage; }

// The last of the T rows of each sequence.
TensorView last_rows(const TensorView& x) {
  TensorView view = part_of(x, 0, x.sizes[0]);
  view.data =
      static_cast<std::byte*>(x.data) + (x.sizes[1] - 1) * x.strides[1] * tfk::size_of(x.dtype);
  view.rank = 2;
  view.sizes[1] = x.sizes[2];
  view.strides[1] = 1;
  return view;
}

}  // namespace

KvCache::KvCache(const Config& config, Precision precision, std::int64_t pages) {
  const Shape shape = {pages, kPage, config.heads, config.head_dim()};
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    keys_.emplace_back(dtype_of(precision), shape);
    values_.emplace_back(dtype_of(precision), shape);
  }
  for (std::int64_t page = pages; page-- > 0;) free_.push_back(static_cast<std::int32_t>(page));
}

bool KvCache::reserve(Sequence& sequence, std::int64_t tokens) {
  const std::int64_t missing = pages_of(sequence.length + tokens) - std::ssize(sequence.pages);
  if (missing > free_pages()) return false;
  for (std::int64_t i = 0; i < missing; ++i) {
    sequence.pages.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void KvCache::release(Sequence& sequence) {
  free_.insert(free_.end(), sequence.pages.begin(), sequence.pages.end());
  sequence = {};
}

Gpt2::Gpt2(const Config& config, Parameters parameters)
    : config_(config),
      parameters_(std::move(parameters)),
      head_({}, parameters_.wte) {
  for (const LayerParameters& layer : parameters_.layers) {
    layers_.push_back({.attn = {{}, transposed(layer.attn_weight)},
                       .proj = {{}, transposed(layer.proj_weight)},
                       .fc = {{}, transposed(layer.fc_weight)},
                       .fc_proj = {{}, transposed(layer.fc_proj_weight)}});
  }
}

Gpt2 Gpt2::load(const Path& path, Precision precision) {
  const Config config = read_config(path);
  return {config, read_parameters(path, config, dtype_of(precision))};
}

void Gpt2::check_step(std::span<Sequence* const> sequences, std::span<const std::int32_t> tokens,
                      std::span<float> logits) const {
  const std::int64_t b = std::ssize(sequences);
  if (b == 0 || tokens.empty() || tokens.size() % b != 0 ||
      std::ssize(logits) != b * config_.vocabulary) {
    throw std::runtime_error("a step has the wrong number of tokens or logits");
  }
  const std::int64_t t = std::ssize(tokens) / b;
  for (const Sequence* sequence : sequences) {
    const std::int64_t length = sequence->length + t;
    if (length > config_.positions) {
      throw std::runtime_error("a sequence of " + std::to_string(length) +
                               " tokens is longer than the model's " +
                               std::to_string(config_.positions) + " positions");
    }
    if (pages_of(length) > std::ssize(sequence->pages)) {
      throw std::runtime_error("a sequence has no pages for its new tokens");
    }
  }
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= config_.vocabulary) {
      throw std::runtime_error("the token " + std::to_string(token) + " is none of the model's");
    }
  }
}

void Gpt2::step(KvCache& cache, std::span<Sequence* const> sequences,
                std::span<const std::int32_t> tokens, std::span<float> logits) const {
  check_step(sequences, tokens, logits);
  const std::int64_t b = std::ssize(sequences), t = std::ssize(tokens) / b;
  const std::int64_t c = config_.channels, heads = config_.heads;
  const DType dtype = parameters_.wte.dtype;

  std::int64_t columns = 0;
  for (const Sequence* each : sequences) columns = std::max(columns, std::ssize(each->pages));
  const Tensor ids(DType::kInt32, {b, t}), positions(DType::kInt32, {b, t});
  const Tensor lengths(DType::kInt64, {b}), table(DType::kInt32, {b, columns});
  std::copy(tokens.begin(), tokens.end(), ids.values<std::int32_t>().begin());
  for (std::int64_t i = 0; i < b; ++i) {
    lengths.values<std::int64_t>()[i] = sequences[i]->length;
    std::copy(sequences[i]->pages.begin(), sequences[i]->pages.end(),
              table.values<std::int32_t>().begin() + i * columns);
    for (std::int64_t j = 0; j < t; ++j) {
      positions.values<std::int32_t>()[i * t + j] =
          static_cast<std::int32_t>(sequences[i]->length + j);
    }
  }

  const Tensor branch(dtype, {b, t, c}), norm(dtype, {b, t, c}), qkv(dtype, {b, t, 3 * c});
  const Tensor attended(dtype, {b, t, c}), hidden(dtype, {b, t, 4 * c});
  // Each norm reads one sum and writes the next.
  Tensor residual(DType::kFloat32, {b, t, c}), sum(DType::kFloat32, {b, t, c});
  const auto norm_of_sum = [&](const TensorView& weight, const TensorView& bias) {
    add_norm({.branch = branch.view(),
              .residual = residual.view(),
              .weight = weight,
              .bias = bias,
              .eps = config_.eps,
              .sum = sum.view(),
              .y = norm.view()});
    std::swap(residual, sum);
  };
  tfk::embedding_forward({},
                         {.weight = parameters_.wte, .indices = ids.view(), .y = branch.view()});
  tfk::embedding_forward(
      {}, {.weight = parameters_.wpe, .indices = positions.view(), .y = residual.view()});
  for (std::int64_t i = 0; i < config_.layers; ++i) {
    const LayerParameters& w = parameters_.layers[i];
    const Layer& packed = layers_[i];
    norm_of_sum(w.ln_1_weight, w.ln_1_bias);
    tfk::linear_forward({}, {.x = norm.view(),
                             .weight = transposed(w.attn_weight),
                             .packed = packed.attn.view(),
                             .bias = w.attn_bias,
                             .y = qkv.view()});
    tfk::attention_with_kv_cache({}, {.q = heads_in(qkv.view(), heads, kQueries),
                                      .k_cache = cache.keys(i),
                                      .v_cache = cache.values(i),
                                      .k = heads_in(qkv.view(), heads, kKeys),
                                      .v = heads_in(qkv.view(), heads, kValues),
                                      .lengths = lengths.view(),
                                      .page_table = table.view(),
                                      .causal = true,
                                      .out = split_heads(attended.view(), heads)});
    tfk::linear_forward({}, {.x = attended.view(),
                             .weight = transposed(w.proj_weight),
                             .packed = packed.proj.view(),
                             .bias = w.proj_bias,
                             .y = branch.view()});
    norm_of_sum(w.ln_2_weight, w.ln_2_bias);
    tfk::linear_forward({}, {.x = norm.view(),
                             .weight = transposed(w.fc_weight),
                             .packed = packed.fc.view(),
                             .bias = w.fc_bias,
                             .activation = tfk::Pointwise::kGeluTanh,
                             .y = hidden.view()});
    tfk::linear_forward({}, {.x = hidden.view(),
                             .weight = transposed(w.fc_proj_weight),
                             .packed = packed.fc_proj.view(),
                             .bias = w.fc_proj_bias,
                             .y = branch.view()});
  }
  norm_of_sum(parameters_.ln_f_weight, parameters_.ln_f_bias);
  const Tensor scores(dtype, {b, config_.vocabulary});
  tfk::linear_forward({}, {.x = last_rows(norm.view()),
                           .weight = parameters_.wte,
                           .packed = head_.view(),
                           .y = scores.view()});
  convert(scores.view().data, dtype, logits.data(), DType::kFloat32, scores.view().numel());
  for (Sequence* sequence : sequences) sequence->length += t;
}

}  // namespace gpt2
