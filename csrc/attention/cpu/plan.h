// SPDX-License-Identifier: MIT
// The division of attention into work items on the CPU, and the places of its copies of k and v. It
// depends on the problem alone, never on the number of threads, and so do the results.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/cpu/kernels.h"

namespace transformer_kernels::cpu {

// A block of rows of one head of one sequence.
struct RowBlock {
  std::int64_t batch;
  std::int64_t head;
  std::int64_t block;
};

// Numbers the blocks of all heads of all sequences.
class BlockList {
 public:
  // `count(b)` is the number of blocks in a head of sequence b.
  template <class Count>
  BlockList(std::int64_t batch, std::int64_t heads, Count&& count)
      : heads_(heads),
        first_(batch + 1) {
    for (std::int64_t b = 0; b < batch; ++b) first_[b + 1] = first_[b] + heads * count(b);
  }

  std::int64_t size() const { return first_.back(); }

  // The number of a head's first block.
  std::int64_t first(std::int64_t b, std::int64_t head) const {
    return first_[b] + head * ((first_[b + 1] - first_[b]) / heads_);
  }

  RowBlock operator[](std::int64_t index) const {
    const auto after = std::upper_bound(first_.begin(), first_.end(), index);
    const std::int64_t b = after - first_.begin() - 1;
    const std::int64_t per_head = (first_[b + 1] - first_[b]) / heads_;
    const std::int64_t rest = index - first_[b];
    return {b, rest / per_head, rest % per_head};
  }

 private:
  std::int64_t heads_;
  std::vector<std::int64_t> first_;
};

inline BlockList query_blocks(const AttentionProblem& p, std::int64_t size) {
  return {p.batch, p.heads, [&](std::int64_t b) { return divide_up(p.sequence(b).queries, size); }};
}

// Packed copies of k and v consist of blocks of kKeyStep keys.
inline BlockList key_steps(const AttentionProblem& p) {
  return {p.batch, p.kv_heads,
          [&](std::int64_t b) { return divide_up(p.sequence(b).keys, kKeyStep); }};
}

// Blocks 0, 1, 2, ... of a head in the order first, last, second, last but one, ...: under a causal
// mask every two neighbours have the same work, and so has every run of items.
constexpr std::int64_t from_both_ends(std::int64_t place, std::int64_t count) {
  return place % 2 == 0 ? place / 2 : count - 1 - place / 2;
}

// A work item of the backward pass owns the gradients of k and v of its keys, and its split's sums
// of the gradient of q, which are added up at the end. Items that would add to the same
// elements of the bias' gradient are one item.
struct BackwardPlan {
  std::int64_t batches_per_item;
  std::int64_t kv_heads_per_item;
  std::int64_t splits;  // split s of a head has the key blocks s, s + splits, ...
  std::int64_t items;
};

inline BackwardPlan backward_plan(const AttentionBackwardProblem& p) {
  // Enough for the threads of one machine; each split costs a copy of q in accumulation precision.
  constexpr std::int64_t kWantedItems = 16;
  constexpr std::int64_t kOne = 1;
  const bool with_bias = p.dbias.defined();
  BackwardPlan plan{};
  plan.batches_per_item = with_bias && p.dbias.batch_stride == 0 ? std::max(p.batch, kOne) : 1;
  plan.kv_heads_per_item = with_bias && p.dbias.head_stride == 0 ? std::max(p.kv_heads, kOne) : 1;
  const std::int64_t items =
      p.batch / plan.batches_per_item * (p.kv_heads / plan.kv_heads_per_item);
  const std::int64_t most = with_bias && p.dbias.col_stride == 0 ? 1 : divide_up(p.keys, kKeyBlock);
  plan.splits =
      std::clamp(divide_up(kWantedItems, std::max(items, kOne)), kOne, std::max(most, kOne));
  plan.items = items * plan.splits;
  return plan;
}

}  // namespace transformer_kernels::cpu
