// SPDX-License-Identifier: MIT
// The array as the host sees it: the builds that exist, the fields of a command, and the contents
// of its streams. docs/fpga/architecture.md draws the array, docs/fpga/numbers.md justifies the
// formats.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <iterator>
#include <string>

#include "core/check.h"

namespace transformer_kernels::fpga {

// The parameters of one build of fpga/rtl/attention_array.sv.
struct ParameterSet {
  int rows;          // R: queries of a tile, one row of the array each
  int lanes;         // C: elements of the head dimension at a time, bytes of an input beat
  int head_dim;      // D
  int keys;          // that the K and V buffers hold
  int output_lanes;  // 16-bit words of an output beat
  bool matmul;
  bool softmax;

  // A key takes this many cycles.
  constexpr int chunks() const { return head_dim / lanes; }
  constexpr int output_beat_bytes() const { return 2 * output_lanes; }
};

// fpga/sets.toml names the same sets for the tools.
inline constexpr ParameterSet kParameterSets[] = {
    {1, 2, 16, 128, 1, false, false}, {2, 4, 64, 256, 4, true, true},
    {4, 8, 32, 256, 4, true, true},   {4, 16, 64, 1024, 4, true, true},
    {8, 8, 64, 1024, 4, true, true},  {4, 16, 128, 1024, 4, true, true},
};

// The conditions that fpga/rtl relies on; docs/fpga/architecture.md gives the reasons.
constexpr bool can_be_built(const ParameterSet& set) {
  const auto power_of_two = [](int value) { return std::has_single_bit(unsigned(value)); };
  const bool scores = set.matmul || set.softmax;
  return power_of_two(set.rows) && power_of_two(set.lanes) && power_of_two(set.head_dim) &&
         power_of_two(set.keys) && set.lanes >= 2 && set.chunks() >= 4 && set.chunks() <= 16 &&
         set.lanes % set.output_lanes == 0 &&
         (!scores || (set.rows <= set.chunks() && set.output_lanes >= 2));
}
static_assert(std::all_of(std::begin(kParameterSets), std::end(kParameterSets), can_be_built));

// "r4c16d64n1024"
inline std::string name_of(const ParameterSet& set) {
  return concat("r", set.rows, "c", set.lanes, "d", set.head_dim, "n", set.keys);
}

enum class Operation : std::uint8_t { kAttention = 0, kMatmul = 1, kSoftmax = 2 };

inline constexpr int kCommandBytes = 16;
inline constexpr int kMostSoftmaxKeys = 8191;
inline constexpr int kOffsetLimit = 1 << 17;

// One command; the buffers keep what it loads for the commands after it.
//
// Input, in beats of `lanes` bytes:
//   attention   with `load` keys x D of K, keys x D of V; then queries x D of Q
//   matmul      with `load` keys x D of W; then queries x D of X
//   softmax     for each tile of `rows` queries, twice: for each key, for each row of the tile, an
//               int16 score; each of the two passes is padded to a whole beat
// Output, in beats of `output_lanes` little-endian 16-bit words:
//   attention   for each query D words, Q8.8 in units of V's scale; with `statistics` then the
//   words
//               m (signed), l's low half, l's high half and zeros, max(4, output_lanes) in all
//   matmul      for each tile, for each key, for each row of the tile: int32, low half first; each
//               tile is padded with zeros to a whole beat
//   softmax     for each tile, for each key, for each row of the tile: 0.16, 1 being 65535; padded
//   alike
struct Command {
  Operation operation = Operation::kAttention;
  bool load = true;
  bool causal = false;      // query i sees keys j <= i + offset alone (attention, softmax)
  bool statistics = false;  // attention
  int shift = 0;            // 0..3; log2 scores are (score * mantissa) >> (10 + 4 shift), Q7.10
  int queries = 0;          // a multiple of `rows`
  int keys = 0;
  std::int32_t offset = 0;  // within +- kOffsetLimit
  std::uint16_t mantissa = 0;
};

using CommandBytes = std::array<std::uint8_t, kCommandBytes>;

constexpr CommandBytes encode(const Command& command) {
  CommandBytes bytes{};
  bytes[0] =
      static_cast<std::uint8_t>(static_cast<int>(command.operation) | command.load << 2 |
                                command.causal << 3 | command.statistics << 4 | command.shift << 5);
  const auto put = [&](int at, std::uint32_t value, int count) {
    for (int i = 0; i < count; ++i) bytes[at + i] = static_cast<std::uint8_t>(value >> (8 * i));
  };
  put(2, static_cast<std::uint32_t>(command.queries), 2);
  put(4, static_cast<std::uint32_t>(command.keys), 2);
  put(6, static_cast<std::uint32_t>(command.offset), 4);
  put(10, command.mantissa, 2);
  return bytes;
}

constexpr Command decode(const CommandBytes& bytes) {
  const auto get = [&](int at, int count) {
    std::uint32_t value = 0;
    for (int i = 0; i < count; ++i) value |= std::uint32_t{bytes[at + i]} << (8 * i);
    return value;
  };
  return {static_cast<Operation>(bytes[0] & 3),
          (bytes[0] >> 2 & 1) != 0,
          (bytes[0] >> 3 & 1) != 0,
          (bytes[0] >> 4 & 1) != 0,
          bytes[0] >> 5 & 3,
          static_cast<int>(get(2, 2)),
          static_cast<int>(get(4, 2)),
          static_cast<std::int32_t>(get(6, 4)),
          static_cast<std::uint16_t>(get(10, 2))};
}

// Why the array cannot carry a command out; empty when it can.
inline std::string refusal(const ParameterSet& set, const Command& command) {
  const Operation operation = command.operation;
  const bool softmax = operation == Operation::kSoftmax;
  const bool matmul = operation == Operation::kMatmul;
  const int most_keys = softmax ? kMostSoftmaxKeys : set.keys;
  if (static_cast<int>(operation) > 2) return "operation is unknown";
  if ((softmax && !set.softmax) || (matmul && !set.matmul))
    return concat(name_of(set), " is built without the operation");
  if (command.queries < 1 || command.queries > 0xffff || command.queries % set.rows != 0)
    return concat("queries is ", command.queries, ", expected a multiple of ", set.rows,
                  " between 1 and 65535");
  if (command.keys < 1 || command.keys > most_keys)
    return concat("keys is ", command.keys, ", expected 1 to ", most_keys);
  if (command.shift < 0 || command.shift > 3)
    return concat("shift is ", command.shift, ", expected 0 to 3");
  if (command.offset < -kOffsetLimit || command.offset >= kOffsetLimit)
    return concat("offset is ", command.offset, ", expected -", kOffsetLimit, " to ",
                  kOffsetLimit - 1);
  if (softmax && command.load) return "softmax loads no buffer";
  if (matmul && command.causal) return "matmul has no mask";
  if (operation != Operation::kAttention && command.statistics)
    return "statistics are attention's alone";
  return {};
}

namespace detail {

constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace detail

constexpr std::int64_t tiles(const ParameterSet& set, const Command& command) {
  return command.queries / set.rows;
}

constexpr std::int64_t input_bytes(const ParameterSet& set, const Command& command) {
  const std::int64_t rows = command.queries + std::int64_t{command.load} * command.keys;
  switch (command.operation) {
    case Operation::kAttention:
      return (rows + std::int64_t{command.load} * command.keys) * set.head_dim;
    case Operation::kMatmul: return rows * set.head_dim;
    case Operation::kSoftmax:
      return tiles(set, command) * 2 *
             detail::round_up(std::int64_t{2} * set.rows * command.keys, set.lanes);
  }
  return 0;
}

constexpr int statistics_words(const ParameterSet& set) { return std::max(4, set.output_lanes); }

constexpr std::int64_t output_bytes(const ParameterSet& set, const Command& command) {
  const std::int64_t scores = std::int64_t{set.rows} * command.keys;
  const int beat = set.output_beat_bytes();
  switch (command.operation) {
    case Operation::kAttention:
      return std::int64_t{2} * command.queries *
             (set.head_dim + (command.statistics ? statistics_words(set) : 0));
    case Operation::kMatmul: return tiles(set, command) * detail::round_up(4 * scores, beat);
    case Operation::kSoftmax: return tiles(set, command) * detail::round_up(2 * scores, beat);
  }
  return 0;
}

// Keys that a tile's last query sees: those that the tile is charged for. A tile that sees none
// runs one, hidden.
constexpr int visible_keys(const ParameterSet& set, const Command& command, std::int64_t tile) {
  if (command.operation != Operation::kAttention || !command.causal) return command.keys;
  const std::int64_t seen = (tile + 1) * set.rows + command.offset;
  return static_cast<int>(std::clamp<std::int64_t>(seen, 1, command.keys));
}

// Cycles from the command to its last output beat, with streams that never stall.
std::uint64_t cycles(const ParameterSet& set, const Command& command);

}  // namespace transformer_kernels::fpga
