// SPDX-License-Identifier: MIT
// How long a command takes, from the same rules by which the sequencer runs: simulations assert it.
#include "fpga/array.h"

namespace transformer_kernels::fpga {
namespace {

// Registers between events, as the modules of fpga/rtl have them.
constexpr std::int64_t kStart = 3;       // a command's first cycle to its first beat
constexpr std::int64_t kGap = 4;         // a tile's last key to its normalisation, less a key
constexpr std::int64_t kDivision = 44;   // a normalisation to the first word of its drain
constexpr std::int64_t kScoreTail = 16;  // the last key to its last score on the way out

// Each tile: keys, a key's time for the normalisation. The drain overlaps the next tile.
std::int64_t attention(const ParameterSet& set, const Command& command) {
  const std::int64_t chunks = set.chunks(), load_queries = set.rows * chunks;
  const std::int64_t words = set.head_dim + (command.statistics ? statistics_words(set) : 0);
  const std::int64_t drain = kDivision + set.rows * words / set.output_lanes;
  std::int64_t now = kStart + 2 * chunks * command.keys * std::int64_t{command.load};
  std::int64_t queries_ready = now + load_queries, drained = 0;
  for (std::int64_t tile = 0; tile < tiles(set, command); ++tile) {
    const std::int64_t start = std::max(now, queries_ready);
    queries_ready = start + load_queries;
    now = std::max(start + (visible_keys(set, command, tile) + 1) * chunks + kGap, drained);
    drained = now + drain;
  }
  return drained;
}

std::int64_t matmul(const ParameterSet& set, const Command& command) {
  const std::int64_t chunks = set.chunks(), load_queries = set.rows * chunks;
  std::int64_t now = kStart + chunks * command.keys * std::int64_t{command.load} + load_queries;
  for (std::int64_t tile = 0; tile < tiles(set, command); ++tile)
    now += std::max((command.keys + 1) * chunks + kGap, load_queries);
  return now + kScoreTail;
}

// Two passes a tile, between them the division.
std::int64_t softmax(const ParameterSet& set, const Command& command) {
  const std::int64_t pass = (command.keys + 1) * set.chunks() + kGap;
  return kStart + tiles(set, command) * (2 * pass + kDivision) + kScoreTail;
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
