// SPDX-License-Identifier: MIT
// One run of a pointwise op, forward or backward, with given or fresh numbers, against the
// reference.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "pointwise/pointwise_reference.h"
#include "pointwise/problem.h"
#include "reference.h"
#include "test_tensor.h"

namespace transformer_kernels::testing {

struct PointwiseOptions {
  bool bias = false;
  bool wide_bias = false;  // float32 for 16-bit x
  bool packed = false;     // gate and up side by side, and so their gradients
  bool in_place = false;   // y in x's memory; dx in dy's, dup in up's
  bool y = false;          // the backward pass gives it as well
  Layout layout{};
};

inline std::vector<Pointwise> all_pointwise_ops() {
  std::vector<Pointwise> ops;
  for (int i = 0; i < kPointwiseCount; ++i) ops.push_back(static_cast<Pointwise>(i));
  return ops;
}

inline bool has_gate(Pointwise op) {
  return [op]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    return ((static_cast<std::size_t>(op) == kIndex &&
             PointwiseOp<static_cast<Pointwise>(kIndex)>::kGated) ||
            ...);
  }
  (std::make_index_sequence<kPointwiseCount>());
}

// The layout of x and up: two matrices, one after the other or side by side.
struct Both {
  Matrix m;
  bool packed;
  TestTensor memory;

  Both(Backend& backend, DType dtype, Matrix shape, const PointwiseOptions& o)
      : m(shape),
        packed(o.packed),
        memory(backend, dtype, packed ? m.rows : 2 * m.rows, packed ? 2 * m.cols : m.cols,
               o.layout) {}
  Both(Backend& backend, DType dtype, Matrix shape, const PointwiseOptions& o, const Values& x,
       const Values& up)
      : m(shape),
        packed(o.packed),
        memory(backend, dtype, packed ? m.rows : 2 * m.rows, packed ? 2 * m.cols : m.cols,
               laid_out(x, up), o.layout) {}

  TensorView x() const { return part(0); }
  TensorView up() const { return part(1); }
  Values x_values() { return part_values(0); }
  Values up_values() { return part_values(1); }

 private:
  // Where an element lies among those of `memory`.
  std::int64_t place(int which, std::int64_t i) const {
    if (!packed) return which * m.rows * m.cols + i;
    return (i / m.cols * 2 + which) * m.cols + i % m.cols;
  }
  Values laid_out(const Values& x, const Values& up) const {
    Values all(2 * x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      all[place(0, index)] = x[i];
      all[place(1, index)] = up[i];
    }
    return all;
  }
  TensorView part(int which) const {
    TensorView view = memory.view();
    view.sizes = {m.rows, m.cols};
    const std::int64_t ahead = packed ? m.cols : m.rows * view.strides[0];
    view.data = static_cast<char*>(view.data) + which * ahead * size_of(view.dtype);
    return view;
  }
  Values part_values(int which) {
    const Values all = memory.values();
    Values some(all.size() / 2);
    for (std::size_t i = 0; i < some.size(); ++i) {
      some[i] = all[place(which, static_cast<std::int64_t>(i))];
    }
    return some;
  }
};

// Inputs of one run. Those that the op or the options leave out are there all the same.
struct PointwiseInputs {
  Backend& backend;
  Pointwise op;
  DType dtype;
  DType bias_dtype;
  Matrix m;
  PointwiseOptions o;
  bool gated;
  Values x, up, bias, up_bias, dy;
  Both x_and_up;
  TestTensor bias_memory, up_bias_memory, dy_memory;

  PointwiseInputs(Backend& where, Pointwise which, DType type, Matrix shape,
                  const PointwiseOptions& options, Values given_x = {})
      : backend(where),
        op(which),
        dtype(type),
        bias_dtype(options.wide_bias && size_of(type) < 4 ? DType::kFloat32 : type),
        m(shape),
        o(options),
        gated(has_gate(which)),
        x(given_x.empty() ? random(type, m.rows, 3) : std::move(given_x)),
        up(random(type, m.rows)),
        bias(random(bias_dtype, 1)),
        up_bias(random(bias_dtype, 1)),
        dy(random(type, m.rows)),
        x_and_up(where, type, shape, options, x, up),
        bias_memory(where, bias_dtype, 1, m.cols, bias),
        up_bias_memory(where, bias_dtype, 1, m.cols, up_bias),
        dy_memory(where, type, m.rows, m.cols, dy, options.layout) {}

