// SPDX-License-Identifier: MIT
// One run of cross-entropy, forward, backward or both at once, with fresh numbers, against the
// formulas of the public header in long double.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "reference.h"
#include "test_tensor.h"
#include "transformer_kernels/loss/cross_entropy.h"

namespace transformer_kernels::testing {

struct LossOptions {
  bool probabilities = false;
  bool weight = false;
  bool wide = false;  // weight and loss of the arithmetic's type
  bool narrow_labels = false;
  double share_ignored = 0.2;
  double label_smoothing = 0;
  double z_loss = 0;
  double softcap = 0;
  Reduction reduction = Reduction::kMean;
  bool in_place = false;  // dx in x's memory
  Layout layout{};
  double deviation = 3;
};

inline constexpr std::int64_t kIgnored = -7;

struct LossReference {
  Values loss, dx;
  double total = 0;
  double largest = 1;  // sum of the terms of a loss, by their sizes
};

struct LossInputs {
  Matrix m;
  LossOptions o;
  Values x, q, weight, dloss;
  std::vector<std::int64_t> labels;

  long double capped(double value) const {
    return o.softcap > 0 ? o.softcap * std::tanh(value / static_cast<long double>(o.softcap))
                         : value;
  }
  double counted(std::int64_t row) const {
    if (o.probabilities) return 1;
    if (labels[row] == kIgnored) return 0;
    if (labels[row] < 0 || labels[row] >= m.cols) return kNan;
    return o.weight ? weight[labels[row]] : 1;
  }

  LossReference reference() const {
    LossReference out{Values(m.rows), Values(x.size())};
    for (std::int64_t r = 0; r < m.rows; ++r) out.total += counted(r);
    for (std::int64_t r = 0; r < m.rows; ++r) row_reference(r, out);
    return out;
  }

 private:
  void row_reference(std::int64_t r, LossReference& out) const {
    if (!o.probabilities && labels[r] == kIgnored) return;
    const double* const row = x.data() + r * m.cols;
    long double top = -kInfinity;
    for (std::int64_t c = 0; c < m.cols; ++c) top = std::max(top, capped(row[c]));
    long double sum = 0;
    for (std::int64_t c = 0; c < m.cols; ++c) sum += std::exp(capped(row[c]) - top);
    const long double spread = std::log(sum);
    const auto share = [&](std::int64_t c) -> long double {
      const double own = o.probabilities ? q[r * m.cols + c] : labels[r] == c ? 1 : 0;
      const double w = o.weight ? weight[c] : 1;
      const long double bad = std::isnan(counted(r)) ? kNan : 0;
      return w * (o.label_smoothing / static_cast<long double>(m.cols) +
                  (1 - o.label_smoothing) * own) +
             bad;
    };
    long double loss = 0;
    long double shares = 0;
    long double size = 0;
    for (std::int64_t c = 0; c < m.cols; ++c) {
      const long double a = share(c);
      shares += a;
      if (a == 0) continue;
      loss += a * (top - capped(row[c]) + spread);
      size += std::abs(a) * (std::abs(top - capped(row[c])) + spread);
    }
    if (std::isfinite(size)) out.largest = std::max(out.largest, static_cast<double>(size));
    const long double lse = top + spread;
    loss += o.z_loss * counted(r) * lse * lse;
    out.loss[r] = static_cast<double>(loss);
    const long double gain = dloss[o.reduction == Reduction::kNone ? r : 0] /
                             (o.reduction == Reduction::kMean ? out.total : 1);
    for (std::int64_t c = 0; c < m.cols; ++c) {
      const long double z = capped(row[c]);
      const long double ratio = o.softcap > 0 ? z / o.softcap : 0;
      const long double power = shares + 2 * o.z_loss * counted(r) * lse;
      out.dx[r * m.cols + c] = static_cast<double>(
          gain * (power * std::exp(z - top - spread) - share(c)) * (1 - ratio * ratio));
    }
  }
};

// The loss after the reduction.
inline Values reduced(const LossReference& of, Reduction reduction) {
  if (reduction == Reduction::kNone) return of.loss;
  long double sum = 0;
  for (double loss : of.loss) sum += loss;
  return {static_cast<double>(reduction == Reduction::kMean ? sum / of.total : sum)};
}

inline LossInputs random_inputs(Matrix m, DType dtype, const LossOptions& o) {
  LossInputs in{};
  in.m = m;
  in.o = o;
  in.x = random_normal(m.rows * m.cols, dtype, 0, o.deviation);
  if (o.probabilities) {
    in.q = random_normal(m.rows * m.cols, dtype);
    for (double& q : in.q) q = rounded_to(dtype, std::abs(q) / static_cast<double>(m.cols));
  }
  in.weight = random_normal(m.cols, dtype);
  for (double& w : in.weight) w = std::abs(w);
  in.dloss = random_normal(o.reduction == Reduction::kNone ? m.rows : 1, dtype);
  std::uniform_int_distribution<std::int64_t> label(0, m.cols - 1);
  std::bernoulli_distribution ignored(o.share_ignored);
  for (std::int64_t r = 0; r < m.rows; ++r) {
    in.labels.push_back(ignored(random_engine()) ? kIgnored : label(random_engine()));
  }
  return in;
}

// The memory of one call.
class LossRun {
 public:
  LossRun(Backend& backend, DType dtype, const LossInputs& inputs)
      : in(inputs),
        o_(inputs.o),
        dtype_(dtype),
        x(backend, dtype, in.m.rows, in.m.cols, in.x, o_.layout),
        dx(backend, dtype, in.m.rows, in.m.cols, o_.layout),
        loss(backend, wide(), 1, losses()),
        total(backend, arithmetic(), 1, 1),
        top(backend, arithmetic(), 1, in.m.rows),
        spread(backend, arithmetic(), 1, in.m.rows),
        share(backend, arithmetic(), 1, in.m.rows),
        weight_(backend, wide(), 1, in.m.cols, in.weight),
        dloss_(backend, wide(), 1, losses(), in.dloss),
        labels_(backend, in.labels.data(), in.labels.size()),
        narrow_(in.labels.begin(), in.labels.end()),
        narrow_labels_(backend, narrow_.data(), narrow_.size()) {
    if (o_.probabilities) q_.emplace(backend, dtype, in.m.rows, in.m.cols, in.q, o_.layout);
  }

