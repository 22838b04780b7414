// SPDX-License-Identifier: MIT
// One run of a norm, forward or backward, with fresh numbers, against the reference. The two
// members of the family take the same arguments, but for the mean.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "reference.h"
#include "test_tensor.h"
#include "transformer_kernels/norm/norm.h"

namespace transformer_kernels::testing {

struct LayerNorm {
  static constexpr bool kCenter = true;
  static constexpr double kEps = 1e-5;
  static constexpr auto* forward = layer_norm_forward;
  static constexpr auto* backward = layer_norm_backward;
};

struct RmsNorm {
  static constexpr bool kCenter = false;
  static constexpr double kEps = 1e-6;
  static constexpr auto* forward = rms_norm_forward;
  static constexpr auto* backward = rms_norm_backward;
};

struct NormOptions {
  bool weight = true;
  bool bias = true;
  bool float32_parameters = false;  // else of x's dtype
  bool zero_centered = false;
  bool residual = false;  // forward: x + residual; backward: dsum
  bool statistics = true;
  bool in_place = false;  // sum in the residual's memory; dx in dy's
  Layout layout{};
  double mean = 0;
  double deviation = 1;
};

inline DType statistics_dtype(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}
inline DType parameter_dtype(DType dtype, const NormOptions& o) {
  return o.float32_parameters ? statistics_dtype(dtype) : dtype;
}

// The factor of each column: `weight` as stored, or 1 + weight, or 1.
inline Values scale_of(const Values& weight, std::int64_t cols, const NormOptions& o) {
  Values scale(cols, 1.0);
  for (std::int64_t c = 0; o.weight && c < cols; ++c) {
    scale[c] = weight[c] + (o.zero_centered ? 1 : 0);
  }
  return scale;
}

// All of a forward call's operands, in the backend's memory.
template <class Op>
struct NormForwardRun {
  Matrix m;
  DType dtype;
  NormOptions o;
  Values x, residual, weight, bias;
  TestTensor x_memory, residual_memory, weight_memory, bias_memory, y, sum, mean, rstd;

  NormForwardRun(Backend& backend, DType type, Matrix shape, const NormOptions& options,
                 std::optional<Values> given_x = {})
      : m(shape),
        dtype(type),
        o(options),
        x(given_x ? *given_x : random_normal(m.rows * m.cols, type, o.mean, o.deviation)),
        residual(random_normal(m.rows * m.cols, type)),
        weight(random_normal(m.cols, parameter_dtype(type, o))),
        bias(random_normal(m.cols, parameter_dtype(type, o))),
        x_memory(backend, type, m.rows, m.cols, x, o.layout),
        residual_memory(backend, type, m.rows, m.cols, residual, o.layout),
        weight_memory(backend, parameter_dtype(type, o), 1, m.cols, weight,
                      Layout{o.layout.offset, 0}),
        bias_memory(backend, parameter_dtype(type, o), 1, m.cols, bias, Layout{o.layout.offset, 0}),
        y(backend, type, m.rows, m.cols, o.layout),
        sum(backend, type, m.rows, m.cols, o.layout),
        mean(backend, statistics_dtype(type), 1, m.rows),
        rstd(backend, statistics_dtype(type), 1, m.rows) {}

  TestTensor& sum_memory() { return o.in_place ? residual_memory : sum; }

  NormForward arguments() {
    NormForward a;
    a.x = x_memory.view();
    a.y = y.view();
    if (o.weight) a.weight = weight_memory.vector();
    if (o.bias) a.bias = bias_memory.vector();
    if (o.residual) a.residual = residual_memory.view();
    if (o.residual) a.sum = sum_memory().view();
    if (Op::kCenter && o.statistics) a.mean = mean.vector();
    if (o.statistics) a.rstd = rstd.vector();
    a.zero_centered_weight = o.zero_centered;
    return a;
  }

  NormReference reference(std::optional<double> eps) {
    const Values no_bias(m.cols, 0.0);
    return norm_reference(m, Op::kCenter, normalized(), scale_of(weight, m.cols, o),
                          o.bias ? bias : no_bias, eps.value_or(Op::kEps));
  }

