// SPDX-License-Identifier: MIT
#include "transformer_kernels/loss/token_log_probs.h"

#include <algorithm>
#include <string>

#include "backend_test.h"
#include "error_of.h"
#include "loss/token_log_probs_cases.h"
#include "parallel_hooks.h"
#include "test_tensor.h"

namespace transformer_kernels::testing {
namespace {

// The memory of one call.
class ScoreRun {
 public:
  ScoreRun(Backend& backend, DType dtype, const ScoreInputs& in)
      : in_(in),
        wide_(dtype == DType::kFloat64 ? dtype : DType::kFloat32),
        x(backend, dtype, in.m.rows, in.m.cols, in.x, in.o.layout),
        dx(backend, dtype, in.m.rows, in.m.cols, in.held, in.o.layout),
        log_probs(backend, wide_, 1, in.m.rows),
        entropy(backend, wide_, 1, in.m.rows),
        accuracy(backend, wide_, 1, in.m.rows),
        top(backend, wide_, 1, in.m.rows),
        spread(backend, wide_, 1, in.m.rows),
        mean(backend, wide_, 1, in.m.rows),
        dlog_probs_(backend, wide_, 1, in.m.rows, in.dlog_probs),
        dentropy_(backend, wide_, 1, static_cast<std::int64_t>(in.dentropy.size()), in.dentropy),
        divisor_(backend, wide_, 1, 1, Values{in.divisor}),
        tokens_(backend, in.tokens.data(), in.tokens.size()),
        narrow_(in.tokens.begin(), in.tokens.end()),
        narrow_tokens_(backend, narrow_.data(), narrow_.size()) {}

  TokenLogProbsForward forward() {
    return {.x = x.view(),
            .target = target(),
            .ignore_index = kIgnored,
            .softcap = in_.o.softcap,
            .log_probs = log_probs.vector(),
            .entropy = entropy.vector(),
            .accuracy = accuracy.vector(),
            .top = top.vector(),
            .spread = spread.vector(),
            .mean = mean.vector()};
  }
  TokenLogProbsBackward backward() {
    TensorView dentropy = dentropy_.vector();
    if (in_.o.one_dentropy) dentropy.rank = 0;
    return {.dlog_probs = dlog_probs_.vector(),
            .dentropy = dentropy,
            .divisor = in_.o.one_dentropy ? divisor_.vector() : TensorView{},
            .x = x.view(),
            .target = target(),
            .top = top.vector(),
            .spread = spread.vector(),
            .mean = mean.vector(),
            .ignore_index = kIgnored,
            .softcap = in_.o.softcap,
            .dx = dx_memory().view(),
            .accumulate = in_.o.accumulate};
  }
  TestTensor& dx_memory() { return in_.o.in_place ? x : dx; }

 private:
  TensorView target() const {
    return in_.o.narrow_tokens ? narrow_tokens_.vector(DType::kInt32)
                               : tokens_.vector(DType::kInt64);
  }

  const ScoreInputs& in_;
  DType wide_;

 public:
  TestTensor x, dx, log_probs, entropy, accuracy, top, spread, mean;