  CrossEntropyForward forward(bool with_dx) {
    CrossEntropyForward a;
    fill(a);
    a.loss = scalar_or_rows(loss);
    a.top = top.vector();
    a.spread = spread.vector();
    a.share = share.vector();
    if (o_.reduction == Reduction::kMean) a.total = total.vector();
    if (with_dx) a.dx = dx_memory().view();
    return a;
  }
  CrossEntropyBackward backward() {
    CrossEntropyBackward a;
    fill(a);
    a.dloss = scalar_or_rows(dloss_);
    a.top = top.vector();
    a.spread = spread.vector();
    a.share = share.vector();
    if (o_.reduction == Reduction::kMean) a.total = total.vector();
    a.dx = dx_memory().view();
    return a;
  }
  TestTensor& dx_memory() { return o_.in_place ? x : dx; }
  DType loss_dtype() const { return wide(); }

  LossInputs in;

 private:
  LossOptions o_;
  DType dtype_;

 public:
  TestTensor x, dx, loss, total, top, spread, share;

 private:
  template <class Arguments>
  void fill(Arguments& a) {
    a.x = x.view();
    if (o_.probabilities) {
      a.probabilities = q_->view();
    } else {
      a.target =
          o_.narrow_labels ? narrow_labels_.vector(DType::kInt32) : labels_.vector(DType::kInt64);
    }
    if (o_.weight) a.weight = weight_.vector();
    a.ignore_index = kIgnored;
    a.label_smoothing = o_.label_smoothing;
    a.z_loss = o_.z_loss;
    a.softcap = o_.softcap;
    a.reduction = o_.reduction;
  }
  DType arithmetic() const { return dtype_ == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }
  DType wide() const { return o_.wide ? arithmetic() : dtype_; }
  std::int64_t losses() const { return o_.reduction == Reduction::kNone ? in.m.rows : 1; }
  TensorView scalar_or_rows(const TestTensor& tensor) const { return tensor.vector(); }

  TestTensor weight_, dloss_;
  DeviceArray<std::int64_t> labels_;
  std::vector<std::int32_t> narrow_;
  DeviceArray<std::int32_t> narrow_labels_;
  std::optional<TestTensor> q_;
};

inline std::string describe_loss(DType dtype, Matrix m, const LossOptions& o) {
  return std::string(name_of(dtype)) + " " + std::to_string(m.rows) + "x" + std::to_string(m.cols) +
         (o.probabilities ? " probabilities" : " labels") + (o.weight ? " weight" : "") +
         " smoothing " + std::to_string(o.label_smoothing) + " z " + std::to_string(o.z_loss) +
         " cap " + std::to_string(o.softcap) + " reduction " +
         std::to_string(static_cast<int>(o.reduction)) + (o.in_place ? " in place" : "");
}

// Both passes, then both in one.
inline void check_loss(Backend& backend, DType dtype, const LossInputs& inputs) {
  SCOPED_TRACE(describe_loss(dtype, inputs.m, inputs.o));
  LossRun run(backend, dtype, inputs);
  const LossReference expected = inputs.reference();
  const double largest_loss = expected.largest * (1 + inputs.o.z_loss * 100);
  cross_entropy_forward(backend.context(), run.forward(false));
  const DType of_loss = run.loss_dtype();
  const bool means = inputs.o.reduction == Reduction::kMean;
  // Rounding of the rows' losses is summed with them, and divided by the weight of their labels.
  const double rows = std::max<double>(1, inputs.m.rows);
  const double share = means && expected.total > 0 ? std::max(1.0, rows / expected.total) : 1.0;
  const double scale = largest_loss * (inputs.o.reduction == Reduction::kSum ? rows : share);
  EXPECT_TRUE(close(of_loss, run.loss.values(), reduced(expected, inputs.o.reduction), scale));
  EXPECT_TRUE(run.loss.surroundings_intact());
  const double gain = std::abs(inputs.dloss.empty() ? 0 : inputs.dloss[0]);
  const double terms = expected.largest * (1 + 40 * inputs.o.z_loss) / (means ? expected.total : 1);
  cross_entropy_backward(backend.context(), run.backward());
  const double of_dx = inputs.o.reduction == Reduction::kNone ? 4 * terms : gain * terms;
  EXPECT_TRUE(close(dtype, run.dx_memory().values(), expected.dx, of_dx));
  EXPECT_TRUE(run.dx_memory().surroundings_intact());

  LossInputs of_one = inputs;
  for (double& dloss : of_one.dloss) dloss = 1;
  LossRun both(backend, dtype, of_one);
  const LossReference of_both = of_one.reference();
  cross_entropy_forward(backend.context(), both.forward(true));
  EXPECT_TRUE(close(of_loss, both.loss.values(), reduced(of_both, inputs.o.reduction), scale));
  EXPECT_TRUE(close(dtype, both.dx_memory().values(), of_both.dx, terms));
  EXPECT_TRUE(both.dx_memory().surroundings_intact());
}

inline void check_loss(Backend& backend, DType dtype, Matrix m, const LossOptions& o) {
  check_loss(backend, dtype, random_inputs(m, dtype, o));
}

}  // namespace transformer_kernels::testing
