// SPDX-License-Identifier: MIT
// One run of cross-entropy of a linear layer with fresh numbers, against the formulas in long
// double. A result may err twice as much as the formulas do where each tensor is rounded to the
// dtype, which is what separate ops leave.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "linear/product_reference.h"
#include "loss/cross_entropy_cases.h"
#include "test_tensor.h"
#include "transformer_kernels/linear_loss/linear_loss.h"

namespace transformer_kernels::testing {

struct LayerSizes {
  std::int64_t rows, terms, classes;
};

struct LayerOptions {
  bool bias = true;
  bool wide = false;            // bias, and gradients of parameters, of the arithmetic's type
  std::int64_t chunk_rows = 0;  // 0: all in one chunk
  bool float32_sums = true;     // else a 16-bit gradient is rounded at each of a few chunks
  bool transposed = false;      // the weight in memory as (K, V)
  Layout layout{};              // of x and dx
  LossOptions loss{};
};

inline DType arithmetic_of(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

inline Values rounded(DType dtype, Values values) {
  for (double& value : values) value = rounded_to(dtype, value);
  return values;
}

// The results of a pass. A `size` is that of the largest sum of terms; `loss_noise` is what
// roundings of the logits may add to a loss, of which one is too few for the 2x rule.
struct LayerResults {
  Values loss{}, dx{}, dweight{}, dbias{};
  double loss_size = 0, loss_noise = 0, dx_size = 0, dweight_size = 0, dbias_size = 0;
};

struct LayerInputs {
  LayerSizes s;
  LayerOptions o;
  Values x, weight, bias;
  LossInputs loss;  // without logits

  Sums logits() const {
    return product(s.rows, s.classes, s.terms, x, {s.terms, 1}, weight, {s.terms, 1},
                   o.bias ? bias : Values{});
  }

  // The results where logits, their gradient and what is returned are of `dtype`.
  LayerResults results(DType dtype) const {
    LossInputs in = loss;
    in.x = rounded(dtype, logits().sum);
    const LossReference of_loss = in.reference();
    LayerResults out = gradients(dtype, of_loss.dx);
    const double count = o.loss.reduction == Reduction::kNone ? 1 : std::max<double>(1, s.rows);
    const bool divides = o.loss.reduction == Reduction::kMean && of_loss.total > 0;
    const double size = of_loss.largest * (1 + 100 * o.loss.z_loss) / (divides ? of_loss.total : 1);
    out.loss = rounded(dtype, reduced(of_loss, o.loss.reduction));
    out.loss_size = size * count;
    out.loss_noise = size * std::sqrt(count) * unit_roundoff(dtype);
    return out;
  }

  // The gradients alone, from that of the logits before it is rounded.
  LayerResults gradients(DType dtype, const Values& of_logits) const {
    const auto [rows, terms, classes] = s;
    const Values dlogits = rounded(dtype, of_logits);
    const Sums dx = product(rows, terms, classes, dlogits, {classes, 1}, weight, {1, terms});
    const Sums dweight = product(classes, terms, rows, dlogits, {1, classes}, x, {1, terms});
    const Sums dbias =
        product(1, classes, rows, Values(rows, 1.0), {rows, 1}, dlogits, {1, classes});
    const auto largest = [](const Values& of) {
      return of.empty() ? 0.0 : *std::max_element(of.begin(), of.end());
    };
    const double relative = 1 + largest(logits().size);  // error of a probability
    return {.dx = rounded(dtype, dx.sum),
            .dweight = rounded(dtype, dweight.sum),
            .dbias = rounded(dtype, dbias.sum),
            .dx_size = relative * largest(dx.size),
            .dweight_size = relative * largest(dweight.size),
            .dbias_size = relative * largest(dbias.size)};
  }
};

inline LayerInputs random_layer(LayerSizes s, DType dtype, const LayerOptions& o) {
  LayerInputs in{s, o, {}, {}, {}, random_inputs({s.rows, s.classes}, dtype, o.loss)};
  in.x = random_normal(s.rows * s.terms, dtype);
  in.weight = random_normal(s.classes * s.terms, dtype, 0, 1 / std::sqrt(s.terms + 1.0));
  in.bias = random_normal(s.classes, dtype);
  return in;
}

// The memory of one call.
class LayerRun {
 public:
  LayerRun(Backend& backend, DType dtype, const LayerInputs& inputs)
      : in_(inputs),
        dtype_(dtype),
        of_parameters_(inputs.o.wide ? arithmetic_of(dtype) : dtype),
        x(backend, dtype, in_.s.rows, in_.s.terms, in_.x, in_.o.layout),
        dx(backend, dtype, in_.s.rows, in_.s.terms, in_.o.layout),
        dweight(backend, of_parameters_, in_.s.classes, in_.s.terms),
        dbias(backend, of_parameters_, 1, in_.s.classes),
        loss_(backend, dtype, in_.loss),
        weight_(backend, dtype, rows_of_weight(), columns_of_weight(), weight_in_memory()),
        bias_(backend, of_parameters_, 1, in_.s.classes, in_.bias) {}

  LinearCrossEntropyInputs inputs() {
    const CrossEntropyForward a = loss_.forward(false);
    const std::int64_t row_bytes = in_.s.classes * size_of(dtype_);
    return {
        .layer = {.x = x.view(),
                  .linear_weight = in_.o.transposed ? transposed(weight_.view()) : weight_.view(),
                  .linear_bias = in_.o.bias ? bias_.vector() : TensorView{},
                  .chunk_bytes = in_.o.chunk_rows * row_bytes},
        .target = a.target,
        .weight = a.weight,
        .ignore_index = a.ignore_index,
        .label_smoothing = a.label_smoothing,
        .z_loss = a.z_loss,
        .softcap = a.softcap,
        .reduction = a.reduction};
  }
  LinearLossGradients gradients() {
    return {.dx = dx.view(),
            .dlinear_weight = dweight.view(),
            .dlinear_bias = in_.o.bias ? dbias.vector() : TensorView{},
            .float32_sums = in_.o.float32_sums};
  }
  LinearCrossEntropyForward forward(bool with_gradients) {
    const CrossEntropyForward a = loss_.forward(false);
    return {.inputs = inputs(),
            .loss = a.loss,
            .top = a.top,
            .spread = a.spread,
            .share = a.share,
            .gradients = with_gradients ? gradients() : LinearLossGradients{}};
  }
  LinearCrossEntropyBackward backward() {
    const CrossEntropyBackward a = loss_.backward();
    return {.inputs = inputs(),
            .dloss = a.dloss,
            .top = a.top,
            .spread = a.spread,
            .share = a.share,
            .gradients = gradients()};
  }

  Values loss() { return loss_.loss.values(); }
  bool untouched() {
    return loss_.loss.untouched() && dx.untouched() && dweight.untouched() && dbias.untouched();
  }
  bool surroundings_intact() {
    return loss_.loss.surroundings_intact() && dx.surroundings_intact() &&
           dweight.surroundings_intact() && dbias.surroundings_intact();
  }

 private:
  std::int64_t rows_of_weight() const { return in_.o.transposed ? in_.s.terms : in_.s.classes; }
  std::int64_t columns_of_weight() const { return in_.o.transposed ? in_.s.classes : in_.s.terms; }
  Values weight_in_memory() const {
    if (!in_.o.transposed) return in_.weight;
    Values turned(in_.weight.size());
    for (std::int64_t v = 0; v < in_.s.classes; ++v) {
      for (std::int64_t k = 0; k < in_.s.terms; ++k) {
        turned[k * in_.s.classes + v] = in_.weight[v * in_.s.terms + k];
      }
    }
    return turned;
  }

  const LayerInputs& in_;
  DType dtype_;
  DType of_parameters_;

 public:
  TestTensor x, dx, dweight, dbias;

 private:
  LossRun loss_;
  TestTensor weight_, bias_;
};

// The 2x rule, with a floor of one rounding to x's dtype, which logits have, and some of the
// arithmetic's.
inline void expect_within(const char* name, DType dtype, const Values& got, const Values& exact,
                          const Values& plain, double size, double noise = 0) {
  ASSERT_EQ(got.size(), exact.size()) << name;
  double allowed = 0;
  double largest = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (!std::isfinite(exact[i])) continue;
    largest = std::max(largest, std::abs(exact[i]));
    allowed = std::max(allowed, 2 * std::abs(plain[i] - exact[i]));
  }
  const double smallest = power_of_two(format_of(dtype).min_exponent);
  allowed += noise + 1.01 * unit_roundoff(dtype) * (largest + smallest) +
             8 * unit_roundoff(arithmetic_of(dtype)) * size;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (std::isnan(exact[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << name << " " << i << " is " << got[i];
    } else {
      ASSERT_NEAR(got[i], exact[i], allowed) << name << " " << i;
    }
  }
}

inline void expect_gradients(LayerRun& run, DType dtype, const LayerInputs& in,
                             const LayerResults& exact, const LayerResults& plain) {
  expect_within("dx", dtype, run.dx.values(), exact.dx, plain.dx, exact.dx_size);
  expect_within("dweight", dtype, run.dweight.values(), exact.dweight, plain.dweight,
                exact.dweight_size);
  if (in.o.bias) {
    expect_within("dbias", dtype, run.dbias.values(), exact.dbias, plain.dbias, exact.dbias_size);
  }
  EXPECT_TRUE(run.surroundings_intact());
}

inline std::string describe_layer(DType dtype, const LayerSizes& s, const LayerOptions& o) {
  return describe_loss(dtype, {s.rows, s.classes}, o.loss) + " terms " + std::to_string(s.terms) +
         (o.bias ? " bias" : "") + (o.wide ? " wide" : "") + (o.transposed ? " transposed" : "") +
         " chunks of " + std::to_string(o.chunk_rows);
}

// The loss alone and a backward pass, then both in one pass.
inline void check_layer(Backend& backend, DType dtype, const LayerInputs& in) {
  SCOPED_TRACE(describe_layer(dtype, in.s, in.o));
  const Context context = backend.context();
  const LayerResults exact = in.results(DType::kFloat64);
  const LayerResults plain = in.results(dtype);
  LayerRun run(backend, dtype, in);
  const auto expect_loss = [&](LayerRun& of) {
    expect_within("loss", dtype, of.loss(), exact.loss, plain.loss, exact.loss_size,
                  plain.loss_noise);
  };
  linear_cross_entropy_forward(context, run.forward(false));
  expect_loss(run);
  EXPECT_TRUE(run.dx.untouched());
  linear_cross_entropy_backward(context, run.backward());
  expect_gradients(run, dtype, in, exact, plain);

  LayerInputs of_one = in;
  for (double& dloss : of_one.loss.dloss) dloss = 1;
  LayerRun both(backend, dtype, of_one);
  linear_cross_entropy_forward(context, both.forward(true));
  expect_loss(both);
  expect_gradients(both, dtype, of_one, of_one.results(DType::kFloat64), of_one.results(dtype));
}

inline void check_layer(Backend& backend, DType dtype, LayerSizes s, const LayerOptions& o) {
  check_layer(backend, dtype, random_layer(s, dtype, o));
}

}  // namespace transformer_kernels::testing
