// SPDX-License-Identifier: MIT
#include "fpga/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "core/check.h"
#include "core/rounding.h"
#include "fpga/array.h"
#include "fpga/quantize.h"

namespace transformer_kernels::fpga {
namespace {

constexpr const char* kOp = "attention";

// Rows of q in one command: its count has 16 bits.
constexpr std::int64_t kMostRows = 32768;

// Logarithms saturate at -128 and just below 127. A maximum of 127 may hide larger scores; beside
// one that is hardly above -128, scores that were cut off would count too much.
constexpr int kSaturatedMaximum = 127;
constexpr int kLowestMaximum = -100;

void check_range(const Array& array, bool fits) {
  check_value(fits, kOp, ": q and k have products beyond 2^", kLowestMaximum, " to 2^",
              kSaturatedMaximum - 1, " as exponentials, expected smaller ones (the array ",
              array.name(), " holds their logarithms in 18 bits)");
}

constexpr double kLargestMantissa = 65535;

// The mantissa that stands for a factor of 1: logarithms have 10 bits of fraction.
double mantissa_unit(int shift) { return std::ldexp(1.0, 20 + 4 * shift); }

// Merges the results of the parts of the keys. It sums each part's output times the sum of its
// exponentials, and divides by the total.
class Merge {
 public:
  Merge(std::int64_t rows, std::int64_t dim)
      : dim_(dim),
        weights_(static_cast<std::size_t>(rows)),
        sums_(rows * dim) {}

  // `weight` is the sum of 2^t of the part.
  void add(std::int64_t row, double weight, const std::int16_t* out) {
    weights_[row] += weight;
    for (std::int64_t d = 0; d < dim_; ++d) sums_[row * dim_ + d] += weight * out[d];
  }

  void finish(double value_scale, std::span<float> out) const {
    for (std::size_t row = 0; row < weights_.size(); ++row) {
      const double factor = weights_[row] > 0 ? value_scale / weights_[row] : 0;
      for (std::int64_t d = 0; d < dim_; ++d) {
        out[row * dim_ + d] = static_cast<float>(sums_[row * dim_ + d] * factor);
      }
    }
  }

  // 0 where no key was seen.
  const std::vector<double>& weights() const { return weights_; }

 private:
  std::int64_t dim_;
  std::vector<double> weights_;
  std::vector<double> sums_;  // (rows, dim), in units of an int8 of V / 256
};

class GroupRun {
 public:
  GroupRun(Array& array, AttentionGroup group, bool with_lse)
      : array_(array),
        set_(array.set()),
        group_(std::move(group)),
        key_means_(array.options().center_keys
                       ? center_columns(group_.k, group_.dim)
                       : std::vector<float>(static_cast<std::size_t>(group_.dim))),
        q_(quantize_rows(group_.q, group_.dim, set_.head_dim)),
        k_(quantize_rows(group_.k, group_.dim, set_.head_dim)),
        v_(quantize_rows(group_.v, group_.value_dim, set_.head_dim)),
        factor_(group_.scale * std::numbers::log2e * q_.scale * k_.scale),
        merge_(q_.rows, group_.value_dim) {
    if (factor_ < 0) {
      for (std::int8_t& value : q_.data) value = static_cast<std::int8_t>(-value);
      factor_ = -factor_;
    }
    const double largest = factor_ * std::sqrt(largest_square(q_) * largest_square(k_));
    check_range(array, factor_ * mantissa_unit(0) <= kLargestMantissa);
    statistics_ = with_lse || group_.keys > set_.keys || largest > -kLowestMaximum;
  }

  void run(const AttentionResults& results) {
    for (std::int64_t begin = 0; begin < group_.keys; begin += set_.keys) {
      run_part(begin, std::min<std::int64_t>(begin + set_.keys, group_.keys));
    }
    for (double weight : merge_.weights()) {
      check_range(array_, weight == 0 || weight >= std::ldexp(1.0, kLowestMaximum));
    }
    constexpr double kOutputUnits = 256;
    merge_.finish(v_.scale / kOutputUnits, results.out);
    for (std::size_t row = 0; row < results.lse.size(); ++row) {
      results.lse[row] = std::log(merge_.weights()[row]) + group_.scale * common_score(row);
    }
  }

 private:
  // The amount that centring the keys has subtracted from all scores of a query, before the scale.
  double common_score(std::size_t row) const {
    double sum = 0;
    for (std::int64_t d = 0; d < group_.dim; ++d) {
      sum += double{group_.q[row * group_.dim + d]} * key_means_[d];
    }
    return sum;
  }

  void run_part(std::int64_t begin, std::int64_t end) {
    bool load = true;
    for (const QueryBlock& block : query_blocks(group_, begin, end, kMostRows)) {
      run_block(block, begin, end, load);
      load = false;
    }
  }

