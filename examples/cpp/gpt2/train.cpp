// SPDX-License-Identifier: MIT
// Trains a GPT-2: the forward pass, the backward pass and the loop around them, from top to bottom.
// Every pass over numbers is a kernel of the library; what is here says which memory it reads and
// writes, in which order.
#include "train.h"

#include <transformer_kernels/attention/attention.h>
#include <transformer_kernels/embedding/embedding.h>
#include <transformer_kernels/linear/linear.h>
#include <transformer_kernels/linear_loss/linear_loss.h>
#include <transformer_kernels/mlp/mlp.h>
#include <transformer_kernels/norm/norm.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <optional>
#include <utility>

#include "activations.h"
#include "blocks.h"
#include "data.h"
#include "log.h"
#include "parameters.h"
#include "state.h"

namespace gpt2 {
namespace {

using tfk::DType;
using tfk::TensorView;

class Training {
 public:
  Training(const TrainOptions& options, const Config& config, State& state, Device& device);

  // Copies B sequences of T tokens to where a call of the step reads them.
  void set_batch(std::int64_t call, const Windows& batch);

  // The gradients of the first call replace those of the state, those of others are added to them.
  void loss_and_gradients(std::int64_t call);
  float loss(const Windows& batch);

  float mean_loss() const;  // of the calls of a step

 private:
  void forward(std::int64_t call, const tfk::LinearLossGradients& gradients_of_head);
  void forward_layer(std::int64_t layer);
  void backward_layer(std::int64_t layer, bool accumulate);
  void backward_norm(const TensorView& dy, const TensorView& dsum, const TensorView& x,
                     const Tensor& mean, const Tensor& rstd, const TensorView& weight,
                     const TensorView& dweight, const TensorView& dbias, bool accumulate);
  Activations& activations(std::int64_t layer) { return activations_[layer % activations_.size()]; }
  // Where an op writes a gradient that it cannot add: to its place, or beside it.
  TensorView target_of(const TensorView& gradient, bool accumulate) const {
    TensorView target = gradient;
    if (accumulate) target.data = part_.view().data;
    return target;
  }

