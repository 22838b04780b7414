// SPDX-License-Identifier: MIT
#include "fpga/matmul.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/rounding.h"
#include "fpga/array.h"

namespace transformer_kernels::fpga {
namespace {

// Rows of x in one command, so that its results stay within a few megabytes.
constexpr std::int64_t kMostResults = std::int64_t{1} << 20;
constexpr std::int64_t kMostRows = 32768;

struct Span {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t size() const { return end - begin; }
};

class MatmulRun {
 public:
  MatmulRun(Array& array, const Int8Rows& x, const Int8Rows& weight, std::int64_t useful,
            std::span<std::int64_t> sums)
      : array_(array),
        set_(array.set()),
        x_(x),
        weight_(weight),
        useful_(useful),
        sums_(sums) {}

  void run() {
    for (std::int64_t begin = 0; begin < weight_.rows; begin += set_.keys) {
      const Span outputs{begin, std::min<std::int64_t>(begin + set_.keys, weight_.rows)};
      for (std::int64_t k = 0; k < weight_.width; k += set_.head_dim) run_loaded(outputs, k);
    }
  }

 private:
  // All rows of x against one load of the buffer: columns [k, k + D) of some rows of weight.
  void run_loaded(Span outputs, std::int64_t k) {
    const std::int64_t step = std::clamp<std::int64_t>(
        rounded_up(kMostResults / outputs.size(), set_.rows), set_.rows, kMostRows);
    for (std::int64_t row = 0; row < x_.rows; row += step) {
      run_command({row, std::min(row + step, x_.rows)}, outputs, k, row == 0);
    }
  }

  void run_command(Span rows, Span outputs, std::int64_t k, bool load) {
    Command command{};
    command.operation = Operation::kMatmul;
    command.load = load;
    command.queries = static_cast<int>(rounded_up(rows.size(), set_.rows));
    command.keys = static_cast<int>(outputs.size());
    in_.clear();
    if (load) append(weight_, outputs, k);
    append(x_, rows, k);
    in_.resize(input_bytes(set_, command));
    out_.resize(output_bytes(set_, command));
    const std::int64_t useful = std::clamp<std::int64_t>(useful_ - k, 0, set_.head_dim);
    array_.run(command, in_, out_,
               static_cast<std::uint64_t>(rows.size() * outputs.size() * useful));
    add(rows, outputs);
  }

  void append(const Int8Rows& rows, Span range, std::int64_t k) {
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      const auto chunk = rows.row(row).subspan(k, set_.head_dim);
      const auto* const bytes = reinterpret_cast<const std::uint8_t*>(chunk.data());
      in_.insert(in_.end(), bytes, bytes + chunk.size());
    }
  }

  // Adds the results of a command. A tile's results are ordered by output, its rows side by side.
  void add(Span rows, Span outputs) {
    const std::int64_t tile_bytes =
        rounded_up(outputs.size() * set_.rows * 4, set_.output_beat_bytes());
    for (std::int64_t i = 0; i < rows.size(); ++i) {
      const std::uint8_t* const tile = out_.data() + i / set_.rows * tile_bytes;
      std::int64_t* const sums = sums_.data() + (rows.begin + i) * weight_.rows + outputs.begin;
      for (std::int64_t n = 0; n < outputs.size(); ++n) {
        std::int32_t sum = 0;
        std::memcpy(&sum, tile + (n * set_.rows + i % set_.rows) * 4, 4);
        sums[n] += sum;
      }
    }
  }

  Array& array_;
  const ParameterSet& set_;
  const Int8Rows& x_;
  const Int8Rows& weight_;
  std::int64_t useful_;
  std::span<std::int64_t> sums_;
  std::vector<std::uint8_t> in_;
  std::vector<std::uint8_t> out_;
};

}  // namespace

void matmul(Array& array, const Int8Rows& x, const Int8Rows& weight, std::int64_t useful,
            std::span<std::int64_t> sums) {
  std::fill(sums.begin(), sums.end(), 0);
  const auto held = array.acquire();
  MatmulRun(array, x, weight, useful, sums).run();
}

}  // namespace transformer_kernels::fpga
