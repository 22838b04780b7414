// SPDX-License-Identifier: MIT
// The choice of a token on the CPU: logits are read once from memory, and stay in the caches for
// what follows.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "decode/sampling/row.h"

namespace transformer_kernels::cpu {
namespace {

constexpr float kInfinity = Weighing::kInfinity;

// Memory of a thread for rows that it may not change in place.
class RowMemory {
 public:
  explicit RowMemory(std::int64_t vocabulary) : vocabulary_(vocabulary) {}

  float* numbers() {
    if (!numbers_) numbers_ = std::make_unique_for_overwrite<float[]>(vocabulary_);
    return numbers_.get();
  }
  std::uint32_t* zeros() {
    if (!zeros_) zeros_ = std::make_unique<std::uint32_t[]>(vocabulary_);
    return zeros_.get();
  }

 private:
  std::int64_t vocabulary_;
  std::unique_ptr<float[]> numbers_;
  std::unique_ptr<std::uint32_t[]> zeros_;
};

class Choice {
 public:
  Choice(const SampleProblem& p, Team team, std::int64_t row, RowMemory& memory)
      : p_(p),
        team_(team),
        row_(row),
        memory_(memory),
        with_(p.of(row)) {}

  void make() {
    if (p_.describes_model()) describe_model();
    Row row(team_, p_.is_changed(with_) ? changed() : unchanged(), p_.vocabulary);
    const bool has_nan = row.look();
    if (p_.probabilities != nullptr) {
      std::fill_n(probabilities(), p_.vocabulary, has_nan ? NAN : 0.0f);
    }
    std::int64_t token = -1;
    if (has_nan) {
      token = row.first_nan();
    } else if (row.top() == -kInfinity) {
      token = -1;
    } else if (with_.temperature < kColdest) {
      token = row.first_largest();
      if (p_.probabilities != nullptr) probabilities()[token] = 1;
    } else {
      token = draw(row);
    }
    p_.tokens[row_] = token;
    if (p_.log_probs != nullptr) p_.log_probs[row_] = token < 0 ? NAN : log_probability(token);
  }

 private:
  // ---- logits

  const void* logits() const {
    return static_cast<const std::byte*>(p_.logits.data) +
           row_ * p_.logits.stride * size_of(p_.dtype);
  }
  // As float, in memory that may be overwritten.
  float* read(const float* bias, const void* allowed) {
    float* const z = memory_.numbers();
    team_.for_blocks(
        (p_.vocabulary + kBlock - 1) / kBlock, [&](std::int64_t begin, std::int64_t end) {
          sampling().read[static_cast<int>(p_.dtype)](logits(), bias, allowed, p_.allowed_bits,
                                                      begin * kBlock,
                                                      std::min(end * kBlock, p_.vocabulary), z);
        });
    return z;
  }
  const float* unchanged() {
    return p_.dtype == DType::kFloat32 ? static_cast<const float*>(logits())
                                       : read(nullptr, nullptr);
  }
  const float* changed() {
    const auto* const bias = static_cast<const float*>(p_.bias.data);
    const auto* const allowed = static_cast<const std::byte*>(p_.allowed.data);
    const std::int64_t unit = p_.allowed_bits ? sizeof(std::int32_t) : sizeof(bool);
    float* const z = read(bias == nullptr ? nullptr : bias + row_ * p_.bias.stride,
                          allowed == nullptr ? nullptr : allowed + row_ * p_.allowed.stride * unit);
    if (p_.has_penalties(with_)) {
      sampling().penalise({.previous = p_.previous + row_ * p_.previous_count,
                           .count = p_.previous_count,
                           .prompt = p_.prompt_lengths == nullptr ? 0 : p_.prompt_lengths[row_],
                           .repetition = with_.repetition_penalty,
                           .presence = with_.presence_penalty,
                           .frequency = with_.frequency_penalty},
                          p_.vocabulary, memory_.zeros(), z);
    }
    return z;
  }

  // ---- the model's own distribution