  Config config_;
  Batch batch_;
  const tfk::Context& context_;
  Recompute recompute_;
  const Parameters &weights_, &gradients_;
  std::vector<Stream> streams_;           // into each layer, and into the last norm
  std::vector<Activations> activations_;  // of each layer, or of all in turn
  Tensor sum_, norm_, mean_, rstd_;       // of the last norm
  Tensor dbranch_, dresidual_, dother_, dnorm_, dqkv_, dheads_;  // on their way down
  Tensor head_bias_;
  Tensor positions_;                  // (B, T)
  Tensor inputs_, targets_, losses_;  // (calls, B, T) twice, (calls)
  Tensor part_;                       // of a gradient, as large as the largest
};

DType dtype_of(const TrainOptions& options) {
  return options.bfloat16 ? DType::kBFloat16 : DType::kFloat32;
}

Training::Training(const TrainOptions& options, const Config& config, State& state, Device& device)
    : config_(config),
      batch_{options.batch, options.length, dtype_of(options), device},
      context_(device.context()),
      recompute_(options.recompute),
      weights_(state.read_by_passes()),
      gradients_(state.gradients()) {
  const std::int64_t c = config.channels;
  for (std::int64_t i = 0; i <= config.layers; ++i) {
    streams_.push_back({.branch = batch_.matrix(c), .residual = batch_.stream(c)});
  }
  activations_ = activations_of(batch_, config, recompute_);
  sum_ = batch_.stream(c);
  norm_ = batch_.matrix(c);
  mean_ = batch_.statistic();
  rstd_ = batch_.statistic();
  dbranch_ = batch_.matrix(c);
  dresidual_ = batch_.stream(c);
  dother_ = batch_.stream(c);
  dnorm_ = batch_.matrix(c);
  dqkv_ = batch_.matrix(3 * c);
  dheads_ = batch_.matrix(c);
  head_bias_ = bias_of_head(batch_, weights_.head.sizes[0], config.vocabulary);
  positions_ = positions_of(batch_);
  inputs_ = batch_.numbers(options.accumulate);
  targets_ = batch_.numbers(options.accumulate);
  losses_ = Tensor(DType::kFloat32, {options.accumulate}, device);
  std::int64_t largest = weights_.head.numel();
  for (const auto& [name, view] : weights_.list()) largest = std::max(largest, view.numel());
  part_ = Tensor(DType::kFloat32, {largest}, device);
}

tfk::AttentionInputs attention_inputs(const TensorView& qkv, std::int64_t heads) {
  return {.q = heads_in(qkv, heads, kQueries),
          .k = heads_in(qkv, heads, kKeys),
          .v = heads_in(qkv, heads, kValues),
          .causal = true};
}

void Training::forward_layer(std::int64_t layer) {
  const LayerParameters& w = weights_.layers[layer];
  const Stream &in = streams_[layer], &out = streams_[layer + 1];
  Activations& a = activations(layer);
  add_norm(context_, {.branch = in.branch.view(),
                      .residual = in.residual.view(),
                      .weight = w.ln_1_weight,
                      .bias = w.ln_1_bias,
                      .eps = config_.eps,
                      .sum = a.sum_1.view(),
                      .y = a.norm_1.view(),
                      .mean = a.mean_1.view(),
                      .rstd = a.rstd_1.view()});
  tfk::linear_forward(context_, {.x = a.norm_1.view(),
                                 .weight = transposed(w.attn_weight),
                                 .bias = w.attn_bias,
                                 .y = a.qkv.view()});
  tfk::attention_forward(context_, {.inputs = attention_inputs(a.qkv.view(), config_.heads),
                                    .out = split_heads(a.heads.view(), config_.heads),
                                    .lse = a.lse.view()});
  tfk::linear_forward(context_, {.x = a.heads.view(),
                                 .weight = transposed(w.proj_weight),
                                 .bias = w.proj_bias,
                                 .y = a.projected.view()});
  add_norm(context_, {.branch = a.projected.view(),
                      .residual = a.sum_1.view(),
                      .weight = w.ln_2_weight,
                      .bias = w.ln_2_bias,
                      .eps = config_.eps,
                      .sum = out.residual.view(),
                      .y = a.norm_2.view(),
                      .mean = a.mean_2.view(),
                      .rstd = a.rstd_2.view()});
  tfk::mlp_forward(context_, {.x = a.norm_2.view(),
                              .weight = transposed(w.fc_weight),
                              .bias = w.fc_bias,
                              .down_weight = transposed(w.fc_proj_weight),
                              .down_bias = w.fc_proj_bias,
                              .activation = tfk::Pointwise::kGeluTanh,
                              .z = a.z.view(),
                              .h = a.h.view(),
                              .y = out.branch.view()});
}

// From dy, the gradient of a norm's result, and dsum, that of its sum by the other path, to the
// gradients of the parts of the sum: dbranch_ and dresidual_.
void Training::backward_norm(const TensorView& dy, const TensorView& dsum, const TensorView& x,
                             const Tensor& mean, const Tensor& rstd, const TensorView& weight,
                             const TensorView& dweight, const TensorView& dbias, bool accumulate) {
  tfk::BiasDropoutAddNormBackward pass;
  pass.dy = dy;
  pass.dsum = dsum;
  pass.x = x;
  pass.mean = mean.view();
  pass.rstd = rstd.view();
  pass.weight = weight;
  pass.dx = dbranch_.view();
  pass.dresidual = dother_.view();
  pass.dweight = target_of(dweight, accumulate);
  pass.dbias = dbias;
  if (accumulate) pass.dbias.data = part_.values<float>().subspan(dweight.numel()).data();
  tfk::bias_dropout_add_layer_norm_backward(context_, pass);
  if (accumulate) {
    add(context_, dweight, pass.dweight);
    add(context_, dbias, pass.dbias);
  }
  std::swap(dresidual_, dother_);
}

void Training::backward_layer(std::int64_t layer, bool accumulate) {
  const LayerParameters &w = weights_.layers[layer], &g = gradients_.layers[layer];
  if (recompute_ == Recompute::kLayer) forward_layer(layer);
  Activations& a = activations(layer);
  tfk::mlp_backward(context_, {.dy = dbranch_.view(),
                               .x = a.norm_2.view(),
                               .weight = transposed(w.fc_weight),
                               .bias = w.fc_bias,
                               .down_weight = transposed(w.fc_proj_weight),
                               .activation = tfk::Pointwise::kGeluTanh,
                               .z = a.z.view(),
                               .h = a.h.view(),
                               .dx = dnorm_.view(),
                               .dweight = transposed(g.fc_weight),
                               .dbias = g.fc_bias,
                               .ddown_weight = transposed(g.fc_proj_weight),
                               .ddown_bias = g.fc_proj_bias,
                               .overwrite_z = true,
                               .accumulate_dweight = accumulate,
                               .accumulate_dbias = accumulate});
  backward_norm(dnorm_.view(), dresidual_.view(), streams_[layer + 1].residual.view(), a.mean_2,
                a.rstd_2, w.ln_2_weight, g.ln_2_weight, g.ln_2_bias, accumulate);
  tfk::linear_backward(context_, {.dy = dbranch_.view(),
                                  .x = a.heads.view(),
                                  .weight = transposed(w.proj_weight),
                                  .dx = dheads_.view(),
                                  .dweight = transposed(g.proj_weight),
                                  .dbias = g.proj_bias,
                                  .accumulate_dweight = accumulate,
                                  .accumulate_dbias = accumulate});
  tfk::attention_backward(context_, {.inputs = attention_inputs(a.qkv.view(), config_.heads),
                                     .out = split_heads(a.heads.view(), config_.heads),
                                     .lse = a.lse.view(),
                                     .dout = split_heads(dheads_.view(), config_.heads),
                                     .dq = heads_in(dqkv_.view(), config_.heads, kQueries),
                                     .dk = heads_in(dqkv_.view(), config_.heads, kKeys),
                                     .dv = heads_in(dqkv_.view(), config_.heads, kValues),
                                     .deterministic = true});
  tfk::linear_backward(context_, {.dy = dqkv_.view(),
                                  .x = a.norm_1.view(),
                                  .weight = transposed(w.attn_weight),
                                  .dx = dnorm_.view(),
                                  .dweight = transposed(g.attn_weight),
                                  .dbias = g.attn_bias,
                                  .accumulate_dweight = accumulate,
                                  .accumulate_dbias = accumulate});
  backward_norm(dnorm_.view(), dresidual_.view(), a.sum_1.view(), a.mean_1, a.rstd_1, w.ln_1_weight,
                g.ln_1_weight, g.ln_1_bias, accumulate);
}

// The loss, and where they are wanted its gradients by the head's input and weight.
void Training::forward(std::int64_t call, const tfk::LinearLossGradients& gradients_of_head) {
  // Embeddings of tokens and of positions are the two parts of the first norm's sum.
  const Stream &in = streams_.front(), &out = streams_.back();
  tfk::embedding_forward(
      context_,
      {.weight = weights_.wte, .indices = entry_of(inputs_.view(), call), .y = in.branch.view()});
  tfk::embedding_forward(
      context_,
      {.weight = weights_.wpe, .indices = entry_of(positions_.view(), 0), .y = in.residual.view()});
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) forward_layer(layer);
  add_norm(context_, {.branch = out.branch.view(),
                      .residual = out.residual.view(),
                      .weight = weights_.ln_f_weight,
                      .bias = weights_.ln_f_bias,
                      .eps = config_.eps,
                      .sum = sum_.view(),
                      .y = norm_.view(),
                      .mean = mean_.view(),
                      .rstd = rstd_.view()});

