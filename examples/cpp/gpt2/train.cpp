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
#include <optional>
#include <utility>

#include "blocks.h"
#include "data.h"
#include "log.h"
#include "parameters.h"
#include "state.h"

namespace gpt2 {
namespace {

using tfk::DType;
using tfk::TensorView;

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
  DType dtype;

  Tensor matrix(std::int64_t columns) const { return {dtype, {sequences, tokens, columns}}; }
  Tensor stream(std::int64_t columns) const {
    return {DType::kFloat32, {sequences, tokens, columns}};
  }
  TensorView tokens_of(std::vector<std::int32_t>& numbers) const {
    return view_of(numbers.data(), DType::kInt32, {sequences, tokens});
  }
  Tensor statistic() const { return {DType::kFloat32, {sequences, tokens}}; }
};

class Training {
 public:
  Training(const TrainOptions& options, const Config& config, State& state);

  // The mean loss of B sequences of T tokens. Their gradients replace those of the state, or are
  // added to them.
  float loss_and_gradients(Windows& batch, bool accumulate);
  float loss(Windows& batch) { return forward(batch, {}); }

 private:
  float forward(Windows& batch, const tfk::LinearLossGradients& gradients_of_head);
  void forward_layer(std::int64_t layer);
  void backward_layer(std::int64_t layer, bool accumulate);
  void backward_norm(const TensorView& dy, const TensorView& dsum, const TensorView& x,
                     const Tensor& mean, const Tensor& rstd, const TensorView& weight,
                     const TensorView& dweight, const TensorView& dbias, bool accumulate);
  void reserve_activations();
  Activations& activations(std::int64_t layer) { return activations_[layer % activations_.size()]; }
  // Where an op writes a gradient that it cannot add: to its place, or beside it.
  TensorView target_of(const TensorView& gradient, bool accumulate) const {
    TensorView target = gradient;
    if (accumulate) target.data = part_.view().data;
    return target;
  }

