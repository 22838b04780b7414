// SPDX-License-Identifier: MIT
#include "transformer_kernels/decode/sample_logits.h"

#include <set>

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

template <class T>
DeviceArray<T> array_of(Backend& backend, const std::vector<T>& values) {
  return {backend, values.data(), values.size()};
}

struct Found {
  Integers tokens;
  Values log_probs, top_tokens, top_log_probs, probabilities;
};

// One row of parameters for all, or one for each.
using Parameters = std::vector<SamplingParameters>;

class SampleLogitsTest : public BackendTest {
 protected:
  static constexpr std::int64_t kRows = 3;

  static Found run(std::int64_t vocabulary, const Values& logits, Parameters by,
                   std::int64_t top = 0, SampleLogits more = {}) {
    TestTensor x(backend(), dtype(), kRows, vocabulary, logits, {1, 3});
    const auto parameters = array_of(backend(), by);
    const auto seeds = array_of(backend(), Integers{5, -6, std::int64_t{1} << 40});
    const auto positions = array_of(backend(), Integers{0, 3, std::int64_t{1} << 35});
    const auto tokens = array_of(backend(), Integers(kRows, -7));
    const auto top_tokens = array_of(backend(), Integers(kRows * top, -7));
    TestTensor log_probs(backend(), DType::kFloat32, 1, kRows);
    TestTensor probabilities(backend(), DType::kFloat32, kRows, vocabulary);
    TestTensor top_log_probs(backend(), DType::kFloat32, kRows, top);
    more.logits = x.view();
    more.parameters =
        TensorView::contiguous(parameters.vector(DType::kFloat32).data, DType::kFloat32,
                               backend().context().device, {std::ssize(by), 8});
    more.seed = seeds.vector(DType::kInt64);
    more.position = positions.vector(DType::kInt64);
    more.tokens = tokens.vector(DType::kInt64);
    more.log_probs = log_probs.vector();
    more.probabilities = probabilities.view();
    if (top > 0) {
      more.top_tokens = top_tokens.matrix(DType::kInt64, kRows);
      more.top_log_probs = top_log_probs.view();
    }
    sample_logits(backend().context(), more);
    for (TestTensor* y : {&log_probs, &probabilities, &top_log_probs}) {
      EXPECT_TRUE(y->surroundings_intact());
    }
    const Integers likeliest = top_tokens.values();
    return {tokens.values(), log_probs.values(), Values(likeliest.begin(), likeliest.end()),
            top_log_probs.values(), probabilities.values()};
  }

  static std::vector<float> row(const Values& x, std::int64_t vocabulary, std::int64_t at) {
    return {x.begin() + at * vocabulary, x.begin() + (at + 1) * vocabulary};
  }

