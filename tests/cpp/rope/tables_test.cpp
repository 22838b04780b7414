// SPDX-License-Identifier: MIT
#include "transformer_kernels/rope/tables.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <string>

#include "error_of.h"
#include "test_tensor.h"

namespace transformer_kernels::testing {
namespace {

constexpr std::int64_t kPositions = 300, kFrequencies = 32;

struct Tables {
  explicit Tables(DType dtype)
      : cos(*cpu_backend(), dtype, kPositions, kFrequencies),
        sin(*cpu_backend(), dtype, kPositions, kFrequencies) {}

  // The arguments with this memory.
  RopeTables of(RopeTables a) const {
    a.cos = cos.view();
    a.sin = sin.view();
    return a;
  }

  TestTensor cos;
  TestTensor sin;
};

// Wavelengths in positions, which the scalings are defined by in their papers.
long double wavelength(std::int64_t f, long double base) {
  return 2 * std::numbers::pi_v<long double> *
         std::pow(base, 2 * static_cast<long double>(f) / (2 * kFrequencies));
}

// Checks the tables against angles of 2 pi position / wavelength(f).
void expect_tables(const RopeTables& arguments,
                   const std::function<long double(std::int64_t)>& wavelength_of,
                   long double factor = 1) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
    Tables tables(dtype);
    rope_tables({}, tables.of(arguments));
    const Values cos = tables.cos.values(), sin = tables.sin.values();
    for (std::int64_t i = 0; i < kPositions * kFrequencies; ++i) {
      const long double turns =
          static_cast<long double>(i / kFrequencies) / wavelength_of(i % kFrequencies);
      const long double angle = 2 * std::numbers::pi_v<long double> * turns;
      const double error = unit_roundoff(dtype) * static_cast<double>(factor) +
                           1e-15 * static_cast<double>(1 + angle);
      ASSERT_NEAR(cos[i], static_cast<double>(std::cos(angle) * factor), error) << i;
      ASSERT_NEAR(sin[i], static_cast<double>(std::sin(angle) * factor), error) << i;
    }
    EXPECT_TRUE(tables.cos.surroundings_intact() && tables.sin.surroundings_intact());
  }
}

TEST(RopeTables, match_their_definition) {
  expect_tables({}, [](auto f) { return wavelength(f, 10000); });
  expect_tables({.base = 5e5}, [](auto f) { return wavelength(f, 5e5); });
  expect_tables({.scaling = RopeScaling::kLinear, .factor = 4},
                [](auto f) { return 4 * wavelength(f, 10000); });
}

TEST(RopeTables, scale_long_wavelengths_as_llama_3_does) {
  constexpr long double kContext = 128, kFactor = 8;
  const auto scaled = [](std::int64_t f) {
    const long double length = wavelength(f, 10000);
    if (length < kContext / 4) return length;
    if (length > kContext / 1) return length * kFactor;
    const long double smooth = (kContext / length - 1) / (4 - 1);
    return 1 / ((1 - smooth) / (length * kFactor) + smooth / length);
  };
  expect_tables({.scaling = RopeScaling::kLlama3,
                 .factor = 8,
                 .original_max_positions = 128,
                 .low_freq_factor = 1,
                 .high_freq_factor = 4},
                scaled);
}

TEST(RopeTables, interpolate_as_yarn_does) {
  constexpr long double kContext = 128, kFactor = 16;
  // The index, with a fraction, of the frequency that turns so often in the context.
  const auto index_of = [](long double turns) {
    return kFrequencies * std::log(kContext / (2 * std::numbers::pi_v<long double> * turns)) /
           std::log(10000.0L);
  };
  for (const bool truncate : {true, false}) {
    const long double low = truncate ? std::floor(index_of(32)) : index_of(32);
    const long double high = truncate ? std::ceil(index_of(1)) : index_of(1);
    const auto scaled = [&](std::int64_t f) {
      const long double from = std::max(low, 0.0L);
      const long double ramp = std::min(std::max((f - from) / (high - from), 0.0L), 1.0L);
      return wavelength(f, 10000) / (ramp / kFactor + 1 - ramp);
    };
    const RopeTables yarn{.scaling = RopeScaling::kYarn,
                          .factor = 16,
                          .original_max_positions = 128,
                          .truncate = truncate};
    expect_tables(yarn, scaled, 0.1L * std::log(kFactor) + 1);
    RopeTables given = yarn;
    given.attention_factor = 0.5;
    expect_tables(given, scaled, 0.5L);
  }
}

TEST(RopeTables, bad_arguments_are_named) {
  const auto expect_error = [](RopeTables a, auto&& spoil, const std::string& expected) {
    Tables tables(DType::kFloat32);
    a = tables.of(a);
    spoil(a);
    EXPECT_EQ(error_of([&] { rope_tables({}, a); }), "rope_tables: " + expected);
    EXPECT_TRUE(tables.cos.untouched() && tables.sin.untouched());
  };
  const auto nothing = [](auto&) {};
  expect_error(
      {}, [](auto& a) { a.cos = {}; }, "cos is missing");
  expect_error(
      {}, [](auto& a) { a.sin = {}; }, "sin is missing");
  expect_error(
      {}, [](auto& a) { a.cos.dtype = DType::kBFloat16; },
      "cos is bfloat16, expected float32 or float64");
  expect_error(
      {}, [](auto& a) { a.cos.rank = 1; },
      "cos has shape (300,), expected (positions, frequencies)");
  expect_error(
      {}, [](auto& a) { a.sin.sizes[0] = 3; },
      "sin has shape (3, 32), expected (300, 32) (the shape of cos)");
  expect_error(
      {}, [](auto& a) { a.sin.data = a.cos.data; }, "sin overlaps cos, expected memory of its own");
  expect_error({.base = 1}, nothing, "base is 1, expected a finite number above 1");
  expect_error({.scaling = RopeScaling::kLinear, .factor = 0}, nothing,
               "factor is 0, expected a finite number above 0");
  expect_error({.scaling = RopeScaling::kYarn}, nothing,
               "original_max_positions is 0, expected a finite number above 0");
  expect_error({.scaling = RopeScaling::kLlama3, .original_max_positions = 8, .low_freq_factor = 4},
               nothing, "high_freq_factor is 4, expected a finite number above 4");
}

}  // namespace
}  // namespace transformer_kernels::testing
