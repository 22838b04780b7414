// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/math/philox.h"
#include "numbers.h"
#include "simd_probe.h"

namespace transformer_kernels::cpu {
namespace {

const SimdProbe& simd_probe_of(Isa isa) {
  constexpr const SimdProbe* kProbes[] = TFK_PER_ISA(simd_probe);
  return *kProbes[static_cast<int>(isa)];
}

}  // namespace
}  // namespace transformer_kernels::cpu

namespace transformer_kernels::testing {
namespace {

using cpu::Isa;
using cpu::SimdProbe;

// Every instruction set that this CPU and this build have.
class Simd : public ::testing::TestWithParam<Isa> {
 protected:
  static const SimdProbe& probe() { return cpu::simd_probe_of(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(cpu, Simd, ::testing::ValuesIn(cpu::usable_isas()),
                         [](const auto& info) { return name_of(info.param); });

float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <class T>
std::vector<T> all_bit_patterns() {
  std::vector<T> all(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
  return all;
}

TEST_P(Simd, widens_every_16_bit_pattern) {
  std::vector<float> half(1 << 16), bfloat(1 << 16);
  probe().widen_half(all_bit_patterns<Half>().data(), half.data(), 1 << 16);
  probe().widen_bfloat16(all_bit_patterns<BFloat16>().data(), bfloat.data(), 1 << 16);
  for (int i = 0; i < 1 << 16; ++i) {
    const double from_half = from_bits16(DType::kFloat16, static_cast<std::uint16_t>(i));
    const double from_bfloat = from_bits16(DType::kBFloat16, static_cast<std::uint16_t>(i));
    ASSERT_TRUE(half[i] == from_half || (std::isnan(half[i]) && std::isnan(from_half))) << i;
    ASSERT_TRUE(bfloat[i] == from_bfloat || (std::isnan(bfloat[i]) && std::isnan(from_bfloat)))
        << i;
  }
}

// Every 16-bit number, both neighbours of it and of the midpoint to the next, and random bits.
std::vector<float> rounding_cases(DType dtype) {
  std::vector<float> cases;
  for (int i = 0; i + 1 < 1 << 16; ++i) {
    const auto a = static_cast<float>(from_bits16(dtype, static_cast<std::uint16_t>(i)));
    const auto b = static_cast<float>(from_bits16(dtype, static_cast<std::uint16_t>(i + 1)));
    const float middle = (a + b) / 2;
    for (float base : {a, middle}) {
      cases.push_back(base);
      cases.push_back(std::nextafterf(base, INFINITY));
      cases.push_back(std::nextafterf(base, -INFINITY));
    }
  }
  for (int i = 0; i < 100000; ++i) {
    cases.push_back(float_of(static_cast<std::uint32_t>(random_engine()())));
  }
  return cases;
}

// Subnormal numbers are rounded as others are, also where AVX512-BF16 takes them for 0.
void expect_rounded(DType dtype, float in, std::uint16_t bits) {
  if (std::isnan(in)) {
    EXPECT_TRUE(std::isnan(from_bits16(dtype, bits)));
    return;
  }
  const std::uint16_t expected = bits16_of(dtype, rounded_to(dtype, in));
  ASSERT_EQ(bits, expected) << in;
}

TEST_P(Simd, rounds_to_half_as_ieee_does) {
  const std::vector<float> cases = rounding_cases(DType::kFloat16);
  std::vector<Half> out(cases.size());
  probe().narrow_half(cases.data(), out.data(), static_cast<std::int64_t>(cases.size()));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    expect_rounded(DType::kFloat16, cases[i], out[i].bits);
  }
}

TEST_P(Simd, rounds_to_bfloat16_as_ieee_does) {
  const std::vector<float> cases = rounding_cases(DType::kBFloat16);
  std::vector<BFloat16> out(cases.size());
  probe().narrow_bfloat16(cases.data(), out.data(), static_cast<std::int64_t>(cases.size()));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    expect_rounded(DType::kBFloat16, cases[i], out[i].bits);
  }
}

TEST_P(Simd, exp_is_within_two_units_in_the_last_place) {
  std::vector<float> in;
  for (float x = -87.3f; x < 88.0f; x += 0.000731f) in.push_back(x);
  std::vector<float> out(in.size());
  probe().exp_float(in.data(), out.data(), static_cast<std::int64_t>(in.size()));
  double worst = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const double exact = std::exp(static_cast<double>(in[i]));
    worst = std::max(worst, std::abs(out[i] - exact) / (exact * 0x1p-24));
  }
  RecordProperty("worst_half_ulp", std::to_string(worst));
  EXPECT_LE(worst, 4.0) << "halves of a unit in the last place";
}

TEST_P(Simd, exp2_is_within_two_units_in_the_last_place) {
  std::vector<float> in;
  for (float x = -125.9f; x < 127.0f; x += 0.000731f) in.push_back(x);
  std::vector<float> out(in.size());
  probe().exp2_float(in.data(), out.data(), static_cast<std::int64_t>(in.size()));
  for (std::size_t i = 0; i < in.size(); ++i) {
    const double exact = std::exp2(static_cast<double>(in[i]));
    ASSERT_LE(std::abs(out[i] - exact), 4 * 0x1p-24 * exact) << in[i];
  }
}

TEST_P(Simd, exp_for_16_bits_hardly_adds_to_their_rounding) {
  std::vector<float> in;
  for (float x = -87.3f; x < 88.0f; x += 0.000731f) in.push_back(x);
  std::vector<float> out(in.size());
  for (const auto exp : probe().exp_for_16_bits) {
    exp(in.data(), out.data(), static_cast<std::int64_t>(in.size()));
    for (std::size_t i = 0; i < in.size(); ++i) {
      const double exact = std::exp(static_cast<double>(in[i]));
      ASSERT_LE(std::abs(out[i] - exact), 0x1p-17 * exact) << in[i];
    }
  }
}

TEST_P(Simd, exp_at_the_ends) {
  const std::vector<float> in = {0.0f, -0.0f, -INFINITY, -1e30f, -200.0f, NAN, -NAN, -87.0f};
  for (const auto exp : {probe().exp_float, probe().exp2_float, probe().exp_for_16_bits[0],
                         probe().exp_for_16_bits[1]}) {
    std::vector<float> out(in.size());
    exp(in.data(), out.data(), static_cast<std::int64_t>(in.size()));
    EXPECT_EQ(out[0], 1.0f);
    EXPECT_EQ(out[1], 1.0f);
    for (int i = 2; i < 5; ++i) EXPECT_EQ(out[i], 0.0f) << in[i];
    EXPECT_TRUE(std::isnan(out[5]) && std::isnan(out[6]));
    EXPECT_GT(out[7], 0.0f);
  }
  const std::vector<double> in64 = {0.0, -INFINITY, NAN, -700.0, 1.0};
  std::vector<double> out64(in64.size());
  probe().exp_double(in64.data(), out64.data(), static_cast<std::int64_t>(in64.size()));
  EXPECT_EQ(out64[0], 1.0);
  EXPECT_EQ(out64[1], 0.0);
  EXPECT_TRUE(std::isnan(out64[2]));
  EXPECT_EQ(out64[3], std::exp(-700.0));
  EXPECT_EQ(out64[4], std::exp(1.0));
  probe().exp2_double(in64.data(), out64.data(), static_cast<std::int64_t>(in64.size()));
  EXPECT_EQ(out64[1], 0.0);
  EXPECT_TRUE(std::isnan(out64[2]));
  EXPECT_EQ(out64[4], 2.0);
}

template <class T, class Function>
void expect_copies_exactly(Function copy, std::int64_t count) {
  std::vector<T> in(count), out(count + 1, T{-7});
  for (std::int64_t i = 0; i < count; ++i) in[i] = static_cast<T>(i + 1);
  copy(in.data(), out.data(), count);
  for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(out[i], in[i]) << i << " of " << count;
  EXPECT_EQ(out[count], T{-7}) << count;
}

TEST_P(Simd, loads_and_stores_stop_where_they_should) {
  for (std::int64_t count = 0; count <= 70; ++count) {
    expect_copies_exactly<float>(probe().copy_float, count);
    expect_copies_exactly<double>(probe().copy_double, count);
    std::vector<float> in(count, 1.0f);
    std::vector<BFloat16> out(count + 1, BFloat16{0xdead});
    probe().narrow_bfloat16(in.data(), out.data(), count);
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(out[i].bits, 0x3f80);
    EXPECT_EQ(out[count].bits, 0xdead);
  }
}

TEST_P(Simd, streams_what_it_would_store) {
  constexpr int kCount = 203;
  alignas(64) float out[kCount + 1];
  alignas(64) BFloat16 narrow[kCount + 1];
  std::vector<float> in(kCount);
  for (int i = 0; i < kCount; ++i) in[i] = static_cast<float>(i);
  in[40] = 0x1p-130f;
  out[kCount] = -7;
  narrow[kCount].bits = 0xdead;
  probe().stream_float(in.data(), out, kCount);
  probe().stream_bfloat16(in.data(), narrow, kCount);
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(out[i], in[i]);
    ASSERT_EQ(from_bits16(DType::kBFloat16, narrow[i].bits), in[i]);
  }
  EXPECT_EQ(out[kCount], -7);
  EXPECT_EQ(narrow[kCount].bits, 0xdead);
}

TEST_P(Simd, selects_and_reduces) {
  for (std::int64_t count = 1; count <= 70; ++count) {
    std::vector<std::uint8_t> mask(count);
    std::vector<float> in(count), out(count);
    std::vector<double> in64(count), out64(count);
    for (std::int64_t i = 0; i < count; ++i) {
      mask[i] = static_cast<std::uint8_t>(i * 37 % 3 * 100);  // any byte but 0 is true
      in64[i] = in[i] = static_cast<float>(i * 29 % 71) - 80;
    }
    probe().select_double(mask.data(), in64.data(), out64.data(), count);
    float sum = 0;
    float top = -INFINITY;
    for (std::int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(out64[i], mask[i] ? in64[i] : -1) << i << " of " << count;
      sum += in[i];
      top = std::max(top, in[i]);
    }
    EXPECT_EQ(probe().sum_double(in64.data(), count), sum);
    for (int rows : {0, 1}) {
      probe().select_float[rows](mask.data(), in.data(), out.data(), count);
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(out[i], mask[i] ? in[i] : -1) << i << " of " << count;
      }
      EXPECT_EQ(probe().sum_float[rows](in.data(), count), sum);
      EXPECT_EQ(probe().largest_float[rows](in.data(), count), top);
    }
    EXPECT_EQ(probe().largest_double(in64.data(), count), top);
  }
}

template <class A, class Function>
void expect_transposed(Function transpose, int lanes) {
  std::vector<A> in(lanes * lanes), out(lanes * lanes);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<A>(i);
  transpose(in.data(), out.data());
  for (int row = 0; row < lanes; ++row) {
    for (int col = 0; col < lanes; ++col) {
      ASSERT_EQ(out[col * lanes + row], in[row * lanes + col]) << row << ", " << col;
    }
  }
}

TEST_P(Simd, transposes) {
  expect_transposed<float>(probe().transpose_float, probe().float_lanes);
  expect_transposed<double>(probe().transpose_double, probe().double_lanes);
}

template <class A, class Function>
void expect_swapped(Function swap) {
  std::vector<A> in(102), out(in.size());
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<A>(i);
  swap(in.data(), out.data(), static_cast<std::int64_t>(in.size()));
  for (std::size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], in[i ^ 1]) << i;
}

