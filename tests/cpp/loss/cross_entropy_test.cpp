// SPDX-License-Identifier: MIT
#include <utility>

#include "backend_test.h"
#include "error_of.h"
#include "loss/cross_entropy_cases.h"
#include "parallel_hooks.h"
#include "transformer_kernels/error.h"

namespace transformer_kernels::testing {
namespace {

class CrossEntropyOp : public BackendTest {
 protected:
  static void check(Matrix m, LossOptions o) { check_loss(backend(), dtype(), m, o); }
};

INSTANTIATE_TEST_SUITE_P(on, CrossEntropyOp, all_backends_and_dtypes(), name_of_backend_test);

constexpr Reduction kReductions[] = {Reduction::kNone, Reduction::kMean, Reduction::kSum};

TEST_P(CrossEntropyOp, edge_shapes) {
  for (std::int64_t cols : {1, 2, 31, 32, 33, 127, 1000, 4097}) {
    for (std::int64_t rows : {0, 1, 67}) {
      for (Reduction reduction : kReductions) check({rows, cols}, {.reduction = reduction});
    }
  }
}

// Wide enough for every way to lay a row over threads, CTAs and clusters.
TEST_P(CrossEntropyOp, wide_rows) {
  for (std::int64_t cols : {8193, 16384, 50257, 70001, 131072}) {
    check({3, cols}, {});
    check({2, cols}, {.weight = true, .label_smoothing = 0.1, .z_loss = 1e-4, .softcap = 30});
    check({2, cols}, {.in_place = true});
  }
  check({2, 300007}, {});
  check({2, 300000}, {.reduction = Reduction::kSum});
}

TEST_P(CrossEntropyOp, every_option) {
  for (int bits = 0; bits < 64; ++bits) {
    const auto has = [&](int bit) { return (bits >> bit & 1) != 0; };
    const LossOptions o{.probabilities = has(0),
                        .weight = has(1),
                        .wide = has(5),
                        .narrow_labels = has(5),
                        .label_smoothing = has(2) ? 0.1 : 0.0,
                        .z_loss = has(3) ? 0.01 : 0.0,
                        .softcap = has(4) ? 5.0 : 0.0,
                        .reduction = kReductions[bits % 3]};
    check({9, 77}, o);
    check({5, 1032}, o);
  }
}

TEST_P(CrossEntropyOp, layouts) {
  for (Layout layout : {Layout{0, 24}, Layout{1, 0}, Layout{3, 5}, Layout{0, 1}}) {
    for (bool in_place : {false, true}) {
      check({6, 2057}, {.in_place = in_place, .layout = layout});
      check({6, 2056}, {.probabilities = true, .in_place = in_place, .layout = layout});
    }
  }
}

TEST_P(CrossEntropyOp, many_rows) {
  for (Reduction reduction : kReductions) {
    check({5003, 33}, {.weight = true, .reduction = reduction});
  }
}

TEST_P(CrossEntropyOp, all_rows_ignored) {
  for (Reduction reduction : kReductions) {
    check({5, 40}, {.share_ignored = 1, .z_loss = 0.1, .reduction = reduction});
  }
}

// Values of an ignored row have no influence.
TEST_P(CrossEntropyOp, ignored_rows_may_hold_anything) {
  LossInputs in = random_inputs({3, 100}, dtype(), {.share_ignored = 0});
  in.labels[1] = kIgnored;
  for (std::int64_t c = 100; c < 200; ++c) in.x[c] = c % 2 == 0 ? kNan : kInfinity;
  check_loss(backend(), dtype(), in);
}

// The maximum comes off first: logits of any size keep their differences.
TEST_P(CrossEntropyOp, large_logits) {
  LossInputs in = random_inputs({3, 100}, dtype(), {.share_ignored = 0});
  for (double& x : in.x) x = rounded_to(dtype(), dtype() == DType::kFloat16 ? 3e4 : 1e30);
  check_loss(backend(), dtype(), in);
}

TEST_P(CrossEntropyOp, infinities_and_nan) {
  for (double bad : {kNan, kInfinity, -kInfinity}) {
    for (std::int64_t place : {100, 157, 199}) {
      LossInputs in =
          random_inputs({3, 100}, dtype(), {.share_ignored = 0, .reduction = Reduction::kNone});
      in.labels[1] = 3;
      in.x[place] = bad;
      check_loss(backend(), dtype(), in);
    }
  }
}

TEST_P(CrossEntropyOp, classes_that_cannot_be) {
  LossInputs in = random_inputs({4, 5000}, dtype(), {.share_ignored = 0});
  for (std::int64_t i = 0; i < std::ssize(in.x); ++i) {
    if (i % 5000 >= 100) in.x[i] = -kInfinity;
  }
  for (std::int64_t& label : in.labels) label %= 100;
  check_loss(backend(), dtype(), in);
}

TEST_P(CrossEntropyOp, nothing_but_minus_infinity_is_nan) {
  LossInputs in =
      random_inputs({2, 50}, dtype(), {.share_ignored = 0, .reduction = Reduction::kNone});
  in.x.assign(in.x.size(), -kInfinity);
  LossRun run(backend(), dtype(), in);
  cross_entropy_forward(backend().context(), run.forward(true));
  for (double loss : run.loss.values()) EXPECT_TRUE(std::isnan(loss));
  for (double dx : run.dx.values()) EXPECT_TRUE(std::isnan(dx));
}

// On CUDA the host does not check labels: one that is no class makes its row, and every sum, NaN.
TEST_P(CrossEntropyOp, labels_out_of_range) {
  for (std::int64_t label : {std::int64_t{-1}, std::int64_t{40}, std::int64_t{1} << 40}) {
    for (Reduction reduction : kReductions) {
      LossInputs in = random_inputs({5, 40}, dtype(), {.share_ignored = 0, .reduction = reduction});
      in.labels[3] = label;
      if (is_on_cuda(backend())) {
        check_loss(backend(), dtype(), in);
        continue;
      }
      LossRun run(backend(), dtype(), in);
      try {
        cross_entropy_forward(backend().context(), run.forward(true));
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.what(), "cross_entropy: target is " + std::to_string(label) +
                                    " in row 3, expected one of [0, 39] or -7 (ignore_index)");
      }
      EXPECT_TRUE(run.loss.untouched());
      EXPECT_TRUE(run.dx.untouched());
    }
  }
}

TEST_P(CrossEntropyOp, repeatable) {
  const LossInputs in = random_inputs({301, 2000}, dtype(), {.weight = true});
  std::vector<std::vector<std::uint8_t>> first;
  for (const Context& context : contexts_with_different_threads(backend())) {
    LossRun run(backend(), dtype(), in);
    cross_entropy_forward(context, run.forward(false));
    cross_entropy_backward(context, run.backward());
    const std::vector<std::vector<std::uint8_t>> bytes = {run.loss.bytes(), run.dx.bytes()};
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
  }
}

// Rows [begin, end) of a matrix, or of a vector.
TensorView rows_of(TensorView view, std::int64_t begin, std::int64_t end) {
  view.data = static_cast<char*>(view.data) + begin * view.strides[0] * size_of(view.dtype);
  view.sizes[0] = end - begin;
  return view;
}

// Two calls for some of the rows each, whose losses are reduced afterwards.
TEST_P(CrossEntropyOp, parts_of_a_reduction) {
  constexpr std::int64_t kRows = 23;
  const DType arithmetic = dtype() == DType::kFloat64 ? dtype() : DType::kFloat32;
  for (Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
    for (bool weight : {false, true}) {
      LossInputs in =
          random_inputs({kRows, 40}, dtype(), {.weight = weight, .reduction = reduction});
      in.dloss = {1};
      LossRun run(backend(), dtype(), in);
      TestTensor losses(backend(), arithmetic, 1, kRows);
      const CrossEntropyForward all = run.forward(true);
      const Context context = backend().context();
      ReduceLosses sums{.target = all.target,
                        .weight = all.weight,
                        .classes = 40,
                        .ignore_index = all.ignore_index,
                        .reduction = reduction,
                        .total = run.total.vector()};
      reduce_losses(context, sums);
      for (auto [begin, end] : {std::pair{0, 10}, std::pair{10, 23}}) {
        CrossEntropyForward part = all;
        for (TensorView* view :
             {&part.x, &part.target, &part.top, &part.spread, &part.share, &part.dx}) {
          *view = rows_of(*view, begin, end);
        }
        part.loss = rows_of(losses.vector(), begin, end);
        part.total = {};
        part.reduction = Reduction::kNone;
        if (reduction == Reduction::kMean) part.divisor = sums.total;
        cross_entropy_forward(context, part);
      }
      sums.losses = losses.vector();
      sums.loss = all.loss;
      sums.total = {};
      reduce_losses(context, sums);
      const LossReference expected = in.reference();
      const double scale = kRows * expected.largest;
      EXPECT_TRUE(close(dtype(), run.loss.values(), reduced(expected, reduction), scale));
      EXPECT_TRUE(close(dtype(), run.dx.values(), expected.dx, expected.largest));
    }
  }
}

TEST_P(CrossEntropyOp, scale_gradient) {
  for (double by : {1.0, 0.5}) {
    for (Matrix m : {Matrix{3, 1000}, Matrix{1, 7}, Matrix{40, 257}}) {
      const Values x = random_normal(m.rows * m.cols, dtype());
      TestTensor memory(backend(), dtype(), m.rows, m.cols, x, {1, 3});
      TestTensor factor(backend(), dtype(), 1, 1, Values{by});
      transformer_kernels::scale_gradient(backend().context(),
                                          {.x = memory.view(), .by = factor.vector()});
      Values expected = x;
      for (double& value : expected) value *= by;
      EXPECT_TRUE(close(dtype(), memory.values(), expected));
      EXPECT_TRUE(memory.surroundings_intact());
    }
  }
}

template <class Spoil>
void expect_error(Spoil&& spoil, const std::string& expected) {
  LossRun run(*cpu_backend(), DType::kFloat32, random_inputs({3, 8}, DType::kFloat32, {}));
  CrossEntropyForward a = run.forward(true);
  spoil(a);
  try {
    cross_entropy_forward({}, a);
    ADD_FAILURE() << "accepted, expected: " << expected;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), expected);
  }
  EXPECT_TRUE(run.loss.untouched());
  EXPECT_TRUE(run.dx.untouched());
}