  // The loss and its gradients come from one pass, with a chunk of the logits in memory.
  tfk::linear_cross_entropy_forward(context_,
                                    {.inputs = {.layer = {.x = norm_.view(),
                                                          .linear_weight = weights_.head,
                                                          .linear_bias = head_bias_.view()},
                                                .target = entry_of(targets_.view(), call)},
                                     .loss = entry_of(losses_.view(), call),
                                     .gradients = gradients_of_head});
}

void Training::loss_and_gradients(std::int64_t call) {
  const bool accumulate = call > 0;
  const TensorView dhead = target_of(gradients_.head, accumulate);
  forward(call, {.dx = dnorm_.view(), .dlinear_weight = dhead, .float32_sums = true});
  if (accumulate) add(context_, gradients_.head, dhead);

  backward_norm(dnorm_.view(), {}, sum_.view(), mean_, rstd_, weights_.ln_f_weight,
                gradients_.ln_f_weight, gradients_.ln_f_bias, accumulate);
  for (std::int64_t layer = config_.layers; layer-- > 0;) backward_layer(layer, accumulate);

  // The head has left a gradient in wte's, to which that of the embedding is added.
  const TensorView rows = target_of(gradients_.wte, true);
  tfk::embedding_backward(
      context_,
      {.dy = dresidual_.view(), .indices = entry_of(inputs_.view(), call), .dweight = rows});
  add(context_, gradients_.wte, rows);
  const TensorView dwpe = target_of(gradients_.wpe, accumulate);
  tfk::embedding_backward(
      context_,
      {.dy = dresidual_.view(), .indices = entry_of(positions_.view(), 0), .dweight = dwpe});
  if (accumulate) add(context_, gradients_.wpe, dwpe);
}

void Training::set_batch(std::int64_t call, const Windows& batch) {
  write(entry_of(inputs_.view(), call), batch.inputs.data());
  write(entry_of(targets_.view(), call), batch.targets.data());
}

float Training::loss(const Windows& batch) {
  set_batch(0, batch);
  forward(0, {});
  float loss = 0;
  read(entry_of(losses_.view(), 0), &loss);
  return loss;
}

float Training::mean_loss() const {
  std::vector<float> losses(losses_.view().numel());
  read(losses_.view(), losses.data());
  return std::accumulate(losses.begin(), losses.end(), 0.0f) / static_cast<float>(losses.size());
}

// Copies the batches of a step to where its calls read them.
void set_batches(Training& training, const Data& data, const TrainOptions& options,
                 std::int64_t step) {
  for (std::int64_t call = 0; call < options.accumulate; ++call) {
    training.set_batch(call, data.batch(step * options.accumulate + call, options.batch));
  }
}

// The mean loss of the first batches of data that is not trained on: the same ones at any step.
float validate(Training& training, const Data& data, const TrainOptions& options) {
  float loss = 0;
  for (std::int64_t number = 0; number < options.validation_batches; ++number) {
    loss += training.loss(data.batch(number, options.batch));
  }
  return loss / static_cast<float>(options.validation_batches);
}

}  // namespace

