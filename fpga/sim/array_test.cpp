// SPDX-License-Identifier: MIT
// The simulated array against the model: every byte out, and the cycles where no stream stalls. The
// commands are random, plus some for the corner cases. Exits with 1 where the two differ. With
// TFK_FPGA_BYTES the same test goes through byte_top.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "fpga/model.h"
#if TFK_FPGA_BYTES
#include "simulated_board.h"
#else
#include "simulated_array.h"
#endif

namespace transformer_kernels::fpga {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Random = std::mt19937;

#if TFK_FPGA_BYTES
using Simulated = SimulatedBoard;
#else
using Simulated = SimulatedArray;
#endif
constexpr ParameterSet kSet = kSimulatedSet;

int between(Random& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}

// Both sides, and what has been found so far.
class Bench {
 public:
  // Every third command has streams that stall.
  void check(const std::string& name, const Command& command, const Bytes& in) {
    const Stalls stalls{100, 120, static_cast<unsigned>(commands_ + 1)};
    check(name, command, in, commands_ % 3 == 2 ? stalls : Stalls{});
  }

  void check(const std::string& name, const Command& command, const Bytes& in,
             const Stalls& stalls) {
    Bytes expected(output_bytes(kSet, command)), got(expected.size(), 0xa5);
    const std::uint64_t formula = model_.run(command, in, expected);
    ++commands_;
    std::uint64_t busy = 0;
    try {
      busy = array_.run(encode(command), in, got, stalls);
    } catch (const std::exception& error) {
      std::printf("%s: %s\n", name.c_str(), error.what());
      std::exit(1);
    }
    cycles_ += busy;
    report(name, command, expected, got, Simulated::kKeepsTime && stalls.none() && busy != formula,
           busy, formula);
  }

  bool passed() const { return wrong_ == 0; }
  void summary() const {
    std::printf("%s: %d commands, %d wrong, %llu cycles\n", name_of(kSet).c_str(), commands_,
                wrong_, static_cast<unsigned long long>(cycles_));
  }
  const Simulated& array() const { return array_; }

 private:
  void report(const std::string& name, const Command& command, const Bytes& expected,
              const Bytes& got, bool late, std::uint64_t busy, std::uint64_t formula) {
    std::size_t differ = 0, where = 0;
    for (std::size_t i = expected.size(); i-- > 0;)
      if (expected[i] != got[i]) {
        ++differ;
        where = i;
      }
    if (differ == 0 && !late) return;
    ++wrong_;
    std::printf(
        "%s: operation %d, %d queries, %d keys, causal %d, offset %d, mantissa %d, shift %d, "
        "statistics %d, load %d: %zu of %zu bytes differ, the first is %zu; %llu cycles, %llu by "
        "the "
        "formula\n",
        name.c_str(), static_cast<int>(command.operation), command.queries, command.keys,
        command.causal, command.offset, command.mantissa, command.shift, command.statistics,
        command.load, differ, expected.size(), where, static_cast<unsigned long long>(busy),
        static_cast<unsigned long long>(formula));
  }