  Config config_;
  Batch batch_;
  Recompute recompute_;
  const Parameters &weights_, &gradients_;
  std::vector<Stream> streams_;           // into each layer, and into the last norm
  std::vector<Activations> activations_;  // of each layer, or of all in turn
  Tensor sum_, norm_, mean_, rstd_;       // of the last norm
  Tensor dbranch_, dresidual_, dother_, dnorm_, dqkv_, dheads_;  // on their way down
  Tensor positions_;                                             // (B, T)
  Tensor part_;  // of a gradient, as large as the largest
};

Training::Training(const TrainOptions& options, const Config& config, State& state)
    : config_(config),
      batch_{options.batch, options.length, options.bfloat16 ? DType::kBFloat16 : DType::kFloat32},
      recompute_(options.recompute),
      weights_(state.read_by_passes()),
      gradients_(state.gradients()) {
  const std::int64_t c = config.channels;
  for (std::int64_t i = 0; i <= config.layers; ++i) {
    streams_.push_back({.branch = batch_.matrix(c), .residual = batch_.stream(c)});
  }
  reserve_activations();
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
  positions_ = Tensor(DType::kInt32, {batch_.sequences, batch_.tokens});
  for (std::int64_t i = 0; i < batch_.sequences * batch_.tokens; ++i) {
    positions_.values<std::int32_t>()[i] = static_cast<std::int32_t>(i % batch_.tokens);
  }
  std::int64_t largest = 0;
  for (const auto& [name, view] : weights_.list()) largest = std::max(largest, view.numel());
  part_ = Tensor(DType::kFloat32, {largest});
}

void Training::reserve_activations() {
  const std::int64_t c = config_.channels;
  const std::int64_t kept = recompute_ == Recompute::kLayer ? 1 : config_.layers;
  for (std::int64_t i = 0; i < kept; ++i) {
    activations_.push_back(
        {.sum_1 = batch_.stream(c),
         .norm_1 = batch_.matrix(c),
         .mean_1 = batch_.statistic(),
         .rstd_1 = batch_.statistic(),
         .qkv = batch_.matrix(3 * c),
         .heads = batch_.matrix(c),
         .lse = {DType::kFloat32, {batch_.sequences, config_.heads, batch_.tokens}},
         .projected = batch_.matrix(c),
         .norm_2 = batch_.matrix(c),
         .mean_2 = batch_.statistic(),
         .rstd_2 = batch_.statistic(),
         .z = batch_.matrix(4 * c),
         .h = recompute_ == Recompute::kActivation ? Tensor() : batch_.matrix(4 * c)});
  }
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
  add_norm({.branch = in.branch.view(),
            .residual = in.residual.view(),
            .weight = w.ln_1_weight,
            .bias = w.ln_1_bias,
            .eps = config_.eps,
            .sum = a.sum_1.view(),
            .y = a.norm_1.view(),
            .mean = a.mean_1.view(),
            .rstd = a.rstd_1.view()});
  tfk::linear_forward({}, {.x = a.norm_1.view(),
                           .weight = transposed(w.attn_weight),
                           .bias = w.attn_bias,
                           .y = a.qkv.view()});
  tfk::attention_forward({}, {.inputs = attention_inputs(a.qkv.view(), config_.heads),
                              .out = split_heads(a.heads.view(), config_.heads),
                              .lse = a.lse.view()});
  tfk::linear_forward({}, {.x = a.heads.view(),
                           .weight = transposed(w.proj_weight),
                           .bias = w.proj_bias,
                           .y = a.projected.view()});
  add_norm({.branch = a.projected.view(),
            .residual = a.sum_1.view(),
            .weight = w.ln_2_weight,
            .bias = w.ln_2_bias,
            .eps = config_.eps,
            .sum = out.residual.view(),
            .y = a.norm_2.view(),
            .mean = a.mean_2.view(),
            .rstd = a.rstd_2.view()});
  tfk::mlp_forward({}, {.x = a.norm_2.view(),
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
  tfk::bias_dropout_add_layer_norm_backward({}, pass);
  if (accumulate) {
    add(dweight, pass.dweight);
    add(dbias, pass.dbias);
  }
  std::swap(dresidual_, dother_);
}

void Training::backward_layer(std::int64_t layer, bool accumulate) {
  const LayerParameters &w = weights_.layers[layer], &g = gradients_.layers[layer];
  if (recompute_ == Recompute::kLayer) forward_layer(layer);
  Activations& a = activations(layer);
  tfk::mlp_backward({}, {.dy = dbranch_.view(),
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
  tfk::linear_backward({}, {.dy = dbranch_.view(),
                            .x = a.heads.view(),
                            .weight = transposed(w.proj_weight),
                            .dx = dheads_.view(),
                            .dweight = transposed(g.proj_weight),
                            .dbias = g.proj_bias,
                            .accumulate_dweight = accumulate,
                            .accumulate_dbias = accumulate});
  tfk::attention_backward({}, {.inputs = attention_inputs(a.qkv.view(), config_.heads),
                               .out = split_heads(a.heads.view(), config_.heads),
                               .lse = a.lse.view(),
                               .dout = split_heads(dheads_.view(), config_.heads),
                               .dq = heads_in(dqkv_.view(), config_.heads, kQueries),
                               .dk = heads_in(dqkv_.view(), config_.heads, kKeys),
                               .dv = heads_in(dqkv_.view(), config_.heads, kValues),
                               .deterministic = true});
  tfk::linear_backward({}, {.dy = dqkv_.view(),
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
float Training::forward(Windows& batch, const tfk::LinearLossGradients& gradients_of_head) {
  // Embeddings of tokens and of positions are the two parts of the first norm's sum.
  const Stream &in = streams_.front(), &out = streams_.back();
  tfk::embedding_forward(
      {},
      {.weight = weights_.wte, .indices = batch_.tokens_of(batch.inputs), .y = in.branch.view()});
  tfk::embedding_forward(
      {}, {.weight = weights_.wpe, .indices = positions_.view(), .y = in.residual.view()});
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) forward_layer(layer);
  add_norm({.branch = out.branch.view(),
            .residual = out.residual.view(),
            .weight = weights_.ln_f_weight,
            .bias = weights_.ln_f_bias,
            .eps = config_.eps,
            .sum = sum_.view(),
            .y = norm_.view(),
            .mean = mean_.view(),
            .rstd = rstd_.view()});

  // The loss and its gradients come from one pass, with a chunk of the logits in memory.
  float loss = 0;
  tfk::linear_cross_entropy_forward(
      {}, {.inputs = {.layer = {.x = norm_.view(), .linear_weight = weights_.wte},
                      .target = batch_.tokens_of(batch.targets)},
           .loss = view_of(&loss, DType::kFloat32, {}),
           .gradients = gradients_of_head});
  return loss;
}

float Training::loss_and_gradients(Windows& batch, bool accumulate) {
  const TensorView dwte = target_of(gradients_.wte, accumulate);
  const float loss =
      forward(batch, {.dx = dnorm_.view(), .dlinear_weight = dwte, .float32_sums = true});
  if (accumulate) add(gradients_.wte, dwte);

  backward_norm(dnorm_.view(), {}, sum_.view(), mean_, rstd_, weights_.ln_f_weight,
                gradients_.ln_f_weight, gradients_.ln_f_bias, accumulate);
  for (std::int64_t layer = config_.layers; layer-- > 0;) backward_layer(layer, accumulate);

  // The head has left a gradient in wte's, to which that of the embedding is added.
  const TensorView rows = target_of(gradients_.wte, true);
  tfk::embedding_backward(
      {}, {.dy = dresidual_.view(), .indices = batch_.tokens_of(batch.inputs), .dweight = rows});
  add(gradients_.wte, rows);
  const TensorView dwpe = target_of(gradients_.wpe, accumulate);
  tfk::embedding_backward({},
                          {.dy = dresidual_.view(), .indices = positions_.view(), .dweight = dwpe});
  if (accumulate) add(gradients_.wpe, dwpe);
  return loss;
}

// The mean loss of a step's micro-batches, whose gradients are added up.
float accumulate(Training& training, const Data& data, const TrainOptions& options,
                 std::int64_t step) {
  float loss = 0;
  for (std::int64_t call = 0; call < options.accumulate; ++call) {
    Windows batch = data.batch(step * options.accumulate + call, options.batch);
    loss += training.loss_and_gradients(batch, call > 0);
  }
  return loss / static_cast<float>(options.accumulate);
}

// The mean loss of the first batches of data that is not trained on: the same ones at any step.
float validate(Training& training, const Data& data, const TrainOptions& options) {
  float loss = 0;
  for (std::int64_t number = 0; number < options.validation_batches; ++number) {
    Windows batch = data.batch(number, options.batch);
    loss += training.loss(batch);
  }
  return loss / static_cast<float>(options.validation_batches);
}

}  // namespace

void train(const TrainOptions& options) {
  const Config config = options.model.empty() ? options.fresh : read_config(options.model);
  check_options(options, config);
  const Path folder = tokenizer_folder(options.tokenizer, options.model);
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const auto read = [&](const Path& path) {
    return Data(path, tokenizer, config.vocabulary, options.length, options.seed);
  };
  const Data data = read(options.data);
  std::optional<Data> unseen;
  if (!options.validation.empty()) unseen = read(options.validation);
  State state(config, options.bfloat16 ? DType::kBFloat16 : DType::kFloat32,
              options.model.empty() ? random_parameters(config, options.seed)
                                    : read_parameters(options.model, config, DType::kFloat32));
  Training training(options, config, state);
  if (!options.gradients.empty()) {
    const float loss = accumulate(training, data, options, 0);
    return state.write_gradients(options.gradients, options.accumulate, loss);
  }

  std::filesystem::create_directories(options.out);
  const Path checkpoint = options.out / "checkpoint.safetensors";
  const std::string settings = settings_of(options);
  const std::int64_t first =
      std::filesystem::exists(checkpoint) ? state.read_checkpoint(checkpoint, settings) : 0;
  Log log(options, first);
  for (std::int64_t step = first; step < options.steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    StepReport report = {.step = step, .lr = learning_rate(options, step)};
    report.loss = accumulate(training, data, options, step);
    report.norm = state.update({.lr = report.lr,
                                .weight_decay = options.weight_decay,
                                .clip = options.clip,
                                .calls = options.accumulate});
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
