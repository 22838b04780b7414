// SPDX-License-Identifier: MIT
#include "transformer_kernels/optimizer/adamw.h"

#include <algorithm>
#include <string>

#include "backend_test.h"
#include "error_of.h"
#include "optimizer/step_list.h"
#include "parallel_hooks.h"
#include "philox_reference.h"

namespace transformer_kernels::testing {
namespace {

const AdamWGroup kGroups[] = {
    {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1},
    {.lr = 2e-2, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .maximize = true}};

class AdamW : public BackendTest {
 protected:
  static void check_list(const ListKind& kind, double grad_scale, double max_norm) {
    SCOPED_TRACE("steps " + std::to_string(kind.steps) + " scale " + std::to_string(grad_scale) +
                 " max_norm " + std::to_string(max_norm));
    StepList list(backend(), kind, {0, 1, 17, 255, 1025, 3 * 16384 + 5});
    TestTensor scale(backend(), DType::kFloat32, 1, 1, Values{grad_scale});
    TestTensor norm(backend(), DType::kFloat32, 1, 1);
    adamw_step(
        backend().context(),
        {.tensors = list.tensors(),
         .groups = kGroups,
         .options = {.grad_scale = scale.vector(), .max_norm = max_norm, .norm = norm.vector()}});
    const double expected_norm = list.norm() / grad_scale;
    EXPECT_NEAR(norm.values()[0], expected_norm, 1e-5 * expected_norm);
    const double clip = max_norm > 0 ? std::min(1.0, max_norm / (expected_norm + 1e-6)) : 1;
    for (const auto& entry : list.entries) check_entry(kind, *entry, clip / grad_scale);
  }

