// SPDX-License-Identifier: MIT
#include "fpga/softmax.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <vector>

#include "core/check.h"
#include "core/rounding.h"
#include "fpga/array.h"

namespace transformer_kernels::fpga {
namespace {

constexpr const char* kOp = "softmax";

// Limits of one command, so that its scores stay within a few megabytes.
constexpr std::int64_t kMostScores = std::int64_t{1} << 20;
constexpr std::int64_t kMostRows = 32768;

constexpr int kFractionBits = 10;
constexpr double kLogUnit = 1 << kFractionBits;
constexpr double kLowestLog = -32768;  // 2^-32, which is 0 in 16 bits

float largest_of(std::span<const float> row) {
  float largest = -std::numeric_limits<float>::infinity();
  for (float value : row) {
    check_value(value < std::numeric_limits<float>::infinity(), kOp,
                ": x has elements that are NaN or +inf, expected finite ones (they become int16)");
    largest = std::max(largest, value);
  }
  return largest;
}

// The logarithm to base 2 of a score below its row's maximum.
std::int16_t log_of(float score, float largest) {
  if (!std::isfinite(largest)) return static_cast<std::int16_t>(kLowestLog);
  const double log = (double{score} - largest) * std::numbers::log2e * kLogUnit;
  return static_cast<std::int16_t>(std::nearbyint(std::max(log, kLowestLog)));
}

// Rows [first, first + rows) of a matrix as tiles of an array: of a tile, key by key, its rows.
class Tiles {
 public:
  Tiles(std::int64_t rows_of_tile, std::int64_t rows, std::int64_t cols, std::int64_t beat)
      : tile_(rows_of_tile),
        tiles_(divide_up(rows, rows_of_tile)),
        bytes_(rounded_up(cols * rows_of_tile * 2, beat)) {}

  std::int64_t count() const { return tiles_; }
  std::int64_t bytes() const { return bytes_; }
  // Within a tile.
  std::int64_t place(std::int64_t row, std::int64_t col) const {
    return (col * tile_ + row % tile_) * 2;
  }

 private:
  std::int64_t tile_;
  std::int64_t tiles_;
  std::int64_t bytes_;
};

class SoftmaxRun {
 public:
  SoftmaxRun(Array& array, std::int64_t cols) : array_(array), set_(array.set()), cols_(cols) {}

  void run(std::span<const float> scores, std::span<float> out) {
    const auto rows = static_cast<std::int64_t>(scores.size()) / cols_;
    const Tiles in_tiles(set_.rows, rows, cols_, set_.lanes);
    const Tiles out_tiles(set_.rows, rows, cols_, set_.output_beat_bytes());
    const std::int64_t pass = in_tiles.bytes();
    in_.assign(in_tiles.count() * pass * 2, 0);
    out_.assign(out_tiles.count() * out_tiles.bytes(), 0);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::span<const float> values = scores.subspan(row * cols_, cols_);
      const float largest = largest_of(values);
      std::uint8_t* const tile = in_.data() + row / set_.rows * pass * 2;
      for (std::int64_t col = 0; col < cols_; ++col) {
        const std::int16_t log = log_of(values[col], largest);
        std::memcpy(tile + in_tiles.place(row, col), &log, 2);
        std::memcpy(tile + pass + in_tiles.place(row, col), &log, 2);
      }
    }
    array_.run(command(in_tiles.count() * set_.rows), in_, out_, 0);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::uint8_t* const tile = out_.data() + row / set_.rows * out_tiles.bytes();
      const bool empty = !std::isfinite(largest_of(scores.subspan(row * cols_, cols_)));
      for (std::int64_t col = 0; col < cols_; ++col) {
        std::uint16_t share = 0;
        std::memcpy(&share, tile + out_tiles.place(row, col), 2);
        out[row * cols_ + col] = empty ? 0 : std::ldexp(static_cast<float>(share), -16);
      }
    }
  }

 private:
  Command command(std::int64_t queries) const {
    Command command{};
    command.operation = Operation::kSoftmax;
    command.load = false;
    command.queries = static_cast<int>(queries);
    command.keys = static_cast<int>(cols_);
    command.shift = 0;
    command.mantissa = 1 << kFractionBits;  // scores are logarithms already
    return command;
  }

  Array& array_;
  const ParameterSet& set_;
  std::int64_t cols_;
  std::vector<std::uint8_t> in_;
  std::vector<std::uint8_t> out_;
};

}  // namespace

void softmax(Array& array, std::span<const float> scores, std::int64_t cols, std::span<float> out) {
  const auto held = array.acquire();
  SoftmaxRun run(array, cols);
  const auto rows = static_cast<std::int64_t>(scores.size()) / cols;
  const std::int64_t step = std::clamp<std::int64_t>(kMostScores / cols, 1, kMostRows);
  for (std::int64_t row = 0; row < rows; row += step) {
    const std::int64_t count = std::min(step, rows - row) * cols;
    run.run(scores.subspan(row * cols, count), out.subspan(row * cols, count));
  }
}

}  // namespace transformer_kernels::fpga