  // The values that are normalised: x, or the rounded sum.
  Values normalized() {
    Values s = x;
    for (std::size_t i = 0; o.residual && i < s.size(); ++i) {
      s[i] = rounded_to(dtype, s[i] + residual[i]);
    }
    return s;
  }
};

template <class Op>
void check_forward(Backend& backend, DType dtype, Matrix m, const NormOptions& options,
                   std::optional<Values> x = {}) {
  SCOPED_TRACE(std::string("forward ") + name_of(dtype) + " " + std::to_string(m.rows) + "x" +
               std::to_string(m.cols));
  NormForwardRun<Op> run(backend, dtype, m, options, x);
  const auto arguments = run.arguments();
  Op::forward(backend.context(), arguments);
  const NormReference expected = run.reference(arguments.eps);
  EXPECT_TRUE(close(dtype, run.y.values(), expected.y, expected.largest_term));
  EXPECT_TRUE(run.y.surroundings_intact());
  if (options.residual) {
    EXPECT_TRUE(close(dtype, run.sum_memory().values(), run.normalized(), 1e-30));
    EXPECT_TRUE(run.sum_memory().surroundings_intact());
  }
  const DType of_statistics = statistics_dtype(dtype);
  if (options.statistics && m.rows > 0) {
    if (Op::kCenter) {
      double largest = 0;
      for (double s : run.normalized()) largest = std::max(largest, std::abs(s));
      EXPECT_TRUE(close(of_statistics, run.mean.values(), expected.mean, largest / 8));
    }
    EXPECT_TRUE(close(of_statistics, run.rstd.values(), expected.rstd));
    EXPECT_TRUE(run.rstd.surroundings_intact() && run.mean.surroundings_intact());
  }
}

template <class Op>
struct NormBackwardRun {
  Matrix m;
  DType dtype;
  NormOptions o;
  Values dy, dsum, x, weight, mean, rstd;
  TestTensor dy_memory, dsum_memory, x_memory, weight_memory, mean_memory, rstd_memory;
  TestTensor dx, dweight, dbias;

  NormBackwardRun(Backend& backend, DType type, Matrix shape, const NormOptions& options)
      : m(shape),
        dtype(type),
        o(options),
        dy(random_normal(m.rows * m.cols, type)),
        dsum(random_normal(m.rows * m.cols, type)),
        x(random_normal(m.rows * m.cols, type, o.mean, o.deviation)),
        weight(random_normal(m.cols, parameter_dtype(type, o))),
        mean(statistics(&NormReference::mean)),
        rstd(statistics(&NormReference::rstd)),
        dy_memory(backend, type, m.rows, m.cols, dy, o.layout),
        dsum_memory(backend, type, m.rows, m.cols, dsum, o.layout),
        x_memory(backend, type, m.rows, m.cols, x, o.layout),
        weight_memory(backend, parameter_dtype(type, o), 1, m.cols, weight,
                      Layout{o.layout.offset, 0}),
        mean_memory(backend, statistics_dtype(type), 1, m.rows, mean),
        rstd_memory(backend, statistics_dtype(type), 1, m.rows, rstd),
        dx(backend, type, m.rows, m.cols, o.layout),
        dweight(backend, parameter_dtype(type, o), 1, m.cols, Layout{o.layout.offset, 0}),
        dbias(backend, parameter_dtype(type, o), 1, m.cols, Layout{o.layout.offset, 0}) {}

  TestTensor& dx_memory() { return o.in_place ? dy_memory : dx; }

  NormBackward arguments() {
    NormBackward a;
    a.dy = dy_memory.view();
    a.x = x_memory.view();
    a.dx = dx_memory().view();
    if (Op::kCenter) a.mean = mean_memory.vector();
    a.rstd = rstd_memory.vector();
    if (o.residual) a.dsum = dsum_memory.view();
    if (o.weight) a.weight = weight_memory.vector();
    if (o.weight) a.dweight = dweight.vector();
    if (o.bias) a.dbias = dbias.vector();
    a.zero_centered_weight = o.zero_centered;
    return a;
  }

  NormGradients reference() {
    return norm_gradients(m, Op::kCenter, dy, o.residual ? dsum : Values{}, x, mean, rstd,
                          scale_of(weight, m.cols, o));
  }

 private:
  Values statistics(Values NormReference::*member) {
    const Values ones(m.cols, 1.0), zeros(m.cols, 0.0);
    Values all = norm_reference(m, Op::kCenter, x, ones, zeros, 1e-5).*member;
    for (double& value : all) value = rounded_to(statistics_dtype(dtype), value);
    return all;
  }
};

template <class Op>
void check_backward(Backend& backend, DType dtype, Matrix m, const NormOptions& options) {
  SCOPED_TRACE(std::string("backward ") + name_of(dtype) + " " + std::to_string(m.rows) + "x" +
               std::to_string(m.cols));
  NormBackwardRun<Op> run(backend, dtype, m, options);
  Op::backward(backend.context(), run.arguments());
  const NormGradients expected = run.reference();
  EXPECT_TRUE(close(dtype, run.dx_memory().values(), expected.dx, expected.largest_term));
  EXPECT_TRUE(run.dx_memory().surroundings_intact());
  const DType of_parameters = parameter_dtype(dtype, options);
  if (options.weight) {
    EXPECT_TRUE(
        close(of_parameters, run.dweight.values(), expected.dweight, expected.largest_norm));
    EXPECT_TRUE(run.dweight.surroundings_intact());
  } else {
    EXPECT_TRUE(run.dweight.untouched());
  }
  if (options.bias) {
    EXPECT_TRUE(close(of_parameters, run.dbias.values(), expected.dbias, expected.largest_norm));
    EXPECT_TRUE(run.dbias.surroundings_intact());
  } else {
    EXPECT_TRUE(run.dbias.untouched());
  }
}

}  // namespace transformer_kernels::testing
