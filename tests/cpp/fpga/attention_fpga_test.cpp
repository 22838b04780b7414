// SPDX-License-Identifier: MIT
// attention_forward() of a context with an array: results, refusals, and the plan of commands.
#include <gtest/gtest.h>

#include "fpga/array.h"
#include "fpga/array_cases.h"
#include "fpga/attention.h"
#include "transformer_kernels/error.h"
#include "transformer_kernels/fpga/array.h"

namespace transformer_kernels::testing {
namespace {

// Tolerances for int8 operands. The lse moves with the scores, whose errors are one or two
// hundredths.
constexpr double kTolerance = 4e-2;
constexpr double kLseTolerance = 0.1;

void expect_close(fpga::Array& array, ArrayCase& c, bool causal, double scale,
                  std::int64_t offset) {
  AttentionForward a = c.arguments();
  a.inputs.causal = causal;
  a.inputs.scale = scale;
  attention_forward({.array = &array}, a);
  Values wanted;
  Values wanted_lse;
  c.reference(scale, offset, wanted, wanted_lse);
  EXPECT_LE(relative_error(c.out, wanted), kTolerance);
  for (std::size_t i = 0; i < wanted_lse.size(); ++i) {
    if (std::isinf(wanted_lse[i])) {
      EXPECT_EQ(c.lse[i], -kInfinity);
    } else {
      EXPECT_NEAR(c.lse[i], wanted_lse[i], kLseTolerance);
    }
  }
}

std::string message_of(fpga::Array& array, const AttentionForward& arguments) {
  try {
    attention_forward({.array = &array}, arguments);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(FpgaAttention, every_set_is_near_the_formula) {
  for (const std::string& name : fpga::set_names()) {
    SCOPED_TRACE(name);
    fpga::Array array(name);
    const std::int64_t dim = array.set().head_dim;
    for (bool causal : {false, true}) {
      for (const std::int64_t keys : {1, 7, 130}) {
        ArrayCase c({2, 7, keys, 4, 2, dim});
        expect_close(array, c, causal, 1 / std::sqrt(double(dim)), causal ? keys - 7 : keys);
      }
    }
  }
}

// Longer than the buffers: parts are merged by their maxima and sums.
TEST(FpgaAttention, keys_beyond_the_buffers) {
  fpga::Array array("r1c2d16n128");
  for (bool causal : {false, true}) {
    for (const std::int64_t keys : {129, 500}) {
      ArrayCase c({1, 33, keys, 2, 1, 16});
      expect_close(array, c, causal, 0.25, causal ? keys - 33 : keys);
    }
  }
}

TEST(FpgaAttention, narrower_heads_are_filled_up) {
  fpga::Array array("r2c4d64n256");
  for (const std::int64_t dim : {1, 5, 48}) {
    ArrayCase c({1, 9, 20, 3, 3, dim});
    expect_close(array, c, false, 1 / std::sqrt(double(dim)), 20);
  }
}

TEST(FpgaAttention, a_negative_scale) {
  fpga::Array array("r2c4d64n256");
  ArrayCase c({1, 9, 20, 2, 2, 64});
  expect_close(array, c, false, -0.125, 20);
}

// Without it the digits of the keys go to what all of them share.
TEST(FpgaAttention, centred_keys_keep_their_digits) {
  ArrayCase c({1, 64, 200, 1, 1, 64}, 16);
  Values wanted;
  Values wanted_lse;
  constexpr double kScale = 0.125;
  c.reference(kScale, 200, wanted, wanted_lse);
  double errors[2] = {};
  for (bool centred : {false, true}) {
    fpga::Array array("r2c4d64n256", fpga::model_transport("r2c4d64n256"),
                      {.center_keys = centred});
    AttentionForward a = c.arguments();
    a.inputs.scale = kScale;
    attention_forward({.array = &array}, a);
    errors[centred] = relative_error(c.out, wanted);
  }
  EXPECT_LE(errors[true], kTolerance);
  EXPECT_GT(errors[false], 1.5 * errors[true]);
}

TEST(FpgaAttention, every_dtype) {
  fpga::Array array("r4c8d32n256");
  for (DType dtype : {DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    ArrayCase c({1, 6, 11, 2, 1, 32});
    const std::int64_t bytes = size_of(dtype);
    const auto encoded = [&](const std::vector<float>& values) {
      std::vector<std::uint8_t> memory(values.size() * bytes);
      for (std::size_t i = 0; i < values.size(); ++i) {
        encode(dtype, values[i], memory.data() + i * bytes);
      }
      return memory;
    };
    auto q = encoded(c.q), k = encoded(c.k), v = encoded(c.v), out = encoded(c.out);
    AttentionForward a = c.arguments();
    a.lse = {};
    const std::pair<TensorView*, void*> views[] = {{&a.inputs.q, q.data()},
                                                   {&a.inputs.k, k.data()},
                                                   {&a.inputs.v, v.data()},
                                                   {&a.out, out.data()}};
    for (const auto& [view, data] : views) {
      view->data = data;
      view->dtype = dtype;
    }
    attention_forward({.array = &array}, a);
    Values found(c.out.size());
    for (std::size_t i = 0; i < found.size(); ++i) found[i] = decode(dtype, &out[i * bytes]);
    Values wanted;
    Values wanted_lse;
    c.reference(1 / std::sqrt(32.0), 11, wanted, wanted_lse);
    EXPECT_LE(relative_error(found, wanted), kTolerance) << name_of(dtype);
  }
}

TEST(FpgaAttention, no_keys_give_zeros) {
  fpga::Array array("r2c4d64n256");
  ArrayCase c({1, 3, 0, 2, 2, 64});
  EXPECT_EQ(message_of(array, c.arguments()), "");
  for (float value : c.out) EXPECT_EQ(value, 0);
  for (float value : c.lse) EXPECT_EQ(value, -kInfinity);
}

// ---- refusals, which leave results alone --------------------------------------------------------

TEST(FpgaAttention, what_an_array_cannot_do_is_refused_by_name) {
  fpga::Array array("r2c4d64n256");
  ArrayCase c({1, 4, 6, 2, 2, 64});
  const auto refused = [&](const std::string& start, auto change) {
    AttentionForward a = c.arguments();
    change(a.inputs);
    const std::string message = message_of(array, a);
    EXPECT_EQ(message.substr(0, start.size()), start);
    for (float value : c.out) ASSERT_EQ(value, 77.0F);
    for (float value : c.lse) ASSERT_EQ(value, 77.0F);
  };
  std::vector<float> numbers(48);
  bool mask[48] = {};
  const auto view = [&](std::initializer_list<std::int64_t> shape) {
    return TensorView::contiguous(numbers.data(), DType::kFloat32, {}, shape);
  };
  refused("attention: softcap is given, expected 0 (the array r2c4d64n256 has no such scores)",
          [](AttentionInputs& in) { in.softcap = 3; });
  refused("attention: window_left is given, expected -1",
          [](AttentionInputs& in) { in.window_left = 2; });
  refused("attention: bias is given, expected none", [&](AttentionInputs& in) {
    in.bias = view({1, 2, 4, 6});
  });
  refused("attention: mask is given, expected none, or causal", [&](AttentionInputs& in) {
    in.mask = TensorView::contiguous(mask, DType::kBool, {}, {1, 2, 4, 6});
  });
  refused("attention: sinks is given", [&](AttentionInputs& in) { in.sinks = view({2}); });
  refused("attention: alibi_slopes is given", [&](AttentionInputs& in) {
    in.alibi_slopes = view({1, 2});
  });
  std::int64_t seed[2] = {1, 2};
  refused("attention: dropout is given, expected 0", [&](AttentionInputs& in) {
    in.dropout = 0.5;
    in.seed = TensorView::contiguous(seed, DType::kInt64, {}, {2});
  });
  refused("attention: q and k have products beyond", [](AttentionInputs& in) { in.scale = 1e3; });
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    ArrayCase with_nan({1, 4, 6, 2, 2, 64});
    with_nan.k[5] = bad;
    EXPECT_EQ(message_of(array, with_nan.arguments()),
              "attention: k has elements that are NaN or infinite, expected finite ones (they"
              " become int8)");
  }
}

TEST(FpgaAttention, a_head_dim_that_is_not_built) {
  fpga::Array array("r4c8d32n256");
  ArrayCase c({1, 4, 6, 2, 2, 33});
  EXPECT_EQ(message_of(array, c.arguments()),
            "attention: q has a head dim of 33, expected at most 32 (the array r4c8d32n256)");
}

TEST(FpgaAttention, there_is_no_backward_pass) {
  fpga::Array array("r4c8d32n256");
  ArrayCase c({1, 4, 4, 2, 2, 32});
  const AttentionForward a = c.arguments();
  ArrayCase gradients({1, 4, 4, 2, 2, 32});
  const AttentionForward d = gradients.arguments();
  AttentionBackward b{.inputs = a.inputs,
                      .out = a.out,
                      .lse = a.lse,
                      .dout = a.inputs.q,
                      .dq = d.inputs.q,
                      .dk = d.inputs.k,
                      .dv = d.inputs.v};
  try {
    attention_backward({.array = &array}, b);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "attention: array is given, expected none (this pass has no kernel"
                 " for an FPGA)");
  }
}

// ---- the plan -----------------------------------------------------------------------------------

fpga::AttentionGroup group(std::int64_t heads, std::int64_t queries, std::int64_t keys,
                           std::int64_t offset) {
  return {.heads = heads,
          .queries = queries,
          .keys = keys,
          .dim = 16,
          .value_dim = 16,
          .scale = 1,
          .offset = offset,
          .q = {},
          .k = {},
          .v = {}};
}

TEST(FpgaPlan, heads_that_share_keys_share_commands) {
  using Blocks = std::vector<fpga::QueryBlock>;
  EXPECT_EQ(fpga::query_blocks(group(4, 10, 100, 100), 0, 100, 32),
            (Blocks{{0, 32, false, 0}, {32, 8, false, 0}}));
  EXPECT_EQ(fpga::query_blocks(group(2, 10, 10, 0), 0, 10, 32),
            (Blocks{{0, 10, true, 0}, {10, 10, true, 0}}));
}

// Queries that see none of the part's keys take no part.
TEST(FpgaPlan, parts_begin_with_the_first_query_that_sees_them) {
  using Blocks = std::vector<fpga::QueryBlock>;
  EXPECT_EQ(fpga::query_blocks(group(1, 10, 10, 0), 4, 8, 32), (Blocks{{4, 6, true, 0}}));
  EXPECT_EQ(fpga::query_blocks(group(1, 10, 10, 0), 4, 8, 4),
            (Blocks{{4, 4, true, 0}, {8, 2, true, 4}}));
  EXPECT_EQ(fpga::query_blocks(group(1, 4, 10, 0), 5, 8, 32), Blocks{});
  EXPECT_EQ(fpga::query_blocks(group(1, 4, 10, 7), 0, 8, 32), (Blocks{{0, 4, false, 0}}));
}

TEST(FpgaPlan, the_largest_mantissa_is_taken) {
  for (double factor : {1e-9, 3e-6, 1e-4, 0.02, 65535.0 / (1 << 20)}) {
    const fpga::ScoreScale scale = fpga::score_scale(factor);
    const double unit = std::ldexp(1.0, 20 + 4 * scale.shift);
    EXPECT_NEAR(scale.mantissa / unit, factor, 0.5 / unit);
    if (scale.shift < 3) {
      EXPECT_GT(factor * unit * 16, 65535);
    }
  }
}

TEST(FpgaPlan, counters_say_what_was_spent) {
  fpga::Array array("r2c4d64n256");
  ArrayCase c({1, 8, 100, 4, 2, 64});
  attention_forward({.array = &array}, c.arguments());
  const fpga::Counters counters = array.counters();
  EXPECT_EQ(counters.commands, 2U);  // one for each head of k
  EXPECT_EQ(counters.useful, 4U * 8 * 100 * 64);
  EXPECT_EQ(counters.possible, counters.cycles * 8);
  EXPECT_EQ(counters.bytes_in, 2U * (2 * 100 + 16) * 64);
  array.reset_counters();
  EXPECT_EQ(array.counters().cycles, 0U);
}

}  // namespace
}  // namespace transformer_kernels::testing
