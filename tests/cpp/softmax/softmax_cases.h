// SPDX-License-Identifier: MIT
// One run of softmax, forward or backward, with fresh numbers, against the reference.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "reference.h"
#include "test_tensor.h"
#include "transformer_kernels/softmax/softmax.h"

namespace transformer_kernels::testing {

// x is (batch, rows, cols). A mask is broadcast along the dimensions where its stride is 0.
struct SoftmaxOptions {
  std::optional<DType> mask{};  // bool, x's dtype or float32
  std::array<bool, 3> mask_varies = {true, true, true};
  double share_visible = 0.7;
  bool causal = false;
  bool log = false;
  double scale = 1;
  bool in_place = false;  // backward: dx in dy's memory
  Layout layout{};
  double deviation = 3;
};

struct SoftmaxShape {
  std::int64_t batch, rows, cols;
  Matrix matrix() const { return {batch * rows, cols}; }
};

// A tensor's memory as (batch, rows, cols).
inline TensorView with_batch(TensorView view, SoftmaxShape s) {
  const std::int64_t row = view.strides[0];
  view.rank = 3;
  view.sizes = {s.batch, s.rows, s.cols};
  view.strides = {s.rows * row, row, 1};
  return view;
}

struct SoftmaxRun {
  SoftmaxShape s;
  DType dtype;
  SoftmaxOptions o;
  SoftmaxShape mask_shape;
  Values x, mask;
  TestTensor x_memory, mask_memory, y;

  SoftmaxRun(Backend& backend, DType type, SoftmaxShape shape, const SoftmaxOptions& options,
             std::optional<Values> given_x = {})
      : s(shape),
        dtype(type),
        o(options),
        mask_shape{o.mask_varies[0] ? s.batch : 1, o.mask_varies[1] ? s.rows : 1,
                   o.mask_varies[2] ? s.cols : 1},
        x(given_x ? *given_x : random_normal(s.batch * s.rows * s.cols, type, 0, o.deviation)),
        mask(make_mask()),
        x_memory(backend, type, s.batch * s.rows, s.cols, x, o.layout),
        mask_memory(backend, mask_dtype(), mask_shape.batch * mask_shape.rows, mask_shape.cols,
                    mask, o.layout),
        y(backend, type, s.batch * s.rows, s.cols, o.layout) {}

  DType mask_dtype() const { return o.mask.value_or(DType::kBool); }
  bool masked() const { return o.mask.has_value() || o.causal; }

  SoftmaxForward arguments() const {
    SoftmaxForward a;
    a.x = with_batch(x_memory.view(), s);
    a.y = with_batch(y.view(), s);
    if (o.mask) {
      a.mask = with_batch(mask_memory.view(), mask_shape);
      for (int i = 0; i < 3; ++i) {
        if (!o.mask_varies[i]) a.mask.strides[i] = 0;
        a.mask.sizes[i] = a.x.sizes[i];
      }
    }
    a.scale = o.scale;
    a.causal = o.causal;
    a.log = o.log;
    return a;
  }

  // x * scale, masked.
  Values scores() const {
    Values z(x.size());
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t r = 0; r < s.rows; ++r) {
        for (std::int64_t c = 0; c < s.cols; ++c) {
          const std::int64_t i = (b * s.rows + r) * s.cols + c;
          const bool in_future = o.causal && c > r + s.cols - s.rows;
          z[i] = in_future ? -kInfinity : with_mask(x[i] * o.scale, mask_at(b, r, c));
        }
      }
    }
    return z;
  }

  Values reference() const { return softmax_reference(s.matrix(), scores(), masked(), o.log); }

 private:
  Values make_mask() const {
    const std::int64_t count = mask_shape.batch * mask_shape.rows * mask_shape.cols;
    Values visible = random_bool(count, o.share_visible);
    if (mask_dtype() == DType::kBool) return visible;
    Values added = random_normal(count, mask_dtype());
    for (std::int64_t i = 0; i < count; ++i) added[i] = visible[i] ? added[i] : -kInfinity;
    return added;
  }
  double mask_at(std::int64_t b, std::int64_t r, std::int64_t c) const {
    const std::int64_t i =
        (o.mask_varies[0] ? b : 0) * mask_shape.rows + (o.mask_varies[1] ? r : 0);
    return mask[i * mask_shape.cols + (o.mask_varies[2] ? c : 0)];
  }
  double with_mask(double score, double mask_value) const {
    if (!o.mask) return score;
    if (mask_dtype() == DType::kBool) return mask_value != 0 ? score : -kInfinity;
    return score + mask_value;
  }
};