TEST(CrossEntropyErrors, have_exact_words_and_touch_nothing) {
  using Forward = CrossEntropyForward;
  expect_error([](Forward& a) { a.x = {}; }, "cross_entropy: x is missing");
  expect_error([](Forward& a) { a.x.dtype = DType::kInt64; },
               "cross_entropy: x is int64, expected a floating-point dtype");
  expect_error([](Forward& a) { a.x.sizes[1] = 0; },
               "cross_entropy: x has shape (3, 0), expected a class or more");
  expect_error([](Forward& a) { a.target = {}; },
               "cross_entropy: target is missing, expected it or probabilities");
  expect_error([](Forward& a) { a.probabilities = a.x; },
               "cross_entropy: target is present beside probabilities, expected one of the two");
  expect_error([](Forward& a) { a.target.dtype = DType::kUInt8; },
               "cross_entropy: target is uint8, expected int32 or int64");
  expect_error([](Forward& a) { a.target.sizes[0] = 2; },
               "cross_entropy: target has shape (2,), expected (3,) (one for each row of x)");
  expect_error([](Forward& a) { a.weight = a.target; },
               "cross_entropy: weight is int64, expected a floating-point dtype");
  expect_error([](Forward& a) { a.label_smoothing = 1.5; },
               "cross_entropy: label_smoothing is 1.5, expected a number from 0 to 1");
  expect_error([](Forward& a) { a.z_loss = kInfinity; },
               "cross_entropy: z_loss is inf, expected a finite number");
  expect_error([](Forward& a) { a.softcap = -1; },
               "cross_entropy: softcap is -1, expected a number of 0 or more");
  expect_error([](Forward& a) { a.reduction = static_cast<Reduction>(3); },
               "cross_entropy: reduction is 3, expected 0 (none), 1 (mean) or 2 (sum)");
  expect_error([](Forward& a) { a.reduction = Reduction::kNone; },
               "cross_entropy: loss has 1 elements, expected 3 (the rows of x)");
  expect_error([](Forward& a) { a.dx.data = static_cast<float*>(a.x.data) + 1; },
               "cross_entropy: dx overlaps x in part, expected its memory exactly or none of it");
  expect_error([](Forward& a) { a.divisor = a.total; },
               "cross_entropy: divisor is present, expected none without dx or with a reduction");
}

