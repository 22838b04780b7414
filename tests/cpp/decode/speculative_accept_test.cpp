// SPDX-License-Identifier: MIT
#include "transformer_kernels/decode/speculative_accept.h"

#include <limits>

#include "backend_test.h"
#include "decode/sampling_reference.h"
#include "error_of.h"
#include "test_tensor.h"

namespace transformer_kernels::testing {
namespace {

using Integers = std::vector<std::int64_t>;

TensorView view_of(Integers& numbers) {
  return TensorView::contiguous(numbers.data(), DType::kInt64, {}, {std::ssize(numbers)});
}

struct Case {
  std::int64_t batch;
  std::int64_t drafted;
  std::int64_t vocabulary;
  bool logits;
  bool chance = true;
};

class SpeculativeAcceptTest : public BackendTest {
 protected:
  static Weights weights(const Values& x, std::int64_t vocabulary, std::int64_t row, bool logits) {
    const std::vector<float> own(x.begin() + row * vocabulary, x.begin() + (row + 1) * vocabulary);
    if (logits) return reference_weights(own, {});
    Weights w;
    for (const float p : own) w.push_back(std::llrint(double{p * kUnit}));
    return w;
  }

  static Weights excess(const Weights& p, const Weights& q) {
    const double a = double{kUnit} / static_cast<double>(total(p));
    const double b = double{kUnit} / static_cast<double>(total(q));
    Weights left(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      left[i] = std::llrint(std::max(
          0.0, product(static_cast<double>(p[i]), a) - product(static_cast<double>(q[i]), b)));
    }
    return total(left) > 0 ? left : p;
  }