  void describe_model() {
    Row row(team_, unchanged(), p_.vocabulary);
    has_nan_ = row.look();
    Weighing by = weighing(row.top(), 1);
    if (!has_nan_ && row.top() > -kInfinity) {
      model_top_ = row.top();
      log_of_sum_ = std::log(static_cast<double>(row.sum(by)) / static_cast<double>(kUnit));
    } else {
      has_nan_ = true;
    }
    if (p_.top > 0) write_top(row);
  }
  void write_top(Row& row) {
    std::int64_t* const tokens = p_.top_tokens + row_ * p_.top;
    float* const log_probs = p_.top_log_probs + row_ * p_.top;
    if (has_nan_) {
      std::fill_n(tokens, p_.top, -1);
      std::fill_n(log_probs, p_.top, NAN);
      return;
    }
    row.keep_largest(p_.top, true);
    std::vector<std::int64_t> places(row.count());
    std::iota(places.begin(), places.end(), 0);
    std::ranges::stable_sort(
        places, [&](std::int64_t a, std::int64_t b) { return row.number(a) > row.number(b); });
    for (std::int64_t i = 0; i < p_.top; ++i) {
      tokens[i] = row.token(places[i]);
      log_probs[i] = log_probability_of(row.number(places[i]));
    }
  }
  float log_probability_of(float x) const {
    if (has_nan_) return NAN;
    const double below = x == model_top_ ? 0 : static_cast<double>(x) - model_top_;
    return static_cast<float>(below - log_of_sum_);
  }
  float log_probability(std::int64_t token) {
    float x[1];
    const auto* const own = static_cast<const std::byte*>(logits()) + token * size_of(p_.dtype);
    sampling().read[static_cast<int>(p_.dtype)](own, nullptr, nullptr, false, 0, 1, x);
    return log_probability_of(x[0]);
  }

  // ---- the draw

  std::int64_t draw(Row& row) {
    if (with_.top_k >= 1 && with_.top_k < static_cast<float>(row.count())) {
      row.keep_largest(static_cast<std::int64_t>(with_.top_k), false);
    }
    Weighing by = weighing(row.top(), with_.temperature);
    if (with_.top_p < 1) {
      const std::int64_t mass = mass_of(with_.top_p, row.sum(by));
      row.keep_mass(by, mass);
      by.least = row.least_of(by, mass);
      by.is_limited = true;
    }
    if (with_.min_p > 0) {
      by.fewest = with_.min_p * kUnit;
      by.is_limited = true;
    }
    if (with_.typical_p < 1) {
      const std::int64_t sum = row.sum(by);
      by.mean =
          static_cast<float>(static_cast<double>(row.moment(by)) * 256 / static_cast<double>(sum));
      by.reach = row.reach_of(by, mass_of(with_.typical_p, sum));
      by.is_limited = true;
    }
    const std::int64_t sum = row.sum(by);
    if (p_.probabilities != nullptr) {
      row.for_weights(by, [&](std::int64_t place, std::int64_t w) {
        probabilities()[row.token(place)] =
            static_cast<float>(static_cast<double>(w) / static_cast<double>(sum));
      });
    }
    const double u = uniform(p_.seed[row_], p_.position[row_], 0);
    return row.token(row.find(by, part_of(u, sum)));
  }

  float* probabilities() const { return p_.probabilities + row_ * p_.vocabulary; }

  const SampleProblem& p_;
  Team team_;
  std::int64_t row_;
  RowMemory& memory_;
  const SamplingParameters with_;
  bool has_nan_ = false;
  float model_top_ = 0;
  double log_of_sum_ = 0;
};

void check_between(const char* name, float value, std::int64_t row, float least, float most) {
  check_value(value >= least && value <= most, "sample_logits: ", name, " is ", value, " in row ",
              row, ", expected a number from ", least, " to ", most);
}

}  // namespace

void check_parameters(const Context& context, const SampleProblem& p) {
  if (context.checks_only) return;  // they have no memory then
  constexpr float kMost = std::numeric_limits<float>::max();
  const std::int64_t rows = p.parameters_stride == 0 ? std::min<std::int64_t>(p.batch, 1) : p.batch;
  for (std::int64_t row = 0; row < rows; ++row) {
    const SamplingParameters& of = p.of(row);
    check_between("temperature", of.temperature, row, 0, kMost);
    check_between("top_k", of.top_k, row, 0, kMost);
    check_between("top_p", of.top_p, row, 0, 1);
    check_between("min_p", of.min_p, row, 0, 1);
    check_between("typical_p", of.typical_p, row, 0, 1);
    check_between("repetition_penalty", of.repetition_penalty, row, kColdest, kMost);
    check_between("presence_penalty", of.presence_penalty, row, -kMost, kMost);
    check_between("frequency_penalty", of.frequency_penalty, row, -kMost, kMost);
  }
}

void sample_logits(const Context& context, const SampleProblem& p) {
  log_cpu_kernel("sample_logits", p);
  for_rows(context, p.batch, [&](Team team, std::int64_t begin, std::int64_t end) {
    RowMemory memory(p.vocabulary);
    for (std::int64_t row = begin; row < end; ++row) Choice(p, team, row, memory).make();
  });
  for (std::int64_t row = 0; row < p.batch; ++row) {
    check_value(p.tokens[row] >= 0, "sample_logits: row ", row,
                " has no token that may be drawn, expected a logit above -inf that is allowed");
  }
}

}  // namespace transformer_kernels::cpu