inline std::string describe_softmax(const char* pass, DType dtype, SoftmaxShape s,
                                    const SoftmaxOptions& o) {
  return std::string(pass) + " " + name_of(dtype) + " " + std::to_string(s.batch) + "x" +
         std::to_string(s.rows) + "x" + std::to_string(s.cols) + " mask " +
         (o.mask ? name_of(*o.mask) : "none") + (o.causal ? " causal" : "") + (o.log ? " log" : "");
}

// Scores of size z carry an absolute error of z * 2^-24, which softmax turns into a relative one.
inline double softmax_extent(const SoftmaxRun& run) {
  double largest = 1;
  for (double z : run.scores())
    largest = std::isfinite(z) ? std::max(largest, std::abs(z)) : largest;
  return largest;
}

inline void check_softmax(Backend& backend, DType dtype, SoftmaxShape s, const SoftmaxOptions& o,
                          std::optional<Values> x = {}) {
  SCOPED_TRACE(describe_softmax("forward", dtype, s, o));
  SoftmaxRun run(backend, dtype, s, o, x);
  softmax_forward(backend.context(), run.arguments());
  EXPECT_TRUE(close(dtype, run.y.values(), run.reference(), softmax_extent(run)));
  EXPECT_TRUE(run.y.surroundings_intact());
}

// y comes from the reference, rounded: the op gets what its forward pass would have returned.
struct SoftmaxBackwardRun {
  SoftmaxShape s;
  DType dtype;
  SoftmaxOptions o;
  bool masked;
  Values y, dy;
  TestTensor y_memory, dy_memory, dx;

  SoftmaxBackwardRun(Backend& backend, DType type, SoftmaxShape shape,
                     const SoftmaxOptions& options)
      : SoftmaxBackwardRun(SoftmaxRun(backend, type, shape, options), backend) {}

  SoftmaxBackward arguments() {
    SoftmaxBackward a;
    a.y = with_batch(y_memory.view(), s);
    a.dy = with_batch(dy_memory.view(), s);
    a.dx = with_batch(dx_memory().view(), s);
    a.scale = o.scale;
    a.masked = masked;
    a.log = o.log;
    return a;
  }
  TestTensor& dx_memory() { return o.in_place ? dy_memory : dx; }
  Values reference() const { return softmax_gradient(s.matrix(), dy, y, o.scale, masked, o.log); }

 private:
  SoftmaxBackwardRun(const SoftmaxRun& forward, Backend& backend)
      : s(forward.s),
        dtype(forward.dtype),
        o(forward.o),
        masked(forward.masked()),
        y(rounded(forward.reference(), dtype)),
        dy(random_normal(static_cast<std::int64_t>(y.size()), dtype)),
        y_memory(backend, dtype, s.batch * s.rows, s.cols, y, o.layout),
        dy_memory(backend, dtype, s.batch * s.rows, s.cols, dy, o.layout),
        dx(backend, dtype, s.batch * s.rows, s.cols, o.layout) {}

  static Values rounded(Values values, DType type) {
    for (double& value : values) value = rounded_to(type, value);
    return values;
  }
};

// The largest term of the difference that gives dx: a sum of gradients, weighted with a
// probability.
inline double largest_gradient_term(const SoftmaxBackwardRun& run) {
  double largest = 0;
  for (std::int64_t first = 0; first < std::ssize(run.y); first += run.s.cols) {
    double square = 0;
    double probability = 0;
    for (std::int64_t i = first; i < first + run.s.cols; ++i) {
      square += run.dy[i] * run.dy[i];
      probability = std::max(probability, run.o.log ? std::exp(run.y[i]) : run.y[i]);
    }
    largest = std::max(largest, std::abs(run.o.scale) * std::sqrt(square) * probability);
  }
  return largest;
}

inline void check_softmax_backward(Backend& backend, DType dtype, SoftmaxShape s,
                                   const SoftmaxOptions& o) {
  SCOPED_TRACE(describe_softmax("backward", dtype, s, o));
  SoftmaxBackwardRun run(backend, dtype, s, o);
  softmax_backward(backend.context(), run.arguments());
  EXPECT_TRUE(close(dtype, run.dx_memory().values(), run.reference(), largest_gradient_term(run)));
  EXPECT_TRUE(run.dx_memory().surroundings_intact());
}

}  // namespace transformer_kernels::testing
