// SPDX-License-Identifier: MIT
#include "decode/step/session.h"

#include <algorithm>

#include "core/check.h"

namespace transformer_kernels {

using decode::kOp;

namespace decode {

Workshop::Workshop(std::shared_ptr<const StepPlan> of) : plan(std::move(of)) {
  check_value(plan != nullptr && plan->state().finished, kOp,
              ": the plan is not finished, expected one that is");
  const StepPlan::State& p = plan->state();
  const StepModel& m = p.model;
  wide = rounded_up(m.hidden, kTileRows);
  std::int64_t widest = wide;
  for (const Share& share : p.shares) {
    widest = std::max({widest, share.heads.count() * m.head_dim, share.units.count()});
  }
  // Zeros stand on both sides of what is not whole blocks.
  stride = rounded_up(widest, kLargestGroup) + kLargestGroup;

  const auto floats = [&](std::int64_t count) {
    return reinterpret_cast<float*>(memory.allocate(count * sizeof(float)));
  };
  const std::int64_t groups = stride / kSubBlock;
  for (std::int64_t i = 0; i < m.parts; ++i) {
    MemberMemory own{};
    own.x = floats(kMostRows * wide);
    own.y = floats(kMostRows * stride);
    own.a = {own.y,
             stride,
             memory.allocate(kMostRows * stride * 2),
             floats(kMostRows * groups),
             reinterpret_cast<std::int32_t*>(floats(kMostRows * groups)),
             groups};
    members.push_back(own);
  }
  for (const Share& share : p.shares) {
    const auto rows_of = [&](std::int64_t count) {
      return floats(kMostRows * rounded_up(count, kTileRows));
    };
    const std::int64_t heads = share.heads.count();
    PartMemory own{};
    own.q = rows_of(heads * m.head_dim);
    own.k = rows_of(share.kv_heads.count() * m.head_dim);
    own.v = rows_of(share.kv_heads.count() * m.head_dim);
    own.attended = floats(kMostRows * heads * padded_dim(m.head_dim));
    own.states = reinterpret_cast<SoftmaxState*>(floats(kMostRows * heads * 2));
    own.gate = rows_of(share.units.count());
    own.up = rows_of(share.units.count());
    for (float*& partial : own.partial) partial = floats(kMostRows * wide);
    own.logits = floats(kMostOutputs * rounded_up(share.tokens.count(), kTileRows));
    own.best = reinterpret_cast<Best*>(memory.allocate(kMostRows * sizeof(Best)));
    parts.push_back(own);
    first_head.push_back(heads_of_layer);
    heads_of_layer += share.kv_heads.count();
  }
}

std::int64_t Workshop::block_size() const {
  const StepPlan::State& p = plan->state();
  const auto layers = static_cast<std::int64_t>(p.layers.size());
  return layers * heads_of_layer * block_numbers(p.model.head_dim);
}

Hold::Hold(Workshop& of, const char* what) : of_(of) {
  check_value(!of.busy.test_and_set(std::memory_order_acquire), kOp, ": ", what,
              " in use, expected one call at a time");
}

}  // namespace decode

// ---- sessions -----------------------------------------------------------------------------------

void StepSession::State::reserve(std::int64_t count) {
  const auto wanted = static_cast<std::size_t>(divide_up(count, decode::kBlockPositions));
  while (blocks.size() < wanted) {
    blocks.push_back(reinterpret_cast<Half*>(cache_memory.allocate(block_size() * sizeof(Half))));
  }
}

StepSession::StepSession(std::shared_ptr<const StepPlan> plan, std::int64_t positions)
    : state_(std::make_unique<State>(std::move(plan))) {
  const std::int64_t most = state_->plan->state().positions;
  check_value(positions >= 1 && positions <= most, kOp, ": positions is ", positions,
              ", expected 1 to ", most, " (the rows of cosines)");
  state_->positions = positions;
}

StepSession::~StepSession() = default;

std::int64_t StepSession::length() const { return state_->length; }

std::int64_t StepSession::vocabulary() const { return state_->plan->state().model.vocabulary; }

void StepSession::truncate(std::int64_t length) {
  const decode::Hold hold(*state_, decode::kSessionIs);
  check_value(length >= 0 && length <= state_->length, kOp, ": length is ", length,
              ", expected 0 to ", state_->length);
  state_->length = length;
}

// ---- pages --------------------------------------------------------------------------------------

Half* StepPages::State::block(std::int64_t page) {
  Half*& found = blocks[page];
  if (found == nullptr) {
    found = reinterpret_cast<Half*>(cache_memory.allocate(block_size() * sizeof(Half)));
  }
  return found;
}

StepPages::StepPages(std::shared_ptr<const StepPlan> plan, std::int64_t pages)
    : state_(std::make_unique<State>(std::move(plan))) {
  check_value(pages >= 1, kOp, ": pages is ", pages, ", expected at least 1");
  state_->blocks.resize(pages);
}

StepPages::~StepPages() = default;

std::int64_t StepPages::vocabulary() const { return state_->plan->state().model.vocabulary; }

void StepPages::copy(std::int64_t from, std::int64_t to) {
  const auto count = static_cast<std::int64_t>(state_->blocks.size());
  for (const std::int64_t page : {from, to}) {
    check_value(page >= 0 && page < count, kOp, ": page is ", page, ", expected 0 to ", count - 1);
  }
  const decode::Hold hold(*state_, decode::kPagesAre);
  std::copy_n(state_->block(from), state_->block_size(), state_->block(to));
}

}  // namespace transformer_kernels