  TensorView up_view() const { return gated ? x_and_up.up() : TensorView{}; }
  TensorView bias_view() const { return o.bias ? bias_memory.vector() : TensorView{}; }
  TensorView up_bias_view() const {
    return o.bias && gated ? up_bias_memory.vector() : TensorView{};
  }

  // The argument of the activation for element i, and its factor.
  long double z(std::size_t i) const {
    return static_cast<long double>(x[i]) + (o.bias ? bias[i % m.cols] : 0);
  }
  long double factor(std::size_t i) const {
    if (!gated) return 1;
    return static_cast<long double>(up[i]) + (o.bias ? up_bias[i % m.cols] : 0);
  }

  std::string description() const {
    return std::string(name_of(op)) + " " + name_of(dtype) + " " + std::to_string(m.rows) + "x" +
           std::to_string(m.cols) + (o.bias ? " + bias" : "") + (o.packed ? " packed" : "");
  }

 private:
  Values random(DType type, std::int64_t rows, double deviation = 1) const {
    return random_normal(rows * m.cols, type, 0, deviation);
  }
};

// The error that a result may have: a rounding of the storage type, and a few roundings of the
// arithmetic in each of its terms. Functions for 16 bits add the error that they state.
class Allowance {
 public:
  explicit Allowance(DType dtype) : dtype_(dtype) {}

  ::testing::AssertionResult near(double got, long double exact, long double term) const {
    const auto expected = static_cast<double>(exact);
    const double wanted = rounded_to(dtype_, expected);
    if (got == wanted || (std::isnan(got) && std::isnan(wanted))) {
      return ::testing::AssertionSuccess();
    }
    const double smallest = power_of_two(format_of(dtype_).min_exponent);
    const double allowed = 1.01 * unit_roundoff(dtype_) * std::abs(expected) +
                           arithmetic() * static_cast<double>(std::abs(term)) + smallest;
    if (std::abs(got - expected) <= allowed) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << got << ", expected " << expected << " within " << allowed;
  }

 private:
  double arithmetic() const {
    if (dtype_ == DType::kFloat64) return 16 * unit_roundoff(dtype_);
    return size_of(dtype_) == 4 ? 8 * unit_roundoff(dtype_) : 0x1p-18;
  }

  DType dtype_;
};

// Each element of `got` against exact(i), which is made of terms of the size term(i).
template <class Exact, class Term>
void expect_near(const char* what, DType dtype, const Values& got, Exact&& exact, Term&& term) {
  const Allowance allowance(dtype);
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(allowance.near(got[i], exact(i), term(i)))
        << what << ", element " << i << " of " << got.size();
  }
}

struct PointwiseForwardRun : PointwiseInputs {
  TestTensor y;

  template <class... Inputs>
  explicit PointwiseForwardRun(Inputs&&... inputs)
      : PointwiseInputs(std::forward<Inputs>(inputs)...),
        y(backend, dtype, m.rows, m.cols, o.layout) {}

  PointwiseForward arguments() const {
    return {.op = op,
            .x = x_and_up.x(),
            .up = up_view(),
            .bias = bias_view(),
            .up_bias = up_bias_view(),
            .y = o.in_place ? x_and_up.x() : y.view()};
  }

  void check() {
    SCOPED_TRACE("forward " + description());
    pointwise_forward(backend.context(), arguments());
    const Values got = o.in_place ? x_and_up.x_values() : y.values();
    expect_near(
        "y", dtype, got,
        [&](std::size_t i) {
          return activation(op, {z(i), 1}).value * factor(i);
        },
        [&](std::size_t i) { return std::max(std::abs(z(i)), z(i) * z(i)) * factor(i); });
    EXPECT_TRUE(y.surroundings_intact() && x_and_up.memory.surroundings_intact());
  }
};

struct PointwiseBackwardRun : PointwiseInputs {
  Both dx_and_dup;
  TestTensor dbias, dup_bias, y;

