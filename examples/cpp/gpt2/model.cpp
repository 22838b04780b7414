// SPDX-License-Identifier: MIT
#include "model.h"

#include <transformer_kernels/attention/decode.h>
#include <transformer_kernels/embedding/embedding.h>
#include <transformer_kernels/linear/linear.h>

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "blocks.h"

namespace gpt2 {
namespace {

using tfk::DType;
using tfk::TensorView;

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

constexpr std::size_t kMostPasses = 64;  // that a cache keeps

}  // namespace

// The memory of a step over (B, T) tokens, whose pages stand in a table of so many columns, and its
// work.
struct Pass {
  Pass(const Config& config, DType dtype, const Shape& shape, Device& device)
      : ids(DType::kInt32, {shape[0], shape[1]}, device),
        positions(DType::kInt32, {shape[0], shape[1]}, device),
        lengths(DType::kInt64, {shape[0]}, device),
        pages(DType::kInt32, {shape[0], shape[2]}, device),
        branch(dtype, {shape[0], shape[1], config.channels}, device),
        norm(dtype, {shape[0], shape[1], config.channels}, device),
        qkv(dtype, {shape[0], shape[1], 3 * config.channels}, device),
        attended(dtype, {shape[0], shape[1], config.channels}, device),
        hidden(dtype, {shape[0], shape[1], 4 * config.channels}, device),
        residual(DType::kFloat32, {shape[0], shape[1], config.channels}, device),
        sum(DType::kFloat32, {shape[0], shape[1], config.channels}, device),
        scores(dtype, {shape[0], config.vocabulary}, device) {}