 private:
  TestTensor dlog_probs_, dentropy_, divisor_;
  DeviceArray<std::int64_t> tokens_;
  std::vector<std::int32_t> narrow_;
  DeviceArray<std::int32_t> narrow_tokens_;
};

class TokenLogProbs : public BackendTest {
 protected:
  static DType wide() { return dtype() == DType::kFloat64 ? dtype() : DType::kFloat32; }
  static void check(const ScoreInputs& in) {
    SCOPED_TRACE(std::to_string(in.m.rows) + "x" + std::to_string(in.m.cols) + " cap " +
                 std::to_string(in.o.softcap) + (in.o.accumulate ? " accumulate" : ""));
    const ScoreReference expected = reference_of(in);
    ScoreRun run(backend(), dtype(), in);
    token_log_probs_forward(backend().context(), run.forward());
    EXPECT_TRUE(close(wide(), run.log_probs.values(), expected.log_probs, 40));
    EXPECT_TRUE(close(wide(), run.entropy.values(), expected.entropy, 40));
    EXPECT_EQ(run.accuracy.values(), expected.accuracy);
    token_log_probs_backward(backend().context(), run.backward());
    EXPECT_TRUE(close(dtype(), run.dx_memory().values(), expected.dx, 40));
    EXPECT_TRUE(run.dx_memory().surroundings_intact());
  }
  static void check(Matrix m, const ScoreOptions& o) { check(random_scores(m, dtype(), o)); }
};

INSTANTIATE_TEST_SUITE_P(on, TokenLogProbs, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(TokenLogProbs, shapes) {
  for (std::int64_t cols : {1, 2, 31, 33, 1000, 5003}) {
    for (std::int64_t rows : {0, 1, 37}) check({rows, cols}, {});
  }
}

TEST_P(TokenLogProbs, every_option) {
  for (int bits = 0; bits < 16; ++bits) {
    const auto has = [&](int bit) { return (bits >> bit & 1) != 0; };
    check({23, 75}, {.softcap = has(0) ? 4.0 : 0.0,
                     .narrow_tokens = has(1),
                     .one_dentropy = has(1),
                     .accumulate = has(2),
                     .in_place = has(3) && !has(2),
                     .layout = has(3) ? Layout{1, 3} : Layout{}});
  }
}

// Each result alone, and each gradient.
TEST_P(TokenLogProbs, some_results) {
  const ScoreInputs in = random_scores({9, 40}, dtype(), {});
  const ScoreReference expected = reference_of(in);
  ScoreRun run(backend(), dtype(), in);
  TokenLogProbsForward forward = run.forward();
  forward.log_probs = forward.accuracy = {};
  token_log_probs_forward(backend().context(), forward);
  EXPECT_TRUE(close(wide(), run.entropy.values(), expected.entropy, 40));
  EXPECT_TRUE(run.log_probs.untouched());
  EXPECT_TRUE(run.accuracy.untouched());
  ScoreInputs without = in;
  std::ranges::fill(without.dentropy, 0);
  TokenLogProbsBackward backward = run.backward();
  backward.dentropy = backward.mean = {};
  token_log_probs_backward(backend().context(), backward);
  EXPECT_TRUE(close(dtype(), run.dx.values(), reference_of(without).dx, 40));
}

TEST_P(TokenLogProbs, first_of_equal_logits_is_accurate) {
  ScoreInputs in = random_scores({3, 100}, dtype(), {});
  in.tokens = {70, 20, 99};
  for (std::int64_t r = 0; r < 3; ++r) in.x[r * 100 + 20] = in.x[r * 100 + 70] = 50;
  check(in);
  EXPECT_EQ(reference_of(in).accuracy, (Values{0, 1, 0}));
}

TEST_P(TokenLogProbs, infinite_and_missing_logits) {
  ScoreInputs in = random_scores({5, 50}, dtype(), {});
  in.tokens = {3, 4, kIgnored, 5, 6};
  for (std::int64_t c = 10; c < 40; ++c) in.x[c] = -kInfinity;  // classes of probability 0
  for (std::int64_t c : {7, 8}) in.x[2 * 50 + c] = kNan;        // in a row that is ignored
  in.x[3 * 50 + 20] = kNan;
  in.x[4 * 50 + 6] = kInfinity;  // would be the first of its row
  in.x[4 * 50 + 9] = kNan;
  ScoreRun run(backend(), dtype(), in);
  token_log_probs_forward(backend().context(), run.forward());
  token_log_probs_backward(backend().context(), run.backward());
  ScoreInputs clean = in;
  for (double& value : clean.x) value = std::isnan(value) || value == kInfinity ? 0 : value;
  ScoreReference expected = reference_of(clean);
  for (int row : {3, 4}) {
    expected.log_probs[row] = expected.entropy[row] = kNan;
    expected.accuracy[row] = 0;
  }
  std::fill_n(expected.dx.begin() + 150, 100, kNan);
  EXPECT_TRUE(close(wide(), run.log_probs.values(), expected.log_probs, 40));
  EXPECT_TRUE(close(wide(), run.entropy.values(), expected.entropy, 40));
  EXPECT_EQ(run.accuracy.values(), expected.accuracy);
  EXPECT_TRUE(close(dtype(), run.dx.values(), expected.dx, 40));
}

TEST_P(TokenLogProbs, tokens_out_of_range) {
  for (std::int64_t token : {-1, 40, 1 << 20}) {
    ScoreInputs in = random_scores({5, 40}, dtype(), {});
    in.tokens = {0, 1, 2, token, 4};
    ScoreRun run(backend(), dtype(), in);
    if (is_on_cuda(backend())) {
      token_log_probs_forward(backend().context(), run.forward());
      for (TestTensor* result : {&run.log_probs, &run.entropy, &run.accuracy}) {
        const Values values = result->values();
        for (std::int64_t r = 0; r < 5; ++r) EXPECT_EQ(std::isnan(values[r]), r == 3) << r;
      }
      continue;
    }
    EXPECT_EQ(error_of([&] { token_log_probs_forward(backend().context(), run.forward()); }),
              "token_log_probs: target is " + std::to_string(token) +
                  " in row 3, expected one of [0, 39] or -7 (ignore_index)");
    EXPECT_TRUE(run.log_probs.untouched());
  }
}

TEST_P(TokenLogProbs, repeatable) {
  const ScoreInputs in = random_scores({101, 3000}, dtype(), {});
  std::vector<std::vector<std::uint8_t>> first;
  for (const Context& context : contexts_with_different_threads(backend())) {
    ScoreRun run(backend(), dtype(), in);
    token_log_probs_forward(context, run.forward());
    token_log_probs_backward(context, run.backward());
    const std::vector<std::vector<std::uint8_t>> bytes = {run.entropy.bytes(), run.dx.bytes()};
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
  }
}

TEST(TokenLogProbsErrors, have_exact_words_and_touch_nothing) {
  const ScoreInputs in = random_scores({3, 8}, DType::kFloat16, {.accumulate = true});
  ScoreRun run(*cpu_backend(), DType::kFloat16, in);
  const auto refused = [&](auto change) {
    TokenLogProbsForward a = run.forward();
    change(a);
    return error_of([&] { token_log_probs_forward({}, a); });
  };
  using Forward = TokenLogProbsForward;
  EXPECT_EQ(refused([](Forward& a) { a.x = {}; }), "token_log_probs: x is missing");
  EXPECT_EQ(refused([](Forward& a) { a.x.sizes[1] = 0; }),
            "token_log_probs: x has shape (3, 0), expected a class or more");
  EXPECT_EQ(refused([](Forward& a) { a.target = {}; }), "token_log_probs: target is missing");
  EXPECT_EQ(refused([](Forward& a) { a.softcap = -1; }),
            "token_log_probs: softcap is -1, expected a finite number of 0 or more");
  EXPECT_EQ(refused([](Forward& a) { a.entropy.dtype = DType::kFloat16; }),
            "token_log_probs: entropy is float16, expected float32 (the dtype of the arithmetic)");
  EXPECT_EQ(refused([](Forward& a) { a.entropy = a.log_probs; }),
            "token_log_probs: entropy overlaps log_probs, expected memory of its own");
  EXPECT_TRUE(run.log_probs.untouched());
  const auto refused_backward = [&](auto change) {
    TokenLogProbsBackward a = run.backward();
    change(a);
    return error_of([&] { token_log_probs_backward({}, a); });
  };
  using Backward = TokenLogProbsBackward;
  EXPECT_EQ(refused_backward([](Backward& a) { a.mean = {}; }), "token_log_probs: mean is missing");
  EXPECT_EQ(refused_backward([](Backward& a) { a.dx = a.x; }),
            "token_log_probs: dx overlaps x, expected memory of its own");
}

}  // namespace
}  // namespace transformer_kernels::testing
