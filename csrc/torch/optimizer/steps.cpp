// SPDX-License-Identifier: MIT
// Steps of optimizers over lists of tensors. Lists of what no tensor has are empty; an entry
// without elements is one that its tensor lacks.
#include <optional>
#include <string>
#include <vector>

#include "core/backends.h"
#include "core/check.h"
#include "torch/convert.h"
#include "transformer_kernels/optimizer/adamw.h"
#include "transformer_kernels/optimizer/lion.h"

namespace transformer_kernels::torch_ops {
namespace {

using Tensors = std::vector<Tensor>;
using Integers = std::vector<std::int64_t>;
using Numbers = std::vector<double>;

constexpr std::size_t kSettings = 6;  // of a group: lr, beta1, beta2, eps, weight_decay, maximize

// The lists of a call in the order of the schema.
struct Lists {
  const char* op;
  const Tensors& params;
  const Tensors& grads;
  const Tensors& exp_avgs;
  const Tensors& exp_avg_sqs;
  const Tensors& max_exp_avg_sqs;
  const Tensors& masters;
  const Tensors& exp_avg_scales;
  const Tensors& exp_avg_sq_scales;
  const Tensors& steps;
  const Tensors& rates;
  const Integers& groups;
  const Integers& numbers;

  std::vector<OptimizerTensor> tensors() const {
    std::vector<OptimizerTensor> all(params.size());
    put(all, "params", params, &OptimizerTensor::param, true);
    put(all, "grads", grads, &OptimizerTensor::grad, true);
    put(all, "exp_avgs", exp_avgs, &OptimizerTensor::exp_avg, true);
    put(all, "exp_avg_sqs", exp_avg_sqs, &OptimizerTensor::exp_avg_sq, true);
    put(all, "max_exp_avg_sqs", max_exp_avg_sqs, &OptimizerTensor::max_exp_avg_sq, true);
    put(all, "masters", masters, &OptimizerTensor::master, false);
    put(all, "exp_avg_scales", exp_avg_scales, &OptimizerTensor::exp_avg_scales, false);
    put(all, "exp_avg_sq_scales", exp_avg_sq_scales, &OptimizerTensor::exp_avg_sq_scales, false);
    put(all, "steps", steps, &OptimizerTensor::step, true);
    check_count("groups", groups.size());
    check_count("numbers", numbers.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].group = static_cast<int>(groups[i]);
      all[i].number = numbers[i];
    }
    return all;
  }

