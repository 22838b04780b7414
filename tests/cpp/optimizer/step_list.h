// SPDX-License-Identifier: MIT
// A list of tensors with what an optimizer keeps of them, and the steps that it should make.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend.h"
#include "test_tensor.h"
#include "transformer_kernels/optimizer/adamw.h"

namespace transformer_kernels::testing {

inline DType wide_of(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

// The most that rounding to dtype changes a number, near which there may be subnormal ones.
inline double rounding_of(DType dtype, double value) {
  const Format f = format_of(dtype);
  const double subnormal = power_of_two(std::max(f.min_exponent - f.fraction_bits, -1000));
  return 1.01 * (unit_roundoff(dtype) * std::abs(value) + subnormal);
}

// The kind of all tensors of a list.
struct ListKind {
  DType param = DType::kFloat32;
  DType state = DType::kFloat32;
  bool has_master = false;
  bool has_second = true;
  bool has_largest = false;
  double steps = 0;
  double gradient_size = 1;
};

// One tensor of `count` random numbers, a few elements away from an aligned address.
class ListEntry {
 public:
  ListEntry(Backend& backend, const ListKind& kind, std::int64_t count, int group,
            std::int64_t number, Layout layout = {.offset = 1})
      : kind_(kind),
        group_(group),
        number_(number),
        master0(random_normal(count, wide_of(kind.param))),
        grad0(random_normal(count, kind.param, 0, kind.gradient_size)),
        first0(random_normal(count, kind.state)),
        second0(magnitudes(count, kind.state)),
        largest0(magnitudes(count, kind.state)),
        param(backend, kind.param, 1, count, rounded(master0), layout),
        grad(backend, kind.param, 1, count, grad0, layout),
        first(backend, kind.state, 1, count, first0, layout),
        second(backend, kind.state, 1, count, second0, layout),
        largest(backend, kind.state, 1, count, largest0, layout),
        master(backend, DType::kFloat32, 1, count, master0, layout),
        step(backend, DType::kFloat32, 1, 1, Values{kind.steps}) {}

  OptimizerTensor tensor() const {
    return {.param = param.vector(),
            .grad = grad.vector(),
            .exp_avg = first.vector(),
            .exp_avg_sq = kind_.has_second ? second.vector() : TensorView{},
            .max_exp_avg_sq = kind_.has_largest ? largest.vector() : TensorView{},
            .master = kind_.has_master ? master.vector() : TensorView{},
            .step = step.vector(),
            .group = group_,
            .number = number_};
  }

  // The numbers that the arithmetic begins with.
  Values weights0() const { return kind_.has_master ? master0 : rounded(master0); }

  Values rounded(const Values& values) const {
    Values out = values;
    for (double& v : out) v = rounded_to(kind_.param, v);
    return out;
  }

  bool surroundings_intact() {
    bool intact = true;
    for (TestTensor* x : {&param, &grad, &first, &second, &largest, &master, &step}) {
      intact = intact && x->surroundings_intact();
    }
    return intact;
  }

  // All that a step may write.
  std::vector<std::vector<std::uint8_t>> bytes() {
    return {param.bytes(),   grad.bytes(),   first.bytes(), second.bytes(),
            largest.bytes(), master.bytes(), step.bytes()};
  }

 private:
  static Values magnitudes(std::int64_t count, DType dtype) {
    Values values = random_normal(count, dtype);
    for (double& v : values) v = std::abs(v);
    return values;
  }

  ListKind kind_;
  int group_;
  std::int64_t number_;

 public:
  Values master0, grad0, first0, second0, largest0;
  TestTensor param, grad, first, second, largest, master, step;
};

class StepList {
 public:
  StepList(Backend& backend, const ListKind& kind, std::initializer_list<std::int64_t> counts) {
    int i = 0;
    for (const std::int64_t count : counts) {
      entries.push_back(std::make_unique<ListEntry>(backend, kind, count, i % 2, i));
      ++i;
    }
  }

  std::vector<OptimizerTensor> tensors() const {
    std::vector<OptimizerTensor> all;
    for (const auto& entry : entries) all.push_back(entry->tensor());
    return all;
  }

  double norm() const {
    long double sum = 0;
    for (const auto& entry : entries) {
      for (const double g : entry->grad0) sum += static_cast<long double>(g) * g;
    }
    return static_cast<double>(std::sqrt(sum));
  }

  std::vector<std::unique_ptr<ListEntry>> entries;
};

// The numbers of one element after a step, and how much the weight may be off in the arithmetic's
// type, in units of its roundoff.
struct Stepped {
  double p, m, v, top;
  double allowed;
};

inline Stepped adamw_element(const AdamWGroup& group, double step, double factor, double p,
                             double g, double m0, double v0, double top0, bool has_top) {
  g *= group.maximize ? -factor : factor;
  const double m = group.beta1 * m0 + (1 - group.beta1) * g;
  const double v = group.beta2 * v0 + (1 - group.beta2) * g * g;
  const double top = std::max(top0, v);
  const double root = std::sqrt((has_top ? top : v) / (1 - std::pow(group.beta2, step)));
  const double size = group.lr / (1 - std::pow(group.beta1, step)) / (root + group.eps);
  const double kept = p * (1 - group.lr * group.weight_decay);
  const double allowed = 8 * std::abs(p) + 16 * size * (std::abs(m0) + std::abs(g));
  return {kept - size * m, m, v, top, allowed};
}

}  // namespace transformer_kernels::testing