  static void check_entry(const ListKind& kind, ListEntry& entry, double factor) {
    const auto& group = kGroups[entry.tensor().group];
    const Values weights0 = entry.weights0(), p = entry.param.values();
    const Values master = entry.master.values(), m = entry.first.values();
    const Values v = entry.second.values(), top = entry.largest.values();
    EXPECT_EQ(entry.step.values()[0], kind.steps + 1);
    // The norm is right to some units of float32, and so is what it multiplies.
    const double unit = kind.param == DType::kFloat64 ? 1e-12 : unit_roundoff(DType::kFloat32);
    const auto near = [](DType dtype, double expected, double allowed) {
      return rounding_of(dtype, expected) + allowed;
    };
    for (std::size_t i = 0; i < p.size(); ++i) {
      const Stepped s =
          adamw_element(group, kind.steps + 1, factor, weights0[i], entry.grad0[i], entry.first0[i],
                        entry.second0[i], entry.largest0[i], kind.has_largest);
      const double of_m =
          8 * unit * (std::abs(entry.first0[i]) + std::abs(entry.grad0[i] * factor));
      ASSERT_NEAR(m[i], s.m, near(kind.state, s.m, of_m)) << i;
      ASSERT_NEAR(v[i], s.v, near(kind.state, s.v, 16 * unit * s.v)) << i;
      if (kind.has_largest) {
        ASSERT_NEAR(top[i], s.top, near(kind.state, s.top, 16 * unit * s.top)) << i;
      }
      if (kind.has_master) {
        ASSERT_NEAR(master[i], s.p, s.allowed * unit) << i;
        ASSERT_EQ(p[i], rounded_to(kind.param, master[i])) << i;
      } else {
        ASSERT_NEAR(p[i], s.p, near(kind.param, s.p, s.allowed * unit)) << i;
      }
    }
    EXPECT_TRUE(entry.surroundings_intact());
  }
};

TEST_P(AdamW, MatchesTheFormula) {
  for (const double steps : {0.0, 9.0, 1e7}) {
    for (const bool has_largest : {false, true}) {
      const ListKind kind{
          .param = dtype(), .state = dtype(), .has_largest = has_largest, .steps = steps};
      check_list(kind, steps == 0 ? 1 : 256, has_largest ? 3 : 0);
    }
  }
}

TEST_P(AdamW, KeepsWiderOrNarrowerStates) {
  if (dtype() == DType::kFloat64) return;
  for (const DType state : {DType::kFloat32, DType::kBFloat16}) {
    check_list({.param = dtype(), .state = state, .steps = 3}, 1, 0);
    if (size_of(dtype()) == 2) {
      check_list({.param = dtype(), .state = state, .has_master = true, .steps = 3}, 1, 1);
    }
  }
}

TEST_P(AdamW, IsTheSameWithAnyThreads) {
  const ListKind kind{.param = dtype(), .state = dtype(), .steps = 4};
  StepList list(backend(), kind, {40000, 3, 16384, 70001});
  const auto before = random_engine();
  std::vector<std::vector<std::vector<std::uint8_t>>> expected;
  for (const Context& context : contexts_with_different_threads(backend())) {
    random_engine() = before;
    StepList again(backend(), kind, {40000, 3, 16384, 70001});
    adamw_step(context, {.tensors = again.tensors(),
                         .groups = kGroups,
                         .options = {.max_norm = 2, .rounds_states_randomly = true, .seed = 5}});
    std::vector<std::vector<std::vector<std::uint8_t>>> bytes;
    for (const auto& entry : again.entries) bytes.push_back(entry->bytes());
    if (expected.empty()) expected = bytes;
    EXPECT_EQ(bytes, expected);
  }
}

TEST_P(AdamW, WritesNothingWhereAGradientIsNotFinite) {
  for (const double bad : {kInfinity, -kInfinity, kNan}) {
    for (const bool by_norm : {true, false}) {
      StepList list(backend(), {.param = dtype(), .state = dtype()}, {100, 20000});
      Values grad = list.entries[1]->grad0;
      grad[17077] = bad;
      TestTensor other(backend(), dtype(), 1, 20000, grad);
      auto tensors = list.tensors();
      tensors[1].grad = other.vector();
      TestTensor found(backend(), DType::kFloat32, 1, 1, Values{by_norm ? 0.0 : 1.0});
      TestTensor norm(backend(), DType::kFloat32, 1, 1);
      const auto before = std::array{list.entries[0]->bytes(), list.entries[1]->bytes()};
      adamw_step(backend().context(), {.tensors = tensors,
                                       .groups = kGroups,
                                       .options = {.found_inf = found.vector(),
                                                   .skips_nonfinite = by_norm,
                                                   .norm = norm.vector()}});
      EXPECT_EQ((std::array{list.entries[0]->bytes(), list.entries[1]->bytes()}), before);
      EXPECT_FALSE(std::isfinite(norm.values()[0]));
    }
  }
}

TEST_P(AdamW, NormHoldsNumbersWhoseSquaresDoNotFit) {
  for (const double size : {1e-30, 1e-22, 1e-3, 1e18, 1e30}) {
    const bool fits = size == 1e-3 || dtype() == DType::kFloat32 || dtype() == DType::kBFloat16;
    if (!fits) continue;
    StepList list(backend(), {.param = dtype(), .state = dtype(), .gradient_size = size},
                  {5000, 3});
    TestTensor norm(backend(), DType::kFloat32, 1, 1);
    adamw_step(backend().context(),
               {.tensors = list.tensors(), .groups = kGroups, .options = {.norm = norm.vector()}});
    EXPECT_NEAR(norm.values()[0], list.norm(), 1e-5 * list.norm());
  }
}

TEST_P(AdamW, UnscalesGradientsInPlace) {
  StepList list(backend(), {.param = dtype(), .state = dtype()}, {3000});
  TestTensor scale(backend(), DType::kFloat32, 1, 1, Values{8});
  adamw_step(backend().context(),
             {.tensors = list.tensors(),
              .groups = kGroups,
              .options = {.grad_scale = scale.vector(), .unscales_gradients = true}});
  Values expected = list.entries[0]->grad0;
  for (double& g : expected) g = rounded_to(dtype(), g / 8);
  EXPECT_EQ(list.entries[0]->grad.values(), expected);
}

TEST_P(AdamW, ReadsARateWhereItIs) {
  if (dtype() != DType::kFloat32 && dtype() != DType::kFloat64) return;
  TestTensor rate(backend(), dtype(), 1, 1, Values{rounded_to(dtype(), 3e-2)});
  AdamWGroup by_number[] = {kGroups[0], kGroups[1]};
  AdamWGroup by_tensor[] = {kGroups[0], kGroups[1]};
  by_number[1].lr = rate.values()[0];
  by_tensor[1].rate = rate.vector();
  const auto before = random_engine();
  std::vector<Values> params;
  for (const auto& groups : {std::span(by_number), std::span(by_tensor)}) {
    random_engine() = before;
    StepList list(backend(), {.param = dtype(), .state = dtype()}, {700, 300});
    adamw_step(backend().context(), {.tensors = list.tensors(), .groups = groups});
    for (const auto& entry : list.entries) params.push_back(entry->param.values());
  }
  EXPECT_EQ(params[0], params[2]);
  EXPECT_EQ(params[1], params[3]);
}

INSTANTIATE_TEST_SUITE_P(Backends, AdamW, all_backends_and_dtypes(), name_of_backend_test);

// ---------------------------------------------------------------------------- narrow states

class AdamWStates : public ::testing::TestWithParam<Backend*> {
 protected:
  static Backend& backend() { return *GetParam(); }