  void run_block(const QueryBlock& block, std::int64_t begin, std::int64_t end, bool load) {
    const ScoreScale scale = score_scale(factor_);
    Command command{};
    command.operation = Operation::kAttention;
    command.load = load;
    command.causal = block.causal;
    command.statistics = statistics_;
    command.shift = scale.shift;
    command.mantissa = scale.mantissa;
    command.queries = static_cast<int>(rounded_up(block.rows, set_.rows));
    command.keys = static_cast<int>(end - begin);
    command.offset = static_cast<std::int32_t>(block.offset);

    in_.clear();
    if (load) {
      append(k_, begin, end);
      append(v_, begin, end);
    }
    append(q_, block.first, block.first + block.rows);
    in_.resize(input_bytes(set_, command));
    out_.resize(output_bytes(set_, command));
    array_.run(command, in_, out_, useful_products(block, end - begin));
    for (std::int64_t row = 0; row < block.rows; ++row) merge_row(block.first + row, row);
  }

  void append(const Int8Rows& rows, std::int64_t begin, std::int64_t end) {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(rows.data.data());
    in_.insert(in_.end(), bytes + begin * rows.width, bytes + end * rows.width);
  }

  std::uint64_t useful_products(const QueryBlock& block, std::int64_t keys) const {
    std::int64_t pairs = block.rows * keys;
    if (block.causal) {
      pairs = 0;
      for (std::int64_t row = 0; row < block.rows; ++row) {
        pairs += std::clamp<std::int64_t>(row + block.offset + 1, 0, keys);
      }
    }
    return static_cast<std::uint64_t>(pairs * group_.dim);
  }

  int words_of_row() const { return set_.head_dim + (statistics_ ? statistics_words(set_) : 0); }

  void merge_row(std::int64_t row, std::int64_t row_of_block) {
    const auto words = static_cast<std::size_t>(words_of_row());
    const std::uint8_t* const at = out_.data() + static_cast<std::size_t>(row_of_block) * words * 2;
    row_.resize(words);
    std::memcpy(row_.data(), at, words * 2);
    if (!statistics_) return merge_.add(row, 1, row_.data());
    const std::int16_t* const statistics = row_.data() + set_.head_dim;
    const int maximum = statistics[0];
    const std::int64_t sum = static_cast<std::uint16_t>(statistics[1]) |
                             std::int64_t{static_cast<std::uint16_t>(statistics[2])} << 16;
    if (sum == 0) return;
    check_range(array_, maximum < kSaturatedMaximum);
    constexpr int kSumFractionBits = 16;
    merge_.add(row, std::ldexp(static_cast<double>(sum), maximum - kSumFractionBits), row_.data());
  }

  Array& array_;
  const ParameterSet& set_;
  AttentionGroup group_;
  std::vector<float> key_means_;
  Int8Rows q_;
  Int8Rows k_;
  Int8Rows v_;
  double factor_;  // of an integer score, to its logarithm to base 2
  bool statistics_ = false;
  Merge merge_;
  std::vector<std::uint8_t> in_;
  std::vector<std::uint8_t> out_;
  std::vector<std::int16_t> row_;
};

}  // namespace

std::int64_t head_dim_of(const Array& array) { return array.set().head_dim; }

ScoreScale score_scale(double factor) {
  int shift = 3;
  while (shift > 0 && factor * mantissa_unit(shift) > kLargestMantissa) --shift;
  return {static_cast<std::uint16_t>(std::lrint(factor * mantissa_unit(shift))), shift};
}

std::vector<QueryBlock> query_blocks(const AttentionGroup& group, std::int64_t begin,
                                     std::int64_t end, std::int64_t most_rows) {
  std::vector<QueryBlock> blocks;
  const auto cut = [&](std::int64_t first, std::int64_t last, bool causal, std::int64_t offset) {
    for (std::int64_t row = first; row < last; row += most_rows) {
      const std::int64_t seen = causal ? std::min(offset + row - first, end - begin) : 0;
      blocks.push_back({row, std::min(most_rows, last - row), causal, seen});
    }
  };
  if (group.offset + 1 >= end) {
    cut(0, group.heads * group.queries, false, 0);
    return blocks;
  }
  const std::int64_t first = std::clamp<std::int64_t>(begin - group.offset, 0, group.queries);
  for (std::int64_t head = 0; head < group.heads; ++head) {
    const std::int64_t row = head * group.queries;
    cut(row + first, row + group.queries, true, group.offset + first - begin);
  }
  return blocks;
}

void attention(Array& array, AttentionGroup group, const AttentionResults& results) {
  for (const auto& [name, values] :
       {std::pair{"q", &group.q}, std::pair{"k", &group.k}, std::pair{"v", &group.v}}) {
    check_finite(kOp, name, *values);
  }
  const auto held = array.acquire();
  GroupRun(array, std::move(group), !results.lse.empty()).run(results);
}

}  // namespace transformer_kernels::fpga