  Model model_{kSet};
  Simulated array_;
  int commands_ = 0, wrong_ = 0;
  std::uint64_t cycles_ = 0;
};

Bytes bytes_of(const Command& command, const std::function<int()>& byte) {
  Bytes in(input_bytes(kSet, command));
  for (auto& value : in) value = static_cast<std::uint8_t>(byte());
  if (command.operation != Operation::kSoftmax) return in;
  // The second pass of a tile says what the first said.
  const std::size_t pass = in.size() / 2 / tiles(kSet, command);
  for (std::size_t at = 0; at < in.size(); at += 2 * pass)
    std::copy_n(in.begin() + at, pass, in.begin() + at + pass);
  return in;
}

Bytes random_bytes(const Command& command, Random& random) {
  return bytes_of(command, [&] { return between(random, -128, 127); });
}

Command random_command(Operation operation, int most_keys, Random& random) {
  Command command;
  command.operation = operation;
  command.load = operation != Operation::kSoftmax && between(random, 0, 3) != 0;
  command.queries = kSet.rows * between(random, 1, 5);
  command.keys = between(random, 1, most_keys);
  command.causal = operation != Operation::kMatmul && between(random, 0, 1) != 0;
  command.statistics = operation == Operation::kAttention && between(random, 0, 1) != 0;
  command.offset = between(random, -12, 40);
  command.shift = between(random, 0, 3);
  // Shifts and mantissas give logits from hundredths up to saturation.
  const int score_bits = operation == Operation::kSoftmax ? 15 : kSet.head_dim >= 64 ? 16 : 15;
  const int order = 20 + 4 * command.shift - score_bits + between(random, -4, 7);
  const int bits = std::clamp(order, 1, 16);
  command.mantissa = static_cast<std::uint16_t>(between(random, (1 << bits) / 2, (1 << bits) - 1));
  return command;
}

void run_random(Bench& bench, Random& random) {
  const int most = std::min(kSet.keys, 150);
  for (int i = 0; i < 60; ++i) {
    Command command = random_command(Operation::kAttention, most, random);
    if (i == 0) command.load = true, command.keys = most;
    bench.check("random", command, random_bytes(command, random));
  }
  for (int i = 0; i < 12; ++i) {
    if (kSet.matmul) {
      const Command command = random_command(Operation::kMatmul, most, random);
      bench.check("random", command, random_bytes(command, random));
    }
    if (kSet.softmax) {
      const Command command = random_command(Operation::kSoftmax, 2 * most, random);
      bench.check("random", command, random_bytes(command, random));
    }
  }
}

Command plain(Operation operation, int queries, int keys) {
  Command command;
  command.operation = operation;
  command.load = operation != Operation::kSoftmax;
  command.queries = queries;
  command.keys = keys;
  command.shift = 1;
  command.mantissa = 9000;
  return command;
}

void run_corners(Bench& bench, Random& random) {
  const int rows = kSet.rows;
  const auto attention = [&](const char* name, Command command) {
    command.statistics = true;
    bench.check(name, command, random_bytes(command, random));
  };
  for (int queries : {rows, 2 * rows, 3 * rows})
    attention("one key", plain(Operation::kAttention, queries, 1));
  attention("two keys", plain(Operation::kAttention, 5 * rows, 2));
  attention("all keys", plain(Operation::kAttention, 2 * rows, kSet.keys));

  for (int offset : {-kOffsetLimit, -3 * rows, -rows, -1, 0, 1, 7, 30, kOffsetLimit - 1}) {
    Command command = plain(Operation::kAttention, 4 * rows, 20);
    command.causal = true;
    command.offset = offset;
    attention("offset", command);
  }

  Command saturated = plain(Operation::kAttention, 2 * rows, 30);
  saturated.shift = 0;
  saturated.mantissa = 65535;
  attention("saturated", saturated);
  for (const int byte : {-128, 127}) {
    bench.check("largest scores", saturated, bytes_of(saturated, [&] { return byte; }));
    bench.check("largest scores", plain(Operation::kAttention, rows, kSet.keys),
                bytes_of(plain(Operation::kAttention, rows, kSet.keys), [&] { return byte; }));
  }
  // Least scores: keys and queries of opposite sign.
  int at = 0;
  bench.check("least scores", saturated,
              bytes_of(saturated, [&] { return at++ < 30 * kSet.head_dim ? -128 : 127; }));

  // The command has as many tiles as possible, of one key each; through bytes it would take too
  // long.
  if (Simulated::kKeepsTime) {
    const Operation operation = kSet.matmul ? Operation::kMatmul : Operation::kAttention;
    const Command most = plain(operation, 65535 / rows * rows, 1);
    bench.check("most queries", most, random_bytes(most, random));
  }

  Command zero = plain(Operation::kAttention, 2 * rows, 40);
  zero.mantissa = 0;
  attention("equal weights", zero);
}

// Each key raises the maximum of the one before, by steps that shift a little, a lot, or all out.
void run_rising(Bench& bench) {
  for (const std::uint16_t mantissa : {300, 3000, 30000}) {
    Command command = plain(Operation::kAttention, 2 * kSet.rows, 60);
    command.shift = 0;
    command.mantissa = mantissa;
    command.statistics = true;
    int at = 0;
    const auto byte = [&] {
      const int row = at++ / kSet.head_dim;
      if (row < 60) return at % kSet.head_dim == 1 ? 2 * row - 60 : 1;
      if (row < 120) return at % 7 * 20 - 60;
      return at % kSet.head_dim == 1 ? 5 : 0;
    };
    bench.check("rising", command, bytes_of(command, byte));
  }
}

void run_scores(Bench& bench, Random& random) {
  const int rows = kSet.rows;
  const Stalls slow{.output = 253};
  if (kSet.matmul) {
    const Command stopped = plain(Operation::kMatmul, rows, std::min(kSet.keys, 100));
    bench.check("matmul, slow reader", stopped, random_bytes(stopped, random), slow);
    for (const int keys : {1, 2, 3, kSet.keys}) {
      const Command command = plain(Operation::kMatmul, 3 * rows, keys);
      bench.check("matmul", command, random_bytes(command, random));
      bench.check("matmul", command, bytes_of(command, [] { return -128; }));
    }
  }
  if (!kSet.softmax) return;
  for (const int keys : {1, 2, 3, 5, kMostSoftmaxKeys}) {
    const Command command = plain(Operation::kSoftmax, 2 * rows, keys);
    bench.check("softmax", command, random_bytes(command, random));
  }
  Command equal = plain(Operation::kSoftmax, rows, kMostSoftmaxKeys);
  equal.mantissa = 0;
  bench.check("softmax, equal shares", equal, random_bytes(equal, random));
  equal.keys = 1;
  bench.check("softmax, a lone key", equal, random_bytes(equal, random));
  const Command stopped = plain(Operation::kSoftmax, rows, 100);
  bench.check("softmax, slow reader", stopped, random_bytes(stopped, random), slow);
  for (const int offset : {-2 * rows, -1, 3}) {
    Command command = plain(Operation::kSoftmax, 3 * rows, 11);
    command.causal = true;
    command.offset = offset;
    bench.check("softmax, causal", command, random_bytes(command, random));
  }
}

int run_all([[maybe_unused]] const char* coverage) {
  Bench bench;
  Random random(7);
  run_random(bench, random);
  run_corners(bench, random);
  run_rising(bench);
  run_scores(bench, random);
  bench.summary();
#if VM_COVERAGE
  if (coverage != nullptr) bench.array().write_coverage(coverage);
#endif
  return bench.passed() ? 0 : 1;
}

}  // namespace
}  // namespace transformer_kernels::fpga

// In a build with coverage, the first argument names the coverage file.
int main(int count, char** arguments) {
  return transformer_kernels::fpga::run_all(count > 1 ? arguments[1] : nullptr);
}