  // With these, the moments of a step are its gradient and its square, and the weights stay.
  static constexpr AdamWGroup kCopies[] = {{.lr = 0, .beta1 = 0, .beta2 = 0, .weight_decay = 0}};
  static constexpr std::uint64_t kSeed = 0x123456789abcdef;
};

TEST_P(AdamWStates, RoundsByTheBitsOfPhilox) {
  constexpr std::int64_t kCount = 5001, kNumber = 77, kSteps = 12;
  ListEntry entry(backend(), {.state = DType::kBFloat16, .steps = kSteps - 1}, kCount, 0, kNumber);
  // From 0 the interpolation is exact.
  TestTensor first(backend(), DType::kBFloat16, 1, kCount, Values(kCount));
  OptimizerTensor tensors[] = {entry.tensor()};
  tensors[0].exp_avg = first.vector();
  adamw_step(backend().context(), {.tensors = tensors,
                                   .groups = kCopies,
                                   .options = {.rounds_states_randomly = true, .seed = kSeed}});
  const Values m = first.values(), v = entry.second.values();
  const auto expected = [&](double exact, std::uint64_t use, std::int64_t i) {
    const std::uint64_t counter = use << 62 | static_cast<std::uint64_t>(kNumber) << 40;
    const std::uint64_t index = counter + static_cast<std::uint64_t>(i) / 8;
    const auto words = reference_philox(
        {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), kSteps, 0},
        {static_cast<std::uint32_t>(kSeed), static_cast<std::uint32_t>(kSeed >> 32)});
    const std::uint32_t random = words[i % 8 / 2] >> (i % 2 * 16) & 0xffff;
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(exact)) + random;
    return static_cast<double>(std::bit_cast<float>(bits & 0xffff0000));
  };
  for (std::int64_t i = 0; i < kCount; ++i) {
    const auto g = static_cast<float>(entry.grad0[i]);
    ASSERT_EQ(m[i], expected(g, 0, i)) << i;
    ASSERT_EQ(v[i], expected(g * g, 1, i)) << i;
  }
}

TEST_P(AdamWStates, RoundsSpecialNumbersToThemselves) {
  constexpr std::int64_t kCount = 64;
  ListEntry entry(backend(), {.state = DType::kBFloat16}, kCount, 0, 0);
  Values grads(kCount, 1.5);
  grads[3] = kInfinity, grads[4] = -kInfinity, grads[5] = kNan, grads[6] = -0.0;
  TestTensor grad(backend(), DType::kFloat32, 1, kCount, grads);
  OptimizerTensor tensor = entry.tensor();
  tensor.grad = grad.vector();
  // beta1 and the moment are 0, of which an infinite gradient is a NaN to the interpolation.
  TestTensor zeros(backend(), DType::kBFloat16, 1, kCount, Values(kCount));
  tensor.exp_avg = zeros.vector();
  adamw_step(backend().context(), {.tensors = {&tensor, 1},
                                   .groups = kCopies,
                                   .options = {.rounds_states_randomly = true, .seed = kSeed}});
  const Values m = zeros.values();
  EXPECT_EQ(m[0], 1.5);
  EXPECT_EQ(m[3], kInfinity);
  EXPECT_EQ(m[4], -kInfinity);
  EXPECT_TRUE(std::isnan(m[5]));
  EXPECT_EQ(m[6], 0);
}

// The value of a code as the header says it.
double value_of_code(int code, int bits) {
  if (code == 0) return 0;
  int digit = 0;
  while (code >> (digit + 1) > 0) ++digit;
  return std::pow(10, digit - bits) * (1 + 9 * (static_cast<double>(code) / (1 << digit) - 1));
}

