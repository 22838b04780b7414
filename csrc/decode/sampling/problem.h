// SPDX-License-Identifier: MIT
// The room of the choice of tokens. This header has its checked arguments, as plain rows.
#pragma once

#include <string>

#include "core/rows.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/decode/sample_logits.h"
#include "transformer_kernels/decode/speculative_accept.h"

namespace transformer_kernels {

inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 20;  // of a vocabulary

struct SampleProblem {
  DType dtype;
  std::int64_t batch;
  std::int64_t vocabulary;
  Rows logits;
  const SamplingParameters* parameters;
  std::int64_t parameters_stride;  // 0 or 1
  const std::int64_t* seed;
  const std::int64_t* position;
  const std::int64_t* previous;  // (batch, previous_count); null: none
  std::int64_t previous_count;
  const std::int64_t* prompt_lengths;  // null: 0
  Rows bias;                           // of float; a stride of 0 shares the row
  Rows allowed;                        // as bias
  bool allowed_bits;
  std::int64_t* tokens;
  float* log_probs;  // null: not wanted, as below
  std::int64_t top;
  std::int64_t* top_tokens;
  float* top_log_probs;
  float* probabilities;

  constexpr const SamplingParameters& of(std::int64_t row) const {
    return parameters[row * parameters_stride];
  }
  constexpr bool has_penalties(const SamplingParameters& by) const {
    return previous != nullptr &&
           (by.repetition_penalty != 1 || by.presence_penalty != 0 || by.frequency_penalty != 0);
  }
  // The token is drawn from other numbers than the model's.
  constexpr bool is_changed(const SamplingParameters& by) const {
    return bias.data != nullptr || allowed.data != nullptr || has_penalties(by);
  }
  constexpr bool describes_model() const { return log_probs != nullptr || top > 0; }
};

struct AcceptProblem {
  DType dtype;
  std::int64_t batch;
  std::int64_t drafted;
  std::int64_t vocabulary;
  bool logits;
  const std::int64_t* draft_tokens;
  Rows draft;  // null: a draft without chance
  Rows target;
  const std::int64_t* lengths;  // null: all are drafted
  const std::int64_t* seed;
  const std::int64_t* position;
  std::int64_t* accepted;
  std::int64_t* token;

  // The number of rows of targets and drafts.
  std::int64_t rows() const {
    return batch * (drafted + 1 + (draft.data == nullptr ? 0 : drafted));
  }
};

std::string describe(const SampleProblem& problem);
std::string describe(const AcceptProblem& problem);

namespace cpu {
void check_parameters(const Context& context, const SampleProblem& problem);
void check_lengths(const Context& context, const AcceptProblem& problem);
void sample_logits(const Context& context, const SampleProblem& problem);
void speculative_accept(const Context& context, const AcceptProblem& problem);
}  // namespace cpu

namespace cuda {
void sample_logits(const Context& context, const SampleProblem& problem);
void speculative_accept(const Context& context, const AcceptProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