TEST_P(Simd, swaps_pairs) {
  expect_swapped<float>(probe().swap_float[0]);
  expect_swapped<float>(probe().swap_float[1]);
  expect_swapped<double>(probe().swap_double);
}

TEST_P(Simd, short_exp2_hardly_adds_to_the_rounding_of_16_bits) {
  if (probe().short_exp2 == nullptr) GTEST_SKIP() << "these vectors have none";
  std::vector<float> in = {-INFINITY, -1e30f, -200.0f, NAN};
  const std::size_t ends = in.size();
  for (float x = -120.0f; x < 120.0f; x += 0.000731f) in.push_back(x);
  std::vector<float> out(in.size());
  probe().short_exp2(in.data(), out.data(), static_cast<std::int64_t>(in.size()));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(out[i], 0.0f) << in[i];
  EXPECT_TRUE(std::isnan(out[3]));
  for (std::size_t i = ends; i < in.size(); ++i) {
    // The sum x + 1/2 is rounded to float.
    const double exact = std::exp2(static_cast<double>(in[i] + 0.5f) - 0.5);
    ASSERT_LE(std::abs(out[i] - exact), 0x1p-18 * exact) << in[i];
  }
}

// Also where the low word of the counter runs over, and the counter itself.
TEST_P(Simd, philox_block_has_the_numbers_of_each_counter) {
  constexpr std::uint64_t kKey = 0x299f31d0a4093822, kOffset = 0x0370734413198a2e;
  for (const std::uint64_t first :
       {std::uint64_t{0}, std::uint64_t{0xfffffffd}, ~std::uint64_t{2}}) {
    std::uint16_t numbers[64];
    probe().philox_block(kKey, first, kOffset, numbers);
    for (std::uint64_t i = 0; i < 8; ++i) {
      const PhiloxWords expected = philox(kKey, first + i, kOffset);
      for (std::uint64_t n = 0; n < 8; ++n) {
        EXPECT_EQ(numbers[8 * i + n], expected.word[n / 2] >> (n % 2 * 16) & 0xffff)
            << first + i << ", number " << n;
      }
    }
  }
}

}  // namespace
}  // namespace transformer_kernels::testing