  template <class... Inputs>
  explicit PointwiseBackwardRun(Inputs&&... inputs)
      : PointwiseInputs(std::forward<Inputs>(inputs)...),
        dx_and_dup(backend, dtype, m, o),
        dbias(backend, bias_dtype, 1, m.cols),
        dup_bias(backend, bias_dtype, 1, m.cols),
        y(backend, dtype, m.rows, m.cols, o.layout) {}

  PointwiseBackward arguments() const {
    PointwiseBackward a{.op = op,
                        .dy = dy_memory.view(),
                        .x = x_and_up.x(),
                        .up = up_view(),
                        .bias = bias_view(),
                        .up_bias = up_bias_view(),
                        .dx = o.in_place ? dy_memory.view() : dx_and_dup.x()};
    if (gated) a.dup = o.in_place ? x_and_up.up() : dx_and_dup.up();
    if (o.bias) a.dbias = dbias.vector();
    if (o.bias && gated) a.dup_bias = dup_bias.vector();
    if (o.y) a.y = y.view();
    return a;
  }

  void check() {
    SCOPED_TRACE("backward " + description());
    pointwise_backward(backend.context(), arguments());
    std::vector<Dual> f;
    for (std::size_t i = 0; i < x.size(); ++i) f.push_back(activation(op, {z(i), 1}));
    const auto dx = [&](std::size_t i) { return dy[i] * factor(i) * f[i].slope; };
    const auto dup = [&](std::size_t i) { return dy[i] * f[i].value; };
    // Where the slope is nearly 0 or 1, its terms are as large as z times the rounding of 1.
    const auto size_of_dx = [&](std::size_t i) {
      return dy[i] * factor(i) * std::max(1.0L, 4 * std::min(std::abs(z(i)), 32.0L)) *
             std::max(1.0L, std::abs(f[i].slope));
    };
    const auto size_of_y = [&](std::size_t i) { return std::max(std::abs(z(i)), z(i) * z(i)); };
    const auto size_of_dup = [&](std::size_t i) { return dy[i] * size_of_y(i); };
    expect_near("dx", dtype, o.in_place ? dy_memory.values() : dx_and_dup.x_values(), dx,
                size_of_dx);
    if (gated) {
      expect_near("dup", dtype, o.in_place ? x_and_up.up_values() : dx_and_dup.up_values(), dup,
                  size_of_dup);
    }
    if (o.y) {
      expect_near(
          "y", dtype, y.values(), [&](std::size_t i) { return f[i].value * factor(i); },
          [&](std::size_t i) { return size_of_y(i) * factor(i); });
    }
    if (o.bias) check_sums("dbias", dbias.values(), dx, size_of_dx);
    if (o.bias && gated) check_sums("dup_bias", dup_bias.values(), dup, size_of_dup);
    EXPECT_TRUE(dx_and_dup.memory.surroundings_intact() && y.surroundings_intact() &&
                dy_memory.surroundings_intact() && x_and_up.memory.surroundings_intact() &&
                dbias.surroundings_intact() && dup_bias.surroundings_intact());
  }

 private:
  template <class Term, class Size>
  void check_sums(const char* what, const Values& got, Term&& term, Size&& size) const {
    std::vector<long double> sums(m.cols), sizes(m.cols);
    for (std::size_t i = 0; i < x.size(); ++i) {
      sums[i % m.cols] += term(i);
      sizes[i % m.cols] += std::abs(size(i));
    }
    // The terms have been computed as exactly as their own dtype asks.
    const double unit = unit_roundoff(bias_dtype) / unit_roundoff(DType::kFloat32);
    const bool approximate = size_of(dtype) == 2 && bias_dtype == DType::kFloat32;
    expect_near(
        what, bias_dtype, got, [&](std::size_t c) { return sums[c]; },
        [&](std::size_t c) { return sizes[c] * (approximate ? 0x1p3 * unit : 1); });
  }
};

inline void check_pointwise(Backend& backend, Pointwise op, DType dtype, Matrix m,
                            const PointwiseOptions& o, const Values& x = {}) {
  PointwiseForwardRun(backend, op, dtype, m, o, x).check();
  PointwiseBackwardRun(backend, op, dtype, m, o, x).check();
}

}  // namespace transformer_kernels::testing