  static void check(std::int64_t vocabulary, const Values& logits, const Parameters& by) {
    const Found found = run(vocabulary, logits, by);
    const Integers seeds{5, -6, std::int64_t{1} << 40};
    const Integers positions{0, 3, std::int64_t{1} << 35};
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::vector<float> z = row(logits, vocabulary, r);
      const Weights w = reference_weights(z, by[by.size() == 1 ? 0 : r]);
      EXPECT_EQ(found.tokens[r], reference_draw(w, reference_uniform(seeds[r], positions[r], 0)));
      const auto sum_of_all = static_cast<double>(total(w));
      Values shares;
      for (const std::int64_t own : w) {
        shares.push_back(static_cast<float>(static_cast<double>(own) / sum_of_all));
      }
      const auto first = found.probabilities.begin() + r * vocabulary;
      EXPECT_TRUE(std::equal(shares.begin(), shares.end(), first));
      const float top = *std::ranges::max_element(z);
      double sum = 0;
      for (const float v : z) sum += std::exp(double{v} - top);
      EXPECT_NEAR(found.log_probs[r], z[found.tokens[r]] - top - std::log(sum), 2e-5);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(on, SampleLogitsTest, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(SampleLogitsTest, draws_by_whole_weights) {
  for (const std::int64_t vocabulary : {1, 2, 37, 256, 257, 1031, 9000}) {
    SCOPED_TRACE(vocabulary);
    const Values logits = random_normal(kRows * vocabulary, dtype(), 0, 4);
    check(vocabulary, logits, {{}});
    check(vocabulary, logits, {{.temperature = 1.7f, .top_k = 5}});
    check(vocabulary, logits, {{.top_k = 600}, {.top_p = 0.5f}, {.min_p = 0.01f}});
    check(vocabulary, logits, {{.typical_p = 0.6f}});
    check(vocabulary, logits,
          {{.top_p = 0.95f, .typical_p = 0.9f},
           {.temperature = 0.3f, .top_k = 40, .top_p = 0.9f, .min_p = 0.02f, .typical_p = 0.5f},
           {.temperature = 1e30f, .top_p = 0}});
  }
}

TEST_P(SampleLogitsTest, equal_logits_share_their_fate) {
  Values logits = random_normal(kRows * 900, dtype());
  for (std::size_t i = 0; i < logits.size(); i += 2) logits[i] = i % 4 == 0 ? 1.5 : -1.5;
  check(900, logits, {{.top_k = 100}});
  check(900, logits, {{.top_p = 0.4f}});
  check(900, logits, {{.typical_p = 0.4f}});
}

TEST_P(SampleLogitsTest, the_likeliest_come_first) {
  for (const std::int64_t vocabulary : {5, 300, 20000}) {
    const Values logits = random_normal(kRows * vocabulary, dtype(), 0, 3);
    for (const std::int64_t top : {1, 5}) {
      const Found found = run(vocabulary, logits, {{.temperature = 0}}, top);
      for (std::int64_t r = 0; r < kRows; ++r) {
        const std::vector<float> z = row(logits, vocabulary, r);
        std::vector<std::int64_t> order(vocabulary);
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(order, [&](auto a, auto b) { return z[a] > z[b]; });
        EXPECT_EQ(found.tokens[r], order[0]);
        EXPECT_EQ(found.probabilities[r * vocabulary + order[0]], 1);
        EXPECT_EQ(found.log_probs[r], found.top_log_probs[r * top]);
        for (std::int64_t i = 0; i < top; ++i) {
          EXPECT_EQ(found.top_tokens[r * top + i], static_cast<double>(order[i]));
          EXPECT_NEAR(found.top_log_probs[r * top + i] - found.log_probs[r],
                      z[order[i]] - z[order[0]], 1e-5);
        }
      }
    }
  }
}

TEST_P(SampleLogitsTest, bias_penalties_and_masks) {
  constexpr std::int64_t kTokens = 70;
  const Values logits = random_normal(kRows * kTokens, dtype());
  Values bias = random_normal(kTokens, DType::kFloat32);
  const Integers previous{3, 3, -1, 9, 99, 3, 4, 4, 4, 4, 4, 4};
  const Integers prompts{2, 0, 9};
  const auto before = array_of(backend(), previous);
  const auto prompt_lengths = array_of(backend(), prompts);
  const auto bits = array_of(backend(), std::vector<std::uint32_t>{0xfffffff0, 0xffffffff, 0x3f});
  TestTensor biases(backend(), DType::kFloat32, 1, kTokens, bias);
  SampleLogits more{};
  more.previous = before.matrix(DType::kInt64, kRows);
  more.prompt_lengths = prompt_lengths.vector(DType::kInt64);
  more.bias = biases.view();
  more.allowed = bits.matrix(DType::kInt32, 1);
  const SamplingParameters by{
      .repetition_penalty = 1.5f, .presence_penalty = 0.25f, .frequency_penalty = 0.5f};
  const Found found = run(kTokens, logits, {by}, 0, more);
  Values changed(kRows * kTokens);
  for (std::int64_t r = 0; r < kRows; ++r) {
    double sum = 0;
    for (std::int64_t i = 0; i < kTokens; ++i) {
      double z = logits[r * kTokens + i] + bias[i];
      int seen = 0;
      int times = 0;
      for (std::int64_t j = 0; j < 4; ++j) {
        seen += previous[4 * r + j] == i;
        times += previous[4 * r + j] == i && j >= prompts[r];
      }
      if (seen > 0) z = z < 0 ? z * 1.5 : z / 1.5;
      z -= 0.5 * times + (times > 0 ? 0.25 : 0);
      changed[r * kTokens + i] = i < 4 ? 0 : std::exp(z);
      sum += changed[r * kTokens + i];
    }
    for (std::int64_t i = 0; i < kTokens; ++i) {
      EXPECT_NEAR(found.probabilities[r * kTokens + i], changed[r * kTokens + i] / sum, 1e-6);
    }
  }
}

TEST_P(SampleLogitsTest, nan_infinity_and_nothing) {
  Values logits(kRows * 300, -1);
  logits[20] = logits[290] = kNan;
  logits[300 + 7] = logits[300 + 8] = kInfinity;
  std::fill(logits.begin() + 600, logits.end(), -kInfinity);
  logits[777] = -3;
  const Found found = run(300, logits, {{.top_k = 3, .top_p = 0.9f, .typical_p = 0.9f}}, 2);
  EXPECT_EQ(found.tokens[0], 20);
  EXPECT_TRUE(found.tokens[1] == 7 || found.tokens[1] == 8);
  EXPECT_EQ(found.tokens[2], 177);
  EXPECT_TRUE(std::isnan(found.log_probs[0]) && std::isnan(found.top_log_probs[0]));
  EXPECT_EQ(found.top_tokens, (Values{-1, -1, 7, 8, 177, 0}));
  EXPECT_EQ(found.log_probs[2], 0);
  logits[777] = -kInfinity;
  if (is_on_cuda(backend())) {
    EXPECT_EQ(run(300, logits, {{}}).tokens[2], -1);
    return;
  }
  EXPECT_EQ(error_of([&] { run(300, logits, {{}}); }),
            "sample_logits: row 2 has no token that may be drawn, expected a logit above -inf that "
            "is allowed");
}

// Several threads or CTAs compute pieces of one row.
TEST_P(SampleLogitsTest, one_long_row) {
  constexpr std::int64_t kTokens = 90001;
  const Values logits = random_normal(kTokens, dtype(), 0, 3);
  TestTensor x(backend(), dtype(), 1, kTokens, logits);
  const std::vector<float> z(logits.begin(), logits.end());
  for (const SamplingParameters& by :
       {SamplingParameters{}, {.top_k = 2000}, {.top_p = 0.8f}, {.typical_p = 0.5f}}) {
    TestTensor parameters(backend(), DType::kFloat32, 1, 8,
                          {by.temperature, by.top_k, by.top_p, by.min_p, by.typical_p, 1, 0, 0});
    const auto seed = array_of(backend(), Integers{9});
    const auto position = array_of(backend(), Integers{1});
    const auto token = array_of(backend(), Integers{0});
    sample_logits(backend().context(), {.logits = x.view(),
                                        .parameters = parameters.view(),
                                        .seed = seed.vector(DType::kInt64),
                                        .position = position.vector(DType::kInt64),
                                        .tokens = token.vector(DType::kInt64)});
    EXPECT_EQ(token.values()[0],
              reference_draw(reference_weights(z, by), reference_uniform(9, 1, 0)));
  }
}

TEST_P(SampleLogitsTest, bad_arguments) {
  if (is_on_cuda(backend())) GTEST_SKIP() << "numbers of parameters are the CPU's to check";
  TestTensor x(backend(), dtype(), 2, 9, random_normal(18, dtype()));
  Parameters by(2);
  Integers two{1, 2};
  Integers tokens{-7, -7};
  const SampleLogits good{
      .logits = x.view(),
      .parameters = TensorView::contiguous(by.data(), DType::kFloat32, {}, {2, 8}),
      .seed = view_of(two),
      .position = view_of(two),
      .tokens = view_of(tokens)};
  const auto refusal = [&](auto&& change) {
    SampleLogits bad = good;
    change(bad);
    return error_of([&] { sample_logits(backend().context(), bad); });
  };
  EXPECT_EQ(refusal([](auto& a) { a.parameters = {}; }), "sample_logits: parameters is missing");
  EXPECT_EQ(refusal([](auto& a) { a.parameters.sizes[1] = 7; }),
            "sample_logits: parameters has shape (2, 7), expected (2, 8)");
  EXPECT_EQ(refusal([](auto& a) { a.tokens = a.seed; }),
            "sample_logits: tokens overlaps seed, expected memory of its own");
  EXPECT_EQ(refusal([](auto& a) { a.logits.rank = 1; }),
            "sample_logits: logits has 1 dimensions, expected 2");
  EXPECT_EQ(
      refusal([](auto& a) { a.top_tokens = a.seed; }),
      "sample_logits: top_tokens is given without top_log_probs, or they without it, expected "
      "both");
  EXPECT_EQ(refusal([&](auto&) { by[1].top_p = 1.25f; }),
            "sample_logits: top_p is 1.25 in row 1, expected a number from 0 to 1");
  EXPECT_EQ(tokens, (Integers{-7, -7}));
}

}  // namespace
}  // namespace transformer_kernels::testing
