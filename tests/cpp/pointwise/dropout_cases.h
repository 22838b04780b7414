// SPDX-License-Identifier: MIT
// One run of dropout or bias_dropout_add, forward or backward, against the definition.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>

#include "philox_reference.h"
#include "reference.h"
#include "test_tensor.h"
#include "transformer_kernels/pointwise/dropout.h"

namespace transformer_kernels::testing {

struct DropoutOptions {
  double p = 0.25;
  bool add = true;  // bias_dropout_add
  bool bias = false;
  bool wide_bias = false;       // float32 for 16-bit x
  bool wide_residual = false;   // the same of the residual and the sum with it; for norms behind it
  bool in_place = false;        // y in x's memory, dx in dy's
  bool seed_on_device = false;  // beside x
  Layout layout{};
};

struct DropoutRun {
  static constexpr std::array<std::uint64_t, 2> kSeed = {0x0123456789abcdef, 42};

  Backend& backend;
  DType dtype, bias_dtype, sum_dtype;
  Matrix m;
  DropoutOptions o;
  Values x, bias, residual;
  TestTensor x_memory, bias_memory, residual_memory, y, dbias;
  DeviceArray<std::uint64_t> seed;

  DropoutRun(Backend& where, DType type, Matrix shape, const DropoutOptions& options,
             Values given_x = {})
      : backend(where),
        dtype(type),
        bias_dtype(options.wide_bias && size_of(type) < 4 ? DType::kFloat32 : type),
        sum_dtype(options.wide_residual && size_of(type) < 4 ? DType::kFloat32 : type),
        m(shape),
        o(options),
        x(given_x.empty() ? random_normal(m.rows * m.cols, type) : std::move(given_x)),
        bias(random_normal(m.cols, bias_dtype)),
        residual(random_normal(m.rows * m.cols, sum_dtype)),
        x_memory(where, type, m.rows, m.cols, x, o.layout),
        bias_memory(where, bias_dtype, 1, m.cols, bias),
        residual_memory(where, sum_dtype, m.rows, m.cols, residual, o.layout),
        y(where, type, m.rows, m.cols, o.layout),
        dbias(where, bias_dtype, 1, m.cols),
        seed(o.seed_on_device ? where : *cpu_backend(), kSeed.data(), 2) {}

  BiasDropoutAddForward forward_arguments() {
    return {.x = x_memory.view(),
            .bias = o.bias ? bias_memory.vector() : TensorView{},
            .residual = residual_memory.view(),
            .seed = seed.vector(DType::kInt64),
            .p = o.p,
            .y = output()};
  }
  BiasDropoutAddBackward backward_arguments() {
    return {.dy = x_memory.view(),
            .seed = seed.vector(DType::kInt64),
            .p = o.p,
            .dx = output(),
            .dbias = o.bias ? dbias.vector() : TensorView{}};
  }

  void forward(const Context& context) {
    const BiasDropoutAddForward a = forward_arguments();
    if (o.add) return bias_dropout_add_forward(context, a);
    dropout_forward(context, {a.x, a.seed, a.p, a.y});
  }
  void backward(const Context& context) {
    const BiasDropoutAddBackward a = backward_arguments();
    if (o.add) return bias_dropout_add_backward(context, a);
    dropout_backward(context, {a.dy, a.seed, a.p, a.dx});
  }

  bool is_dropped(std::size_t i) const {
    return random_number(kSeed[0], kSeed[1], i) < std::lround(o.p * 65536);
  }
  // 0 where the element is dropped, whatever it is.
  double kept(std::size_t i, double value) const {
    return is_dropped(i) ? 0 : value * 65536 / (65536 - std::lround(o.p * 65536));
  }

  void check_forward() {
    SCOPED_TRACE("forward " + description());
    forward(backend.context());
    expect_y(written());
    EXPECT_TRUE(y.surroundings_intact() && x_memory.surroundings_intact());
  }
  void expect_y(const Values& got) const {
    expect_near("y", sum_dtype, got, [&](std::size_t i) {
      const bool biased = o.add && o.bias;
      const double terms[] = {kept(i, x[i]), kept(i, biased ? bias[i % m.cols] : 0),
                              o.add ? residual[i] : 0};
      return std::pair(terms[0] + terms[1] + terms[2],
                       std::abs(terms[0]) + std::abs(terms[1]) + std::abs(terms[2]));
    });
  }

  // x stands for dy.
  void check_backward() {
    SCOPED_TRACE("backward " + description());
    backward(backend.context());
    expect_gradients(written(), dbias.values());
    EXPECT_TRUE(y.surroundings_intact() && x_memory.surroundings_intact() &&
                dbias.surroundings_intact());
  }
  void expect_gradients(const Values& got_dx, const Values& got_dbias) const {
    const auto dx = [&](std::size_t i) { return kept(i, x[i]); };
    expect_near("dx", dtype, got_dx,
                [&](std::size_t i) { return std::pair(dx(i), std::abs(dx(i))); });
    if (o.add && o.bias) {
      expect_near("dbias", bias_dtype, got_dbias, [&](std::size_t c) {
        std::pair<double, double> sum{};
        for (std::size_t i = c; i < x.size(); i += m.cols) {
          sum.first += dx(i);
          sum.second += std::abs(dx(i));
        }
        return sum;
      });
    }
  }

  std::string description() const {
    return std::string(name_of(dtype)) + " " + std::to_string(m.rows) + "x" +
           std::to_string(m.cols) + " p " + std::to_string(o.p) + (o.bias ? " + bias" : "");
  }

 private:
  TensorView output() { return o.in_place ? x_memory.view() : y.view(); }
  Values written() { return o.in_place ? x_memory.values() : y.values(); }

  // `exact` gives a number, and the sum of the sizes of its terms.
  template <class Exact>
  static void expect_near(const char* what, DType type, const Values& got, Exact&& exact) {
    const DType arithmetic = type == DType::kFloat64 ? type : DType::kFloat32;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto [expected, size] = exact(i);
      if (got[i] == rounded_to(type, expected) || (std::isnan(got[i]) && std::isnan(expected))) {
        continue;
      }
      const double allowed = 1.01 * unit_roundoff(type) * std::abs(expected) +
                             8 * unit_roundoff(arithmetic) * size +
                             power_of_two(format_of(type).min_exponent);
      ASSERT_NEAR(got[i], expected, allowed) << what << ", element " << i << " of " << got.size();
    }
  }
};

}  // namespace transformer_kernels::testing
