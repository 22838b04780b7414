// SPDX-License-Identifier: MIT
// A member of the gang, and its share of a step.
#pragma once

#include <span>

#include "core/cpu/gang.h"
#include "decode/step/session.h"

namespace transformer_kernels::decode {

// Neighbouring rows of one sequence.
struct Run {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t position;  // of the first
  Half* const* blocks;    // of the sequence, from its first position on
};

// Rows that go through the model together.
struct Rows {
  std::span<const std::int64_t> tokens;
  std::span<const Run> runs;              // all rows in order
  std::span<const std::int64_t> outputs;  // the rows that have results
  float* logits;                          // (outputs, V), or null
  bool exact;                             // activations of weights in blocks have 16 bits

  std::int64_t count() const { return static_cast<std::int64_t>(tokens.size()); }
};

class Member {
 public:
  Member(Workshop& shop, const StepKernels& kernels, const Rows& rows, cpu::Gang& gang, int rank);

  // Leaves the best token of each output and part in the parts' memory.
  void run();

 private:
  void embed();
  void attention(std::size_t layer);
  void mlp(std::size_t layer);
  void logits();

  void project(std::size_t layer, std::size_t part);
  void append(std::size_t layer, std::size_t part, const Run& run, std::int64_t row);
  void finish_heads(const PackedLayer& layer, std::size_t part, std::int64_t row,
                    std::int64_t position);
  void turn(float* heads, std::int64_t count, const std::vector<float>& norm, std::int64_t position,
            float scale) const;
  void attend(std::size_t layer, std::size_t part, const Run& run);
  void attend_block(const PackedLayer& layer, std::size_t part, const Run& run, std::int64_t number,
                    Half* block);
  void gather_heads(std::size_t part, std::int64_t lead, std::int64_t terms);

  void normalize(const std::vector<float>& weight);
  void normalize(const std::vector<float>& weight, std::int64_t row, float* y);
  void multiply(const PackedMatrix& matrix, std::int64_t rows, float* out, std::int64_t stride);
  void add_partials(int which);
  float* y_row(std::int64_t row) const { return own_.y + row * s_.stride; }

  Workshop& s_;
  const StepPlan::State& p_;
  const StepModel& m_;
  const StepKernels& kernels_;
  const Rows& rows_;
  cpu::Gang& gang_;
  const MemberMemory& own_;
  std::size_t begin_;  // parts
  std::size_t end_;
  std::int64_t coded_ = 0;  // the group in which y was rounded; 0 where it was not yet
};

}  // namespace transformer_kernels::decode
