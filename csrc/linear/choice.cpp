// SPDX-License-Identifier: MIT
#include "linear/choice.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "core/backends.h"
#include "core/check.h"
#include "core/times.h"

namespace transformer_kernels {
namespace {

constexpr std::int64_t kAlignment = 16;  // bytes

// Whether rows or columns begin at addresses that Hopper's tensor maps, or copies of 16 bytes,
// cannot express.
bool is_uneven(const LayerWeight& w) {
  if (w.rank != 2 || (w.row_step != 1 && w.col_step != 1) || !w.dtype) return true;
  const std::int64_t step = kAlignment / static_cast<std::int64_t>(size_of(*w.dtype));
  for (const std::int64_t stride : {w.row_step, w.col_step}) {
    if (stride != 1 && stride % step != 0) return true;
  }
  return w.address % kAlignment != 0;
}

bool has_uneven_features(const LayerWeight& w) { return w.rows % 8 != 0 || w.cols % 8 != 0; }

// The requirements of products on CUDA with any kind of weight.
const char* refusal_of_rows_on_cuda(const Layer& l) {
  if (!l.dtype || !is_16_bit(*l.dtype)) return "our product on CUDA is of 16-bit numbers";
  if (l.limits.architecture < 80) return "our product on CUDA needs compute capability 8.0";
  if (l.has_few_rows() && l.terms % 8 != 0) return "terms are no multiple of 8";
  return nullptr;
}

const char* refusal_on_cuda(const Layer& l) {
  if (const char* refusal = refusal_of_rows_on_cuda(l)) return refusal;
  if (l.weight.dtype != l.dtype) return "an operand is of another dtype";
  if (is_uneven(l.weight)) return "rows of the weight are not 16-byte aligned";
  if (l.down_weight.given && is_uneven(l.down_weight)) {
    return "rows of down_weight are not 16-byte aligned";
  }
  if (l.up_weight.given && is_uneven(l.up_weight)) {
    return "rows of up_weight are not 16-byte aligned";
  }
  return l.activated && has_uneven_features(l.weight) ? "features are no multiple of 8" : nullptr;
}

const char* slower_on_cuda(const Layer& l) {
  const LayerWeight& w = l.weight;
  if (l.has_few_rows()) {
    if (l.limits.architecture == 90 && l.trains()) {
      return "of few rows only the forward pass was measured";
    }
    return slower_with_few_rows(l.rows, w.rows * w.cols, w.col_step != 1, l.limits.architecture);
  }
  if (l.limits.architecture != 90) return slower_on_ampere(l.rows, l.terms, l.activated);
  const char* const y = slower_on_hopper(l.rows, w.rows, l.limits.processors);
  if (y != nullptr || !l.needs_dx) return y;
  return slower_on_hopper(l.rows, w.cols, l.limits.processors);
}

// A layer that is ours has products that are not: the gradient of its weight on Hopper.
Routes routes_by_rules(const Layer& l) {
  const bool applies = l.device.type == DeviceType::kCuda && l.needs_dweight && !l.has_few_rows() &&
                       !l.refuses_cublas && !has_uneven_features(l.weight);
  const bool few = applies && slower_gradient_on_hopper(l.weight.rows, l.weight.cols,
                                                        l.limits.processors) != nullptr;
  return few ? Routes{.dweight = kTorch} : Routes{};
}

const char* refusal_on_cpu(const Layer& l) {
  const bool has_floats = l.dtype && is_floating(*l.dtype);
  return has_floats ? nullptr : "our product is of floating-point numbers";
}

std::optional<Routes> routes_of(const std::string& name) {
  if (name == "ours") return Routes{};
  std::istringstream text(name);
  Routes routes;
  for (std::int64_t* route : {&routes.y, &routes.dx, &routes.dweight}) {
    std::string product, value;
    if (!(text >> product >> value)) return {};
    if (value.back() == ',') value.pop_back();
    if (value == "ours" || value == "torch") {
      *route = value == "ours" ? kOurs : kTorch;
    } else if (*route = std::strtoll(value.c_str(), nullptr, 10);
               *route < 0 || value != std::to_string(*route)) {
      return {};
    }
  }
  return routes;
}

std::string in_words(const std::vector<Time>& times) {
  const auto one = [&](const char* before, auto&& is_it, const char* after) {
    for (const Time& time : times) {
      if (!is_it(time.name)) continue;
      char number[32];
      std::snprintf(number, sizeof number, "%.1f", time.microseconds);
      return std::string(before) + number + after;
    }
    return std::string();
  };
  return one(
             "it took ", [](const std::string& name) { return name == "ours"; }, " us here") +
         one(
             ", PyTorch's ", [](const std::string& name) { return name == "torch"; }, "") +
         one(
             ", by routes ",
             [](const std::string& name) { return name != "ours" && name != "torch"; }, "");
}

}  // namespace

std::string describe(const Layer& l) {
  const bool by_columns = l.weight.row_step == 1 && l.weight.col_step > 1;
  return concat(l.activated ? "linear_act " : "linear ", l.dtype ? name_of(*l.dtype) : "any", " ",
                l.rows, "x", l.terms, "x", l.weight.rows, by_columns ? " by columns" : "",
                l.needs_dx ? " dx" : "", l.needs_dweight ? " dweight" : "");
}

const char* refusal_of_few_rows(const Layer& l) {
  if (!l.has_few_rows()) return "there are more than 16 rows";
  return l.device.type == DeviceType::kCuda ? refusal_of_rows_on_cuda(l) : refusal_on_cpu(l);
}

const char* refusal_of_layer(const Layer& l) {
  if (l.terms < 0) return "x has no dimensions";
  if (l.weight.rank != 2) return "the weight is no matrix";
  return l.device.type == DeviceType::kCuda ? refusal_on_cuda(l) : refusal_on_cpu(l);
}

const char* slower_layer(const Layer& l) {
  if (l.device.type == DeviceType::kCuda) return slower_on_cuda(l);
  const DType dtype = l.dtype.value_or(DType::kBool);
  const std::int64_t numbers = l.weight.rows * l.weight.cols;
  if (l.has_few_rows()) {
    return slower_with_few_rows_on_cpu(l.rows, numbers, l.weight.col_step == 1, dtype, l.trains(),
                                       l.blas);
  }
  return slower_on_cpu(l.rows, l.rows * l.terms * l.weight.rows, dtype, l.trains(), l.blas);
}

cuda::DeviceLimits limits_of(Device device) {
  if constexpr (kHasCuda) {
    if (device.type == DeviceType::kCuda) return cuda::device_limits(device.index);
  }
  return {};
}

LayerChoice choose_by_rules(const Layer& l) {
  const char* reason = refusal_of_layer(l);
  if (reason == nullptr) reason = slower_layer(l);
  if (reason != nullptr) return {.reason = reason};
  return {.ours = true, .reason = {}, .routes = routes_by_rules(l)};
}

LayerChoice choose_layer(const Layer& l, const std::string& machine) {
  if (!has_times() || refusal_of_layer(l) != nullptr) return choose_by_rules(l);
  const std::vector<Time> times = times_of(machine, describe(l));
  for (const Time& time : times) {
    const bool is_torch = time.name == "torch";
    const std::optional<Routes> routes = is_torch ? Routes{} : routes_of(time.name);
    if (!routes) continue;
    return {.ours = !is_torch, .reason = in_words(times), .routes = *routes, .by_times = true};
  }
  return choose_by_rules(l);
}

}  // namespace transformer_kernels
