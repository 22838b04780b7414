// SPDX-License-Identifier: MIT
// The number of cycles that a command takes, by the rules of the sequencer. Simulations assert it.
#include "fpga/array.h"

namespace transformer_kernels::fpga {
namespace {

// Registers between events, as the modules of fpga/rtl have them.
constexpr std::int64_t kStart = 5;    // the command to its first slot, or its first operand
constexpr std::int64_t kLoading = 2;  // a tile's start to the next tile's queries, but for them
constexpr std::int64_t kGap = 5;      // a tile's last key to the next tile, less a key's time
constexpr std::int64_t kDrain = 42;   // a normalisation to the end of its drain, but for its beats
constexpr std::int64_t kNextDrain = 4;   // from there to the next normalisation, at the earliest
constexpr std::int64_t kDivision = 25;   // SOFTMAX: a normalisation to the second pass
constexpr std::int64_t kScoreTail = 9;   // the last key to its score in the last beat, but for rows
constexpr std::int64_t kShareTail = 31;  // the same of SOFTMAX

// Each tile: keys, a key's time for the normalisation. The drain overlaps the next tile.
std::int64_t attention(const ParameterSet& set, const Command& command) {
  const std::int64_t chunks = set.chunks(), load_queries = kLoading + set.rows * chunks;
  const std::int64_t words = set.head_dim + (command.statistics ? statistics_words(set) : 0);
  const std::int64_t drain = kDrain + set.rows * words / set.output_lanes;
  std::int64_t now = kStart + 2 * chunks * command.keys * std::int64_t{command.load};
  std::int64_t queries_ready = now + load_queries, drained = 0;
  for (std::int64_t tile = 0; tile < tiles(set, command); ++tile) {
    const std::int64_t start = std::max(now, queries_ready);
    queries_ready = start + load_queries;
    now = std::max(start + (visible_keys(set, command, tile) + 1) * chunks + kGap,
                   drained + kNextDrain);
    drained = now + drain;
  }
  return drained;
}

std::int64_t matmul(const ParameterSet& set, const Command& command) {
  const std::int64_t chunks = set.chunks(), load_queries = kLoading + set.rows * chunks;
  const std::int64_t tile = std::max(command.keys * chunks + 1, load_queries);
  return kStart + chunks * command.keys * std::int64_t{command.load} + load_queries +
         (tiles(set, command) - 1) * tile + command.keys * chunks + kScoreTail + set.rows;
}

// Two passes a tile, between them the division.
std::int64_t softmax(const ParameterSet& set, const Command& command) {
  const std::int64_t passes = (2 * command.keys + 1) * set.chunks() + kGap + kDivision + 1;
  return kStart + tiles(set, command) * passes + kShareTail + set.rows;
}

}  // namespace

std::uint64_t cycles(const ParameterSet& set, const Command& command) {
  switch (command.operation) {
    case Operation::kAttention: return attention(set, command);
    case Operation::kMatmul: return matmul(set, command);
    case Operation::kSoftmax: return softmax(set, command);
  }
  return 0;
}

}  // namespace transformer_kernels::fpga