  static void check(const Case& c) {
    const std::int64_t rows = c.batch * (c.drafted + 1);
    Values target = random_normal(rows * c.vocabulary, dtype(), 0, 2);
    Values draft = random_normal(c.batch * c.drafted * c.vocabulary, dtype(), 0, 2);
    if (!c.logits) {
      for (Values* x : {&target, &draft}) {
        for (double& v : *x) v = rounded_to(dtype(), std::min(v * v / 64, 1.0));
      }
    }
    TestTensor targets(backend(), dtype(), rows, c.vocabulary, target);
    TestTensor drafts(backend(), dtype(), c.batch * c.drafted, c.vocabulary, draft);
    Integers tokens(c.batch * c.drafted), lengths(c.batch), seeds(c.batch), positions(c.batch);
    std::uniform_int_distribution<std::int64_t> any(0, c.vocabulary - 1);
    for (std::int64_t& token : tokens) token = any(random_engine());
    if (!tokens.empty()) tokens.back() = c.vocabulary;  // is none, as is the other
    if (c.batch > 1 && c.drafted > 0) tokens.front() = std::numeric_limits<std::int64_t>::min();
    for (std::int64_t b = 0; b < c.batch; ++b) {
      lengths[b] = std::max<std::int64_t>(0, c.drafted - b % 3);
      seeds[b] = 100 + b;
      positions[b] = 10 * b;
    }
    const auto cubes = [&](TestTensor& x, std::int64_t each) {
      return TensorView::contiguous(x.view().data, dtype(), backend().context().device,
                                    {c.batch, each, c.vocabulary});
    };
    const auto copy = [](const Integers& numbers) {
      return DeviceArray<std::int64_t>(backend(), numbers.data(), numbers.size());
    };
    const auto tokens_there = copy(tokens), lengths_there = copy(lengths);
    const auto seeds_there = copy(seeds), positions_there = copy(positions);
    const auto accepted_there = copy(Integers(c.batch, -7)),
               next_there = copy(accepted_there.values());
    constexpr DType kInt64 = DType::kInt64;
    speculative_accept(backend().context(),
                       {.draft_tokens = tokens_there.matrix(kInt64, c.batch),
                        .draft = c.chance ? cubes(drafts, c.drafted) : TensorView{},
                        .target = cubes(targets, c.drafted + 1),
                        .lengths = lengths_there.vector(kInt64),
                        .seed = seeds_there.vector(kInt64),
                        .position = positions_there.vector(kInt64),
                        .logits = c.logits,
                        .accepted = accepted_there.vector(kInt64),
                        .token = next_there.vector(kInt64)});
    const Integers accepted = accepted_there.values(), token = next_there.values();
    for (std::int64_t b = 0; b < c.batch; ++b) {
      std::int64_t kept = 0;
      Weights next;
      for (;; ++kept) {
        const Weights p = weights(target, c.vocabulary, b * (c.drafted + 1) + kept, c.logits);
        next = p;
        if (kept == lengths[b]) break;
        const std::int64_t t = tokens[b * c.drafted + kept];
        const auto is_token = [&](std::int64_t at) { return at >= 0 && at < c.vocabulary; };
        Weights q(c.vocabulary);
        if (c.chance) {
          q = weights(draft, c.vocabulary, b * c.drafted + kept, c.logits);
        } else if (is_token(t)) {
          q[t] = 1;
        }
        const double u = reference_uniform(seeds[b], positions[b] + kept, 1);
        const auto share = [&](const Weights& w) { return static_cast<double>(w[t]); };
        if (is_token(t) && product(u, product(share(q), static_cast<double>(total(p)))) <
                               product(share(p), static_cast<double>(total(q)))) {
          continue;
        }
        if (total(q) > 0) next = excess(p, q);
        break;
      }
      EXPECT_EQ(accepted[b], kept);
      EXPECT_EQ(token[b],
                reference_draw(next, reference_uniform(seeds[b], positions[b] + kept, 2)));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(on, SpeculativeAcceptTest, all_backends_and_dtypes(),
                         name_of_backend_test);

TEST_P(SpeculativeAcceptTest, keeps_and_draws) {
  for (const bool logits : {false, true}) {
    for (const bool chance : {false, true}) {
      check({7, 3, 5, logits, chance});
      check({5, 2, 700, logits, chance});
      check({1, 4, 20011, logits, chance});
      check({3, 0, 40, logits, chance});
    }
  }
}

TEST_P(SpeculativeAcceptTest, bad_arguments) {
  if (is_on_cuda(backend())) GTEST_SKIP() << "lengths are the CPU's to check";
  TestTensor x(backend(), dtype(), 6, 9, Values(54, 0.125));
  Integers tokens{1, 2}, two{1, 2}, accepted{-7, -7}, token{-7, -7};
  const SpeculativeAccept good{
      .draft_tokens = TensorView::contiguous(tokens.data(), DType::kInt64, {}, {2, 1}),
      .target = TensorView::contiguous(x.view().data, dtype(), {}, {2, 2, 9}),
      .seed = view_of(two),
      .position = view_of(two),
      .accepted = view_of(accepted),
      .token = view_of(token)};
  const auto refusal = [&](auto&& change) {
    SpeculativeAccept bad = good;
    change(bad);
    return error_of([&] { speculative_accept(backend().context(), bad); });
  };
  EXPECT_EQ(refusal([](auto& a) { a.target.sizes[1] = 0; }),
            "speculative_accept: target has 0 rows a sequence, expected at least 1");
  EXPECT_EQ(refusal([](auto& a) { a.draft_tokens.sizes[1] = 2; }),
            "speculative_accept: draft_tokens has shape (2, 2), expected (2, 1)");
  EXPECT_EQ(refusal([&](auto& a) { a.lengths = view_of(two); }),
            "speculative_accept: lengths has 2, expected 0 to 1 (the columns of draft_tokens)");
  EXPECT_EQ(refusal([](auto& a) { a.token = a.accepted; }),
            "speculative_accept: token overlaps accepted, expected memory of its own");
  EXPECT_EQ(token, (Integers{-7, -7}));
  std::vector<float> nothing(2 * 2 * 9);
  if (dtype() == DType::kFloat32) {
    EXPECT_EQ(refusal([&](auto& a) { a.target.data = nothing.data(); }),
              "speculative_accept: sequence 0 has no token that may be drawn, expected a target "
              "with some probability");
  }
}

}  // namespace
}  // namespace transformer_kernels::testing
