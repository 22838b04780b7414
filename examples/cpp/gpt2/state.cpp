// SPDX-License-Identifier: MIT
#include "state.h"

#include <stdexcept>

namespace gpt2 {

using tfk::DType;
using tfk::TensorView;

namespace {

constexpr double kBeta2 = 0.95;  // as GPT-3 and nanoGPT have it

std::int64_t number_in(const SafeTensors& file, const std::string& name) {
  const std::string& text = file.metadata(name);
  if (text.empty() || text.size() > 15 ||
      text.find_first_not_of("0123456789") != std::string::npos) {
    throw std::runtime_error("the checkpoint has " + name + " = " + text);
  }
  return std::stoll(text);
}

}  // namespace

State::State(const Config& config, DType dtype, const Parameters& first,
             const UpdateOptions& options, Device& device)
    : options_(options),
      device_(device),
      weights_(config, dtype, device),
      gradients_(config, DType::kFloat32, device),
      exp_avg_(config, DType::kFloat32, device),
      exp_avg_sq_(config, DType::kFloat32, device),
      updates_(DType::kFloat32, {std::ssize(weights_.list())}, device),
      rate_(DType::kFloat64, {}, device),
      scale_(DType::kFloat32, {}, device),
      norm_(DType::kFloat32, {}, device) {
  const auto calls = static_cast<float>(options.calls);
  write(scale_.view(), &calls);
  copy_parameters(first.list(), weights_.list());
  if (dtype != DType::kFloat32) {
    masters_.emplace(config, DType::kFloat32, device);
    copy_parameters(first.list(), masters_->list());
  }
  for (std::int64_t i = 0; i < std::ssize(weights_.list()); ++i) {
    const TensorView& param = weights_.list()[i].view;
    const bool rounded = param.dtype != DType::kFloat32;
    tensors_.push_back({.param = param,
                        .grad = gradients_.list()[i].view,
                        .exp_avg = exp_avg_.list()[i].view,
                        .exp_avg_sq = exp_avg_sq_.list()[i].view,
                        .master = rounded ? masters_->list()[i].view : TensorView(),
                        .step = entry_of(updates_.view(), i),
                        .group = param.rank == 2 ? 0 : 1,
                        .number = i});
  }
}

std::vector<NamedTensor> State::weights() const {
  std::vector<NamedTensor> tensors = weights_.list();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors_[i].master.defined()) tensors[i].view = tensors_[i].master;
  }
  return tensors;
}

void State::set_rate(double lr) { write(rate_.view(), &lr); }

void State::update() {
  const tfk::AdamWGroup matrices = {
      .beta2 = kBeta2, .weight_decay = options_.weight_decay, .rate = rate_.view()};
  tfk::AdamWGroup vectors = matrices;
  vectors.weight_decay = 0;
  const tfk::AdamWGroup groups[] = {matrices, vectors};
  tfk::adamw_step(device_.context(), {.tensors = tensors_,
                                      .groups = groups,
                                      .options = {.grad_scale = scale_.view(),
                                                  .max_norm = options_.clip,
                                                  .skips_nonfinite = true,
                                                  .norm = norm_.view()}});
}

float State::norm() const {
  float norm = 0;
  read(norm_.view(), &norm);
  return norm;
}

std::vector<NamedTensor> State::everything() const {
  std::vector<NamedTensor> tensors;
  const auto append = [&](const std::string& group, const std::vector<NamedTensor>& list) {
    for (const auto& [name, view] : list) tensors.push_back({group + '.' + name, view});
  };
  append("weight", weights());
  append("exp_avg", exp_avg_.list());
  append("exp_avg_sq", exp_avg_sq_.list());
  return tensors;
}

void State::write_gradients(const Path& path, float loss) const {
  std::vector<NamedTensor> means;
  std::vector<Tensor> memory;
  for (const auto& [name, view] : gradients_.list()) {
    const Tensor& mean = memory.emplace_back(view.dtype, shape_of(view));
    read(view, mean.view().data);
    for (float& value : mean.values<float>()) value /= static_cast<float>(options_.calls);
    means.push_back({name, mean.view()});
  }
  write_safetensors(path, means, {{"loss", std::to_string(loss)}});
}

void State::write_checkpoint(const Path& path, std::int64_t step,
                             const std::string& settings) const {
  std::vector<float> updates(updates_.view().numel());
  read(updates_.view(), updates.data());
  write_safetensors(path, everything(),
                    {{"step", std::to_string(step)},
                     {"updates", std::to_string(static_cast<std::int64_t>(updates[0]))},
                     {"settings", settings}});
}

std::int64_t State::read_checkpoint(const Path& path, const std::string& settings) {
  const SafeTensors file(path);
  file.verify();
  if (file.metadata("settings") != settings) {
    throw std::runtime_error(path.string() + ": belongs to a training with the settings\n  " +
                             file.metadata("settings") + "\nnot\n  " + settings);
  }
  for (const auto& [name, view] : everything()) {
    const Tensor stored(view.dtype, shape_of(view));
    file.read(name, stored.view());
    write(view, stored.view().data);
  }
  copy_parameters(weights(), weights_.list());
  const auto done = static_cast<float>(number_in(file, "updates"));
  const std::vector<float> updates(updates_.view().numel(), done);
  write(updates_.view(), updates.data());
  return number_in(file, "step");
}

}  // namespace gpt2
