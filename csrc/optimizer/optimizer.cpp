// SPDX-License-Identifier: MIT
// The checks of all optimizers of a list of tensors, and their table of backends.
#include <algorithm>
#include <vector>

#include "core/backends.h"
#include "core/check.h"
#include "core/overlap.h"
#include "core/rounding.h"
#include "core/strides.h"
#include "optimizer/problem.h"
#include "transformer_kernels/optimizer/adamw.h"
#include "transformer_kernels/optimizer/lion.h"

namespace transformer_kernels {
namespace {

constexpr Backends<OptimizerProblem> kBackends{.cpu = cpu::optimizer_step,
                                               .cuda = kHasCuda ? cuda::optimizer_step : nullptr};
constexpr std::int64_t kMostNumbers = std::int64_t{1} << 20;

bool same_sizes(const TensorView& a, const TensorView& b) {
  return a.rank == b.rank && std::equal(a.sizes.begin(), a.sizes.begin() + a.rank, b.sizes.begin());
}

bool same_strides(const TensorView& a, const TensorView& b) {
  for (int i = 0; i < a.rank; ++i) {
    if (a.sizes[i] > 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

// The checks of one entry of the list; messages name its place.
class EntryChecker {
 public:
  EntryChecker(const char* op, Device device, std::size_t place, const OptimizerTensor& tensor)
      : op_(op),
        device_(device),
        place_(concat("s[", place, "]")),
        t_(tensor) {}

  void check(OptimizerRule rule, std::size_t groups) const {
    check_param();
    beside_param("grad", t_.grad);
    check_dtype("grad", t_.grad, t_.grad.dtype == t_.param.dtype || is_wide(t_.grad));
    check_states(rule);
    check_master();
    number("step", t_.step, t_.step.dtype == DType::kFloat32 || t_.step.dtype == DType::kFloat64);
    check_value(t_.group >= 0 && static_cast<std::size_t>(t_.group) < groups, op_, ": group",
                place_, " is ", t_.group, ", expected one of ", groups);
    check_value(t_.number >= 0 && t_.number < kMostNumbers, op_, ": number", place_, " is ",
                t_.number, ", expected 0 to ", kMostNumbers - 1);
    check_memory();
  }

 private:
  // float32, which stands beside 16 bits; the arithmetic's type.
  bool is_wide(const TensorView& view) const {
    return view.dtype == accumulate_dtype(t_.param.dtype);
  }

  void present(const char* name, const TensorView& view) const {
    check_value(view.defined(), op_, ": ", name, place_, " is missing");
    check_value(view.device == device_, op_, ": ", name, place_, " is on ",
                name_of(view.device.type), ", expected ", name_of(device_.type));
    check_value(view.data != nullptr || view.numel() == 0, op_, ": ", name, place_,
                " is a null pointer");
  }
  void check_dtype(const char* name, const TensorView& view, bool ok) const {
    check_type(ok, op_, ": ", name, place_, " is ", name_of(view.dtype),
               ", expected another dtype beside a param of ", name_of(t_.param.dtype));
  }

  void check_param() const {
    present("param", t_.param);
    check_type(is_floating(t_.param.dtype), op_, ": param", place_, " is ", name_of(t_.param.dtype),
               ", expected a floating-point dtype");
    check_value(!overlaps_itself(t_.param) && span_of(t_.param) == t_.param.numel(), op_, ": param",
                place_, " has gaps or overlaps itself, expected dense memory");
  }
  void beside_param(const char* name, const TensorView& view) const {
    present(name, view);
    if (!same_sizes(t_.param, view)) [[unlikely]] {
      ArgumentChecker(op_, device_)
          .same_shape(concat(name, place_).c_str(), view, "its param", t_.param);
    }
    check_value(same_strides(t_.param, view), op_, ": ", name, place_,
                " has other strides than its param, expected the same");
  }

  void check_states(OptimizerRule rule) const {
    const bool has_second = rule == OptimizerRule::kAdamW;
    state("exp_avg", t_.exp_avg, t_.exp_avg_scales);
    if (has_second) state("exp_avg_sq", t_.exp_avg_sq, t_.exp_avg_sq_scales);
    for (const TensorView* view : {&t_.exp_avg_sq, &t_.exp_avg_sq_scales, &t_.max_exp_avg_sq}) {
      check_value(has_second || !view->defined(), op_, ": exp_avg_sq", place_,
                  " is given, expected one moment alone");
    }
    if (!t_.max_exp_avg_sq.defined()) return;
    check_type(t_.exp_avg.dtype != DType::kUInt8, op_, ": max_exp_avg_sq", place_,
               " is given beside uint8 states, expected none");
    state("max_exp_avg_sq", t_.max_exp_avg_sq, {});
  }
  void state(const char* name, const TensorView& view, const TensorView& scales) const {
    beside_param(name, view);
    const bool narrow = t_.param.dtype != DType::kFloat64 &&
                        (view.dtype == DType::kBFloat16 || view.dtype == DType::kUInt8);
    check_dtype(name, view, view.dtype == t_.param.dtype || is_wide(view) || narrow);
    check_dtype(name, view, view.dtype == t_.exp_avg.dtype);
    if (view.dtype != DType::kUInt8 || view.numel() == 0) return;
    const std::string scale = concat(name, "_scale");
    present(scale.c_str(), scales);
    check_dtype(scale.c_str(), scales, scales.dtype == DType::kFloat32);
    ArgumentChecker(op_, device_)
        .packed(concat(scale, place_).c_str(), scales, divide_up(t_.param.numel(), kStateBlock),
                "one for each 256 elements of its param");
  }
  void check_master() const {
    if (!t_.master.defined()) return;
    beside_param("master", t_.master);
    check_dtype("master", t_.master, t_.master.dtype == DType::kFloat32);
    check_dtype("master", t_.master, size_of(t_.param.dtype) == 2);
  }
  void number(const char* name, const TensorView& view, bool ok) const {
    present(name, view);
    check_dtype(name, view, ok);
    check_value(view.numel() == 1, op_, ": ", name, place_, " has ", view.numel(),
                " elements, expected 1");
  }
  // All operands are dense, so that those apart, as nearly always, are told by their bounds.
  void check_memory() const {
    struct Bounds {
      std::uintptr_t begin, end;
    };
    Bounds bounds[9];
    int count = 0;
    for (const TensorView* view :
         {&t_.param, &t_.grad, &t_.exp_avg, &t_.exp_avg_sq, &t_.max_exp_avg_sq, &t_.master,
          &t_.exp_avg_scales, &t_.exp_avg_sq_scales, &t_.step}) {
      if (!view->defined()) continue;
      const auto begin = reinterpret_cast<std::uintptr_t>(view->data);
      bounds[count++] = {begin, begin + view->numel() * size_of(view->dtype)};
    }
    bool are_apart = true;
    for (int i = 1; i < count; ++i) {
      for (int j = 0; j < i; ++j) {
        are_apart &= bounds[i].end <= bounds[j].begin || bounds[j].end <= bounds[i].begin;
      }
    }
    if (are_apart) return;
    check_apart(op_,
                {{"param", t_.param},
                 {"exp_avg", t_.exp_avg},
                 {"exp_avg_sq", t_.exp_avg_sq},
                 {"max_exp_avg_sq", t_.max_exp_avg_sq},
                 {"master", t_.master},
                 {"exp_avg_scales", t_.exp_avg_scales},
                 {"exp_avg_sq_scales", t_.exp_avg_sq_scales},
                 {"step", t_.step}},
                {{"grad", t_.grad}});
  }

  const char* op_;
  Device device_;
  std::string place_;
  const OptimizerTensor& t_;
};

void check_options(const char* op, Device device, const OptimizerOptions& options) {
  const auto number = [&](const char* name, const TensorView& view) {
    if (!view.defined()) return;
    const ArgumentChecker check(op, device);
    check.typed(name, view, DType::kFloat32, "a single number");
    check_value(view.numel() == 1, op, ": ", name, " has ", view.numel(), " elements, expected 1");
  };
  number("grad_scale", options.grad_scale);
  number("found_inf", options.found_inf);
  number("norm", options.norm);
  check_value(options.max_norm >= 0, op, ": max_norm is ", options.max_norm,
              ", expected 0 (none) or more");
}

void check_groups(const char* op, Device device, std::span<const AdamWGroup> groups) {
  for (const AdamWGroup& group : groups) {
    const TensorView& rate = group.rate;
    if (!rate.defined()) continue;
    check_value(rate.device == device && rate.data != nullptr, op, ": rate is on ",
                name_of(rate.device.type), ", expected memory on ", name_of(device.type));
    check_type(rate.dtype == DType::kFloat32 || rate.dtype == DType::kFloat64, op, ": rate is ",
               name_of(rate.dtype), ", expected float32 or float64");
    check_value(rate.numel() == 1, op, ": rate has ", rate.numel(), " elements, expected 1");
  }
}

void run(const Context& context, const OptimizerProblem& problem) {
  for (std::size_t i = 0; i < problem.tensors.size(); ++i) {
    EntryChecker(problem.op, context.device, i, problem.tensors[i])
        .check(problem.rule, problem.groups.size());
  }
  check_groups(problem.op, context.device, problem.groups);
  check_options(problem.op, context.device, problem.options);
  run_on(problem.op, kBackends, context, problem);
}

}  // namespace

std::string describe(const OptimizerProblem& p) {
  std::int64_t elements = 0;
  for (const OptimizerTensor& tensor : p.tensors) elements += tensor.param.numel();
  return concat(p.tensors.size(), " tensors of ", elements, " elements",
                p.wants_norm() ? " + norm" : "");
}

void adamw_step(const Context& context, const AdamWStep& a) {
  run(context, {.op = "adamw",
                .rule = OptimizerRule::kAdamW,
                .tensors = a.tensors,
                .groups = a.groups,
                .options = a.options});
}

void lion_step(const Context& context, const LionStep& a) {
  std::vector<AdamWGroup> groups;
  for (const LionGroup& g : a.groups) {
    groups.push_back({.lr = g.lr,
                      .beta1 = g.beta1,
                      .beta2 = g.beta2,
                      .weight_decay = g.weight_decay,
                      .maximize = g.maximize,
                      .rate = g.rate});
  }
  run(context, {.op = "lion",
                .rule = OptimizerRule::kLion,
                .tensors = a.tensors,
                .groups = groups,
                .options = a.options});
}

}  // namespace transformer_kernels