  Tensor ids, positions, lengths, pages;
  Tensor branch, norm, qkv, attended, hidden;
  Tensor residual, sum;
  Tensor scores;
  std::function<void()> work;
};

KvCache::KvCache(const Gpt2& model, std::int64_t pages) {
  const Config& config = model.config();
  const Shape shape = {pages, kPage, config.heads, config.head_dim()};
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    keys_.emplace_back(model.dtype(), shape, model.device());
    values_.emplace_back(model.dtype(), shape, model.device());
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

Gpt2::Packed::Packed(Device& device, const TensorView& weight) {
  if (device.context().device.type == tfk::DeviceType::kCpu) {
    weight_.emplace(device.context(), weight);
  }
}

Gpt2::Gpt2(const Config& config, Parameters parameters, Device& device)
    : config_(config),
      parameters_(std::move(parameters)),
      device_(device),
      head_(device, parameters_.wte) {
  for (const LayerParameters& layer : parameters_.layers) {
    layers_.push_back({.attn = {device, transposed(layer.attn_weight)},
                       .proj = {device, transposed(layer.proj_weight)},
                       .fc = {device, transposed(layer.fc_weight)},
                       .fc_proj = {device, transposed(layer.fc_proj_weight)}});
  }
}

Gpt2 Gpt2::load(const Path& path, DType dtype, Device& device) {
  const Config config = read_config(path);
  return {config, read_parameters(path, config, dtype, device), device};
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

std::shared_ptr<Pass> Gpt2::pass_of(KvCache& cache, const Shape& shape) const {
  if (const auto found = cache.passes_.find(shape); found != cache.passes_.end()) {
    return found->second;
  }
  const auto pass = std::make_shared<Pass>(config_, dtype(), shape, device_);
  pass->work = device_.repeated([this, &cache, &of = *pass] { run(cache, of); });
  if (shape[1] == 1) {
    if (cache.passes_.size() == kMostPasses) cache.passes_.clear();
    cache.passes_[shape] = pass;
  }
  return pass;
}

void Gpt2::step(KvCache& cache, std::span<Sequence* const> sequences,
                std::span<const std::int32_t> tokens, std::span<float> logits) const {
  check_step(sequences, tokens, logits);
  const std::int64_t b = std::ssize(sequences), t = std::ssize(tokens) / b;
  std::int64_t columns = 0;
  for (const Sequence* each : sequences) columns = std::max(columns, std::ssize(each->pages));
  std::vector<std::int32_t> positions, pages(b * columns);
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < b; ++i) {
    const Sequence& sequence = *sequences[i];
    lengths.push_back(sequence.length);
    std::copy(sequence.pages.begin(), sequence.pages.end(), pages.begin() + i * columns);
    for (std::int64_t j = 0; j < t; ++j) {
      positions.push_back(static_cast<std::int32_t>(sequence.length + j));
    }
  }

  const std::shared_ptr<Pass> pass = pass_of(cache, {b, t, columns});
  write(pass->ids.view(), tokens.data());
  write(pass->positions.view(), positions.data());
  write(pass->lengths.view(), lengths.data());
  write(pass->pages.view(), pages.data());
  pass->work();
  const OnHost scores(pass->scores.view());
  convert(scores.view().data, dtype(), logits.data(), DType::kFloat32, scores.view().numel());
  for (Sequence* sequence : sequences) sequence->length += t;
}

void Gpt2::run(const KvCache& cache, Pass& p) const {
  const tfk::Context& context = device_.context();
  const std::int64_t heads = config_.heads;
  // Each norm reads one sum and writes the next.
  const auto norm_of_sum = [&](const TensorView& weight, const TensorView& bias) {
    add_norm(context, {.branch = p.branch.view(),
                       .residual = p.residual.view(),
                       .weight = weight,
                       .bias = bias,
                       .eps = config_.eps,
                       .sum = p.sum.view(),
                       .y = p.norm.view()});
    std::swap(p.residual, p.sum);
  };
  tfk::embedding_forward(
      context, {.weight = parameters_.wte, .indices = p.ids.view(), .y = p.branch.view()});
  tfk::embedding_forward(
      context, {.weight = parameters_.wpe, .indices = p.positions.view(), .y = p.residual.view()});
  for (std::int64_t i = 0; i < config_.layers; ++i) {
    const LayerParameters& w = parameters_.layers[i];
    const Layer& packed = layers_[i];
    norm_of_sum(w.ln_1_weight, w.ln_1_bias);
    tfk::linear_forward(context, {.x = p.norm.view(),
                                  .weight = transposed(w.attn_weight),
                                  .packed = packed.attn.view(),
                                  .bias = w.attn_bias,
                                  .y = p.qkv.view()});
    tfk::attention_with_kv_cache(context, {.q = heads_in(p.qkv.view(), heads, kQueries),
                                           .k_cache = cache.keys(i),
                                           .v_cache = cache.values(i),
                                           .k = heads_in(p.qkv.view(), heads, kKeys),
                                           .v = heads_in(p.qkv.view(), heads, kValues),
                                           .lengths = p.lengths.view(),
                                           .page_table = p.pages.view(),
                                           .causal = true,
                                           .out = split_heads(p.attended.view(), heads)});
    tfk::linear_forward(context, {.x = p.attended.view(),
                                  .weight = transposed(w.proj_weight),
                                  .packed = packed.proj.view(),
                                  .bias = w.proj_bias,
                                  .y = p.branch.view()});
    norm_of_sum(w.ln_2_weight, w.ln_2_bias);
    tfk::linear_forward(context, {.x = p.norm.view(),
                                  .weight = transposed(w.fc_weight),
                                  .packed = packed.fc.view(),
                                  .bias = w.fc_bias,
                                  .activation = tfk::Pointwise::kGeluTanh,
                                  .y = p.hidden.view()});
    tfk::linear_forward(context, {.x = p.hidden.view(),
                                  .weight = transposed(w.fc_proj_weight),
                                  .packed = packed.fc_proj.view(),
                                  .bias = w.fc_proj_bias,
                                  .y = p.branch.view()});
  }
  norm_of_sum(parameters_.ln_f_weight, parameters_.ln_f_bias);
  tfk::linear_forward(context, {.x = last_rows(p.norm.view()),
                                .weight = parameters_.wte,
                                .packed = head_.view(),
                                .y = p.scores.view()});
}

}  // namespace gpt2
