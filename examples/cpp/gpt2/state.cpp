// SPDX-License-Identifier: MIT
#include "state.h"

#include <algorithm>
#include <span>
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

State::State(const Config& config, DType dtype, const Parameters& first)
    : weights_(config, dtype),
      gradients_(config, DType::kFloat32),
      exp_avg_(config, DType::kFloat32),
      exp_avg_sq_(config, DType::kFloat32),
      updates_(weights_.list().size()) {
  copy_parameters(first.list(), weights_.list());
  if (dtype != DType::kFloat32) {
    masters_.emplace(config, DType::kFloat32);
    copy_parameters(first.list(), masters_->list());
  }
  for (std::size_t i = 0; i < updates_.size(); ++i) {
    const TensorView& param = weights_.list()[i].view;
    const bool rounded = param.dtype != DType::kFloat32;
    tensors_.push_back({.param = param,
                        .grad = gradients_.list()[i].view,
                        .exp_avg = exp_avg_.list()[i].view,
                        .exp_avg_sq = exp_avg_sq_.list()[i].view,
                        .master = rounded ? masters_->list()[i].view : TensorView(),
                        .step = view_of(&updates_[i], DType::kFloat32, {}),
                        .group = param.rank == 2 ? 0 : 1,
                        .number = static_cast<std::int64_t>(i)});
  }
}

std::vector<NamedTensor> State::weights() const {
  std::vector<NamedTensor> tensors = weights_.list();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors_[i].master.defined()) tensors[i].view = tensors_[i].master;
  }
  return tensors;
}

float State::update(const Update& update) {
  float norm = 0, scale = static_cast<float>(update.calls);
  const tfk::AdamWGroup groups[] = {
      {.lr = update.lr, .beta2 = kBeta2, .weight_decay = update.weight_decay},
      {.lr = update.lr, .beta2 = kBeta2, .weight_decay = 0}};  // of vectors
  tfk::adamw_step({}, {.tensors = tensors_,
                       .groups = groups,
                       .options = {.grad_scale = view_of(&scale, DType::kFloat32, {}),
                                   .max_norm = update.clip,
                                   .skips_nonfinite = true,
                                   .norm = view_of(&norm, DType::kFloat32, {})}});
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

void State::write_gradients(const Path& path, std::int64_t calls, float loss) {
  for (const auto& [name, view] : gradients_.list()) {
    for (float& value : std::span(static_cast<float*>(view.data), view.numel())) {
      value /= static_cast<float>(calls);
    }
  }
  write_safetensors(path, gradients_.list(), {{"loss", std::to_string(loss)}});
}

void State::write_checkpoint(const Path& path, std::int64_t step,
                             const std::string& settings) const {
  write_safetensors(path, everything(),
                    {{"step", std::to_string(step)},
                     {"updates", std::to_string(static_cast<std::int64_t>(updates_[0]))},
                     {"settings", settings}});
}

std::int64_t State::read_checkpoint(const Path& path, const std::string& settings) {
  const SafeTensors file(path);
  file.verify();
  if (file.metadata("settings") != settings) {
    throw std::runtime_error(path.string() + ": belongs to a training with the settings\n  " +
                             file.metadata("settings") + "\nnot\n  " + settings);
  }
  for (const auto& [name, view] : everything()) file.read(name, view);
  copy_parameters(weights(), weights_.list());
  std::fill(updates_.begin(), updates_.end(), static_cast<float>(number_in(file, "updates")));
  return number_in(file, "step");
}

}  // namespace gpt2
