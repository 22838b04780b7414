// SPDX-License-Identifier: MIT
// The model against formulas in double, within the budget that docs/fpga/numbers.md derives.
#include "fpga/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace transformer_kernels::fpga {
namespace {

using Bytes = std::vector<std::uint8_t>;

// Scores become logits of about `spread` binary orders.
Command command_of(Operation operation, int queries, int keys, double spread, int dim) {
  Command command;
  command.operation = operation;
  command.load = operation != Operation::kSoftmax;
  command.queries = queries;
  command.keys = keys;
  const double score = operation == Operation::kSoftmax ? 32767 : 60.0 * 60 * std::sqrt(dim);
  const double unit = spread / score * (1 << 20);  // log2 of a score of 1, in 10 + 10 bits
  command.shift = 3;
  while (command.shift > 0 && std::ldexp(unit, 4 * command.shift) > 65535) --command.shift;
  command.mantissa = static_cast<std::uint16_t>(std::lrint(std::ldexp(unit, 4 * command.shift)));
  return command;
}

// A score times the mantissa, without rounding.
double scaled(const Command& command, double score) {
  return std::ldexp(score * command.mantissa, -20 - 4 * command.shift);
}

Bytes random_bytes(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  Bytes bytes(count);
  for (auto& byte : bytes)
    byte = static_cast<std::uint8_t>(static_cast<int>(generator() % 255) - 127);
  return bytes;
}

std::int16_t word_of(const Bytes& bytes, std::int64_t word) {
  return static_cast<std::int16_t>(bytes[2 * word] | bytes[2 * word + 1] << 8);
}

double dot(const std::int8_t* a, const std::int8_t* b, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += double{1} * a[i] * b[i];
  return sum;
}

std::int64_t seen_by(const Command& command, std::int64_t query) {
  return command.causal ? std::clamp<std::int64_t>(query + command.offset + 1, 0, command.keys)
                        : command.keys;
}

// 2^x normalised.
std::vector<double> softmax_of(const std::vector<double>& x) {
  std::vector<double> result(x.size());
  double sum = 0;
  const double top = x.empty() ? 0 : *std::max_element(x.begin(), x.end());
  for (std::size_t i = 0; i < x.size(); ++i) sum += result[i] = std::exp2(x[i] - top);
  for (double& value : result) value /= sum;
  return result;
}

class EverySet : public ::testing::TestWithParam<ParameterSet> {};
INSTANTIATE_TEST_SUITE_P(Fpga, EverySet, ::testing::ValuesIn(kParameterSets),
                         [](const auto& set) { return name_of(set.param); });

struct Worst {
  double most = 0;
  void add(double got, double expected) { most = std::max(most, std::abs(got - expected)); }
};

double attention_error(const ParameterSet& set, const Command& command) {
  const int dim = set.head_dim;
  const Bytes in = random_bytes(input_bytes(set, command), command.keys + 7);
  Bytes out(output_bytes(set, command));
  Model(set).run(command, in, out);
  const auto* k = reinterpret_cast<const std::int8_t*>(in.data());
  const std::int8_t *v = k + command.keys * dim, *q = v + command.keys * dim;
  Worst error;
  for (int i = 0; i < command.queries; ++i) {
    std::vector<double> logits(seen_by(command, i));
    for (std::size_t j = 0; j < logits.size(); ++j)
      logits[j] = scaled(command, dot(q + i * dim, k + j * dim, dim));
    const std::vector<double> weights = softmax_of(logits);
    for (int d = 0; d < dim; ++d) {
      double expected = 0;
      for (std::size_t j = 0; j < weights.size(); ++j) expected += weights[j] * v[j * dim + d];
      error.add(word_of(out, std::int64_t{i} * dim + d) / 256.0, expected);
    }
  }
  return error.most;
}

// The budget is in units of the last bit of an int8 V.
constexpr double kAttentionBudget = 0.25;

TEST_P(EverySet, attention_is_the_formula) {
  const ParameterSet set = GetParam();
  for (const double spread : {0.5, 4.0, 20.0})
    for (const int keys : {1, 2, 37, set.keys}) {
      Command command = command_of(Operation::kAttention, 8 * set.rows, keys, spread, set.head_dim);
      EXPECT_LE(attention_error(set, command), kAttentionBudget) << keys << " " << spread;
      command.causal = true;
      command.offset = keys / 2 - 5;
      EXPECT_LE(attention_error(set, command), kAttentionBudget) << keys << " " << spread;
    }
}

TEST_P(EverySet, statistics_are_maximum_and_sum) {
  const ParameterSet set = GetParam();
  Command command = command_of(Operation::kAttention, 4 * set.rows, 50, 4, set.head_dim);
  command.statistics = true;
  const Bytes in = random_bytes(input_bytes(set, command), 3);
  Bytes out(output_bytes(set, command));
  Model(set).run(command, in, out);
  const int dim = set.head_dim;
  const auto* k = reinterpret_cast<const std::int8_t*>(in.data());
  const std::int8_t* q = k + 2 * command.keys * dim;
  for (int i = 0; i < command.queries; ++i) {
    double sum = 0;
    for (int j = 0; j < command.keys; ++j)
      sum += std::exp2(scaled(command, dot(q + i * dim, k + j * dim, dim)));
    const std::int64_t at = i * (dim + statistics_words(set)) + dim;
    const auto low = static_cast<std::uint16_t>(word_of(out, at + 1));
    const double l = low + 65536.0 * word_of(out, at + 2);
    EXPECT_NEAR(std::ldexp(l, word_of(out, at) - 16) / sum, 1, 1e-3);
  }
}

TEST_P(EverySet, a_query_that_sees_nothing_is_zero) {
  const ParameterSet set = GetParam();
  Command command = command_of(Operation::kAttention, set.rows, 9, 4, set.head_dim);
  command.causal = command.statistics = true;
  command.offset = -set.rows;
  Bytes out(output_bytes(set, command), 0xff);
  Model(set).run(command, random_bytes(input_bytes(set, command), 5), out);
  const std::int64_t stride = set.head_dim + statistics_words(set);
  for (std::int64_t word = 0; word < stride * set.rows; ++word)
    EXPECT_EQ(word_of(out, word), word % stride == set.head_dim ? -128 : 0);
}

TEST_P(EverySet, buffers_are_kept_and_equal_keys_give_the_mean) {
  const ParameterSet set = GetParam();
  Model model(set);
  Command command = command_of(Operation::kAttention, set.rows, 2, 4, set.head_dim);
  Bytes in(input_bytes(set, command), 0);
  for (int d = 0; d < set.head_dim; ++d) {
    in[2 * set.head_dim + d] = 100;
    in[3 * set.head_dim + d] = static_cast<std::uint8_t>(-50);
  }
  Bytes out(output_bytes(set, command));
  model.run(command, in, out);
  EXPECT_NEAR(word_of(out, 0), 25 * 256, 1);
  command.load = false;
  Bytes again(out.size());
  model.run(command, Bytes(input_bytes(set, command), 0), again);
  EXPECT_EQ(again, out);
}

TEST_P(EverySet, matmul_is_exact) {
  const ParameterSet set = GetParam();
  if (!set.matmul) GTEST_SKIP() << name_of(set) << " is built without it";
  const Command command = command_of(Operation::kMatmul, 3 * set.rows, 33, 1, set.head_dim);
  const Bytes in = random_bytes(input_bytes(set, command), 11);
  Bytes out(output_bytes(set, command));
  Model(set).run(command, in, out);
  const int dim = set.head_dim, tile_bytes = static_cast<int>(out.size()) / 3;
  const auto* w = reinterpret_cast<const std::int8_t*>(in.data());
  const std::int8_t* x = w + command.keys * dim;
  for (int i = 0; i < command.queries; ++i)
    for (int j = 0; j < command.keys; ++j) {
      const int word = i / set.rows * (tile_bytes / 2) + 2 * (j * set.rows + i % set.rows);
      const int got =
          static_cast<std::uint16_t>(word_of(out, word)) + 65536 * word_of(out, word + 1);
      EXPECT_EQ(got, dot(x + i * dim, w + j * dim, dim));
    }
}

TEST_P(EverySet, softmax_is_the_formula) {
  const ParameterSet set = GetParam();
  if (!set.softmax) GTEST_SKIP() << name_of(set) << " is built without it";
  for (const int keys : {1, 5, 300, kMostSoftmaxKeys}) {
    const Command command = command_of(Operation::kSoftmax, 2 * set.rows, keys, 12, 0);
    Bytes in = random_bytes(input_bytes(set, command), keys);
    const std::int64_t pass = static_cast<std::int64_t>(in.size()) / 4;
    for (int tile = 0; tile < 2; ++tile)
      std::copy_n(in.begin() + 2 * tile * pass, pass, in.begin() + (2 * tile + 1) * pass);
    Bytes out(output_bytes(set, command));
    Model(set).run(command, in, out);
    for (int i = 0; i < command.queries; ++i) {
      const int tile = i / set.rows, row = i % set.rows;
      std::vector<double> logits(keys);
      for (int j = 0; j < keys; ++j)
        logits[j] = scaled(command, word_of(in, tile * pass + j * set.rows + row));
      const std::vector<double> expected = softmax_of(logits);
      for (int j = 0; j < keys; ++j) {
        const std::int64_t word =
            tile * static_cast<std::int64_t>(out.size()) / 4 + j * set.rows + row;
        const auto got = static_cast<std::uint16_t>(word_of(out, word));
        EXPECT_NEAR(got, expected[j] * 65536, 1.5 + expected[j] * 65536 * 2e-3);
      }
    }
  }
}

// With the keys in the buffers; the simulation holds the RTL to the same number of cycles.
TEST_P(EverySet, multipliers_are_busy_at_256_keys) {
  const ParameterSet set = GetParam();
  const int keys = std::min(set.keys, 256);
  Command command = command_of(Operation::kAttention, 32 * set.rows, keys, 1, set.head_dim);
  command.load = false;
  const double busy = 32.0 * keys * set.chunks();
  EXPECT_GE(busy / static_cast<double>(cycles(set, command)), 0.85);
}

TEST(Fpga, commands_survive_their_encoding) {
  Command command = command_of(Operation::kSoftmax, 40000, 8191, 3, 0);
  command.causal = command.statistics = true;
  command.offset = -70000;
  const Command again = decode(encode(command));
  EXPECT_EQ(encode(again), encode(command));
  EXPECT_EQ(again.queries, 40000);
  EXPECT_EQ(again.offset, -70000);
  EXPECT_EQ(again.operation, Operation::kSoftmax);
}

TEST(Fpga, what_the_array_cannot_do_is_refused_with_a_reason) {
  const ParameterSet set = kParameterSets[0];
  Command command = command_of(Operation::kAttention, 1, 129, 1, 16);
  EXPECT_EQ(refusal(set, command), "keys is 129, expected 1 to 128");
  command.keys = 128;
  EXPECT_EQ(refusal(set, command), "");
  command.operation = Operation::kMatmul;
  EXPECT_EQ(refusal(set, command), "r1c2d16n128 is built without the operation");
  EXPECT_THROW(Model(set).run(command, {}, {}), Error);
}

}  // namespace
}  // namespace transformer_kernels::fpga