TEST_P(AdamWStates, CodesAreThoseBesideTheNumber) {
  constexpr std::int64_t kCount = 3 * kStateBlock + 100;
  ListEntry entry(backend(), {}, kCount, 0, 9);
  // Some decades, and a block of zeros.
  Values grads = entry.grad0;
  std::uniform_real_distribution<double> decade(-9, 0);
  for (std::int64_t i = 0; i < kCount; ++i) {
    grads[i] = i / kStateBlock == 1
                   ? 0
                   : rounded_to(DType::kFloat32, grads[i] * std::pow(10, decade(random_engine())));
  }
  TestTensor grad(backend(), DType::kFloat32, 1, kCount, grads);
  std::vector<std::uint8_t> first(kCount), second(kCount);
  std::vector<float> scales(4), squares(4);
  const DeviceArray firsts(backend(), first.data(), kCount);
  const DeviceArray seconds(backend(), second.data(), kCount);
  const DeviceArray scales_there(backend(), scales.data(), 4);
  const DeviceArray squares_there(backend(), squares.data(), 4);
  OptimizerTensor tensor = entry.tensor();
  tensor.grad = grad.vector();
  tensor.exp_avg = firsts.vector(DType::kUInt8);
  tensor.exp_avg_sq = seconds.vector(DType::kUInt8);
  tensor.exp_avg_scales = scales_there.vector(DType::kFloat32);
  tensor.exp_avg_sq_scales = squares_there.vector(DType::kFloat32);
  adamw_step(backend().context(),
             {.tensors = {&tensor, 1}, .groups = kCopies, .options = {.seed = kSeed}});
  backend().download(first.data(), tensor.exp_avg.data, kCount);
  backend().download(second.data(), tensor.exp_avg_sq.data, kCount);
  backend().download(scales.data(), tensor.exp_avg_scales.data, 4 * sizeof(float));
  backend().download(squares.data(), tensor.exp_avg_sq_scales.data, 4 * sizeof(float));
  const auto check = [](double exact, double scale, int code, int bits, std::int64_t i) {
    const int last = (1 << bits) - 1;
    const double slack = 1e-5 * std::abs(exact);
    const double below = scale * value_of_code(std::max(code - 1, 0), bits);
    const double above = scale * value_of_code(std::min(code + 1, last), bits);
    ASSERT_GE(exact, below - slack) << i;
    ASSERT_LE(exact, above + slack) << i;
  };
  for (std::int64_t i = 0; i < kCount; ++i) {
    const double scale = scales[i / kStateBlock], square = squares[i / kStateBlock];
    const int code = static_cast<std::int8_t>(first[i]);
    check(std::abs(grads[i]), scale, std::abs(code), 7, i);
    check(grads[i] * grads[i], square, second[i], 8, i);
    if (code != 0) {
      ASSERT_EQ(code < 0, grads[i] < 0) << i;
    }
    const bool positive = static_cast<float>(grads[i]) * static_cast<float>(grads[i]) > 0;
    ASSERT_EQ(second[i] > 0, positive) << i;
  }
}

// ---------------------------------------------------------------------------- refusals

TEST_P(AdamWStates, RefusesWhatItCannotUpdate) {
  ListEntry entry(backend(), {.param = DType::kBFloat16, .state = DType::kFloat32}, 512, 0, 0, {});
  const auto refusal = [&](auto change) {
    OptimizerTensor tensor = entry.tensor();
    change(tensor);
    return error_of([&] {
      adamw_step(backend().context(), {.tensors = {&tensor, 1}, .groups = kCopies});
    });
  };
  const auto before = entry.bytes();
  EXPECT_EQ(refusal([](OptimizerTensor& t) { t.grad = {}; }), "adamw: grads[0] is missing");
  EXPECT_EQ(refusal([](OptimizerTensor& t) { t.grad.sizes[0] = 511; }),
            "adamw: grads[0] has shape (511,), expected (512,) (the shape of its param)");
  EXPECT_EQ(refusal([](OptimizerTensor& t) { t.grad.strides[0] = 2; }),
            "adamw: grads[0] has other strides than its param, expected the same");
  EXPECT_EQ(refusal([](OptimizerTensor& t) { t.param.strides[0] = 2; }),
            "adamw: params[0] has gaps or overlaps itself, expected dense memory");
  EXPECT_EQ(refusal([](OptimizerTensor& t) { t.param.dtype = DType::kInt32; }),
            "adamw: params[0] is int32, expected a floating-point dtype");
  EXPECT_EQ(refusal([](OptimizerTensor& t) { t.exp_avg_sq.dtype = DType::kFloat16; }),
            "adamw: exp_avg_sqs[0] is float16, expected another dtype beside a param of bfloat16");
  EXPECT_EQ(refusal([](OptimizerTensor& t) { t.master = t.exp_avg; }),
            "adamw: master overlaps exp_avg, expected memory of its own");
  EXPECT_EQ(refusal([](OptimizerTensor& t) { t.exp_avg.dtype = DType::kUInt8; }),
            "adamw: exp_avg_scales[0] is missing");
  EXPECT_EQ(refusal([](OptimizerTensor& t) { t.step = t.exp_avg; }),
            "adamw: steps[0] has 512 elements, expected 1");
  EXPECT_EQ(refusal([](OptimizerTensor& t) { t.group = 1; }),
            "adamw: groups[0] is 1, expected one of 1");
  EXPECT_EQ(refusal([](OptimizerTensor& t) { t.number = 1 << 20; }),
            "adamw: numbers[0] is 1048576, expected 0 to 1048575");
  EXPECT_EQ(entry.bytes(), before);
}

TEST_P(AdamWStates, TakesAnEmptyList) {
  EXPECT_EQ(error_of([] { adamw_step(backend().context(), {.tensors = {}, .groups = kCopies}); }),
            "no error");
}

INSTANTIATE_TEST_SUITE_P(Backends, AdamWStates, ::testing::ValuesIn(backends()),
                         [](const auto& info) { return std::string(info.param->name()); });

}  // namespace
}  // namespace transformer_kernels::testing