 private:
  void check_count(const char* name, std::size_t count) const {
    check_value(count == params.size(), op, ": ", name, " has ", count, " entries, expected ",
                params.size(), " (as many as params)");
  }
  void put(std::vector<OptimizerTensor>& all, const char* name, const Tensors& list,
           TensorView OptimizerTensor::*member, bool has_empty) const {
    if (list.empty()) return;
    check_count(name, list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (has_empty || list[i].numel() > 0) all[i].*member = view_of(op, name, list[i]);
    }
  }
};

// Groups whose learning rate is a tensor have it in `rates`.
std::vector<AdamWGroup> groups_of(const char* op, const Numbers& settings, const Tensors& rates) {
  check_value(settings.size() % kSettings == 0, op, ": settings has ", settings.size(),
              " numbers, expected ", kSettings, " a group");
  std::vector<AdamWGroup> groups;
  groups.reserve(settings.size() / kSettings);
  check_value(rates.empty() || rates.size() * kSettings == settings.size(), op, ": rates has ",
              rates.size(), " entries, expected ", settings.size() / kSettings,
              " (one a group) or none");
  for (std::size_t i = 0; i < settings.size(); i += kSettings) {
    groups.push_back({.lr = settings[i],
                      .beta1 = settings[i + 1],
                      .beta2 = settings[i + 2],
                      .eps = settings[i + 3],
                      .weight_decay = settings[i + 4],
                      .maximize = settings[i + 5] != 0});
    if (rates.empty() || rates[i / kSettings].numel() == 0) continue;
    groups.back().rate = view_of(op, "rates", rates[i / kSettings]);
  }
  return groups;
}

std::vector<LionGroup> without_eps(const std::vector<AdamWGroup>& groups) {
  std::vector<LionGroup> all;
  all.reserve(groups.size());
  for (const AdamWGroup& g : groups) {
    all.push_back({.lr = g.lr,
                   .beta1 = g.beta1,
                   .beta2 = g.beta2,
                   .weight_decay = g.weight_decay,
                   .maximize = g.maximize,
                   .rate = g.rate});
  }
  return all;
}

enum class Rule { kAdamW, kLion };

template <Rule kRule>
void step(const Tensors& params, const Tensors& grads, const Tensors& exp_avgs,
          const Tensors& exp_avg_sqs, const Tensors& max_exp_avg_sqs, const Tensors& masters,
          const Tensors& exp_avg_scales, const Tensors& exp_avg_sq_scales, const Tensors& steps,
          const Tensors& rates, const Integers& groups, const Integers& numbers,
          const Numbers& settings, std::optional<Tensor> grad_scale,
          std::optional<Tensor> found_inf, double max_norm, bool skips_nonfinite,
          bool unscales_gradients, bool rounds_states_randomly, bool rounds_params_randomly,
          std::int64_t seed, std::optional<Tensor> norm) {
  translate_errors([&] {
    constexpr const char* kOp = kRule == Rule::kAdamW ? "adamw" : "lion";
    const Lists lists{kOp,      params,         grads,
                      exp_avgs, exp_avg_sqs,    max_exp_avg_sqs,
                      masters,  exp_avg_scales, exp_avg_sq_scales,
                      steps,    rates,          groups,
                      numbers};
    const std::vector<OptimizerTensor> tensors = lists.tensors();
    const std::vector<AdamWGroup> group = groups_of(kOp, settings, rates);
    const OptimizerOptions options{.grad_scale = view_of(kOp, "grad_scale", grad_scale),
                                   .found_inf = view_of(kOp, "found_inf", found_inf),
                                   .max_norm = max_norm,
                                   .skips_nonfinite = skips_nonfinite,
                                   .unscales_gradients = unscales_gradients,
                                   .rounds_states_randomly = rounds_states_randomly,
                                   .rounds_params_randomly = rounds_params_randomly,
                                   .seed = static_cast<std::uint64_t>(seed),
                                   .norm = view_of(kOp, "norm", norm)};
    const CallContext context(tensors.empty() ? Device{} : tensors.front().param.device);
    if constexpr (kRule == Rule::kAdamW) {
      adamw_step(context, {.tensors = tensors, .groups = group, .options = options});
    } else {
      lion_step(context, {.tensors = tensors, .groups = without_eps(group), .options = options});
    }
  });
}

constexpr const char* kArguments =
    "(Tensor(a!)[] params, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, "
    "Tensor(d!)[] exp_avg_sqs, Tensor(e!)[] max_exp_avg_sqs, Tensor(f!)[] masters, "
    "Tensor(g!)[] exp_avg_scales, Tensor(h!)[] exp_avg_sq_scales, Tensor(i!)[] steps, "
    "Tensor[] rates, int[] groups, int[] numbers, float[] settings, Tensor? grad_scale, "
    "Tensor? found_inf, float max_norm, bool skips_nonfinite, bool unscales_gradients, "
    "bool rounds_states_randomly, bool rounds_params_randomly, int seed, "
    "Tensor(j!)? norm) -> ()";

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) {
  m.def((std::string("adamw_") + kArguments).c_str());
  m.def((std::string("lion_") + kArguments).c_str());
}
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) {
  m.impl("adamw_", TORCH_BOX(&step<Rule::kAdamW>));
  m.impl("lion_", TORCH_BOX(&step<Rule::kLion>));
}
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) {
    m.impl("adamw_", TORCH_BOX(&step<Rule::kAdamW>));
    m.impl("lion_", TORCH_BOX(&step<Rule::kLion>));
  }
}

}  // namespace transformer_kernels::torch_ops