TEST(CrossEntropyErrors, of_reduce_losses) {
  LossRun run(*cpu_backend(), DType::kFloat32, random_inputs({3, 8}, DType::kFloat32, {}));
  const CrossEntropyForward forward = run.forward(false);
  const auto refused = [&](auto change) {
    ReduceLosses a{.losses = forward.top,
                   .target = forward.target,
                   .classes = 8,
                   .ignore_index = forward.ignore_index,
                   .loss = forward.loss};
    change(a);
    return error_of([&] { reduce_losses({}, a); });
  };
  using Arguments = ReduceLosses;
  EXPECT_EQ(refused([](Arguments& a) { a.reduction = Reduction::kNone; }),
            "reduce_losses: reduction is 0, expected 1 (mean) or 2 (sum)");
  EXPECT_EQ(refused([](Arguments& a) { a.losses = {}; }), "reduce_losses: losses is missing");
  EXPECT_EQ(refused([&](Arguments& a) { a.losses = forward.loss; }),
            "reduce_losses: losses has 1 elements, expected 3 (the rows of target)");
  EXPECT_EQ(refused([](Arguments& a) { a.loss.dtype = DType::kFloat64; }),
            "reduce_losses: loss is float64, expected one that is computed in float32");
  EXPECT_EQ(refused([](Arguments& a) { a.weight = a.losses; }),
            "reduce_losses: weight has 3 elements, expected 8 (the classes)");
  EXPECT_EQ(refused([](Arguments& a) { a.loss = a.losses; }),
            "reduce_losses: loss has 3 elements, expected 1 (of a reduction)");
  EXPECT_TRUE(run.loss.untouched());
}

}  // namespace
}  // namespace transformer_kernels::testing