void train(const TrainOptions& options) {
  const Config config = options.model.empty() ? options.fresh : read_config(options.model);
  check_options(options, config);
  Device& device = Device::of(options.device);
  const Path folder = tokenizer_folder(options.tokenizer, options.model);
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const auto read = [&](const Path& path) {
    return Data(path, tokenizer, config.vocabulary, options.length, options.seed);
  };
  const Data data = read(options.data);
  std::optional<Data> unseen;
  if (!options.validation.empty()) unseen = read(options.validation);
  State state(config, dtype_of(options),
              options.model.empty() ? random_parameters(config, options.seed)
                                    : read_parameters(options.model, config, DType::kFloat32),
              {options.weight_decay, options.clip, options.accumulate}, device);
  Training training(options, config, state, device);
  const auto add_gradients = [&] {
    for (std::int64_t i = 0; i < options.accumulate; ++i) training.loss_and_gradients(i);
  };
  if (!options.gradients.empty()) {
    set_batches(training, data, options, 0);
    add_gradients();
    return state.write_gradients(options.gradients, training.mean_loss());
  }

  std::filesystem::create_directories(options.out);
  const Path checkpoint = options.out / "checkpoint.safetensors";
  const std::string settings = settings_of(options);
  const std::int64_t first =
      std::filesystem::exists(checkpoint) ? state.read_checkpoint(checkpoint, settings) : 0;
  Log log(options, first);
  const auto update = device.repeated([&] {
    add_gradients();
    state.update();
  });
  for (std::int64_t step = first; step < options.steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    StepReport report = {.step = step, .lr = learning_rate(options, step)};
    set_batches(training, data, options, step);
    state.set_rate(report.lr);
    update();
    report.loss = training.mean_loss();
    report.norm = state.norm();
    report.time = std::chrono::steady_clock::now() - begin;
    const bool is_last = step + 1 == options.steps;
    if (unseen && (is_last || (step + 1) % options.validate_every == 0)) {
      report.validation_loss = validate(training, *unseen, options);
    }
    log.add(report);
    if (is_last || (step + 1) % options.save_every == 0) {
      state.write_checkpoint(checkpoint, step + 1, settings);
    }
  }
  copy_tokenizer(folder, options.out);
  write_model(options.out, config, state.weights());
  std::printf("%lld steps, the last %lld of them in this run: %s\n",
              static_cast<long long>(options.steps), static_cast<long long>(options.steps - first),
              (options.out / "model.safetensors").c_str());
}

}  // namespace gpt2
