// SPDX-License-Identifier: MIT
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <utility>

#include "attention/cpu/plan.h"
#include "attention/cpu/tiny.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"

namespace transformer_kernels::cpu {
namespace {

// Bytes of a number in accumulation precision.
std::int64_t number_bytes(const AttentionProblem& p) { return p.dtype == DType::kFloat64 ? 8 : 4; }
std::size_t bytes_of(const AttentionProblem& p, std::int64_t numbers) {
  return static_cast<std::size_t>(numbers * number_bytes(p));
}

struct Operand {
  HeadRows rows;
  std::int64_t count;  // of rows, of each batch
  std::int64_t heads;
  std::int64_t dim;
};

bool holds_tiny(const Context& context, const AttentionProblem& p, const Operand& x) {
  constexpr HasTinyNumber kPerIsa[] = TFK_PER_ISA(has_tiny_number);
  const auto is_found = kPerIsa[static_cast<int>(isa())];
  const std::int64_t batches = p.q_offsets ? 1 : p.batch;
  const bool together = x.rows.head_stride == x.dim;
  const std::int64_t pieces = together ? 1 : x.heads;
  const std::int64_t numbers = together ? x.heads * x.dim : x.dim;
  std::atomic<bool> found = false;
  parallel_for(context, batches * x.count, rows_per_range(x.heads * x.dim),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   for (std::int64_t h = 0; h < pieces; ++h) {
                     const void* row = x.rows.address(p.dtype, i / x.count, i % x.count, h);
                     if (is_found(static_cast<const BFloat16*>(row), numbers)) found = true;
                   }
                 }
               });
  return found;
}

// Products of pairs of bfloat16 lose the smallest numbers; where operands hold some, the kernels
// compute in float.
const AttentionKernels& kernels(const Context& context, const AttentionProblem& p,
                                std::initializer_list<Operand> operands) {
  constexpr const AttentionKernelTable* kTables[] = TFK_PER_ISA(attention_kernels);
  const AttentionKernelTable& table = *kTables[static_cast<int>(isa())];
  const AttentionKernels& found = table.of(p.dtype);
  if (&found != &table.of_pairs) return found;
  const bool tiny = std::ranges::any_of(
      operands, [&](const Operand& operand) { return holds_tiny(context, p, operand); });
  return tiny ? table.in_float : found;
}

// Rows that belong to a sequence: of each batch, or of all packed sequences together.
std::int64_t query_rows(const AttentionProblem& p) {
  return p.q_offsets ? p.q_offsets[p.batch] : p.queries;
}
std::int64_t key_rows(const AttentionProblem& p) {
  return p.q_offsets ? p.k_offsets[p.batch] : p.keys;
}

Operand v_of(const AttentionProblem& p) { return {p.v, key_rows(p), p.kv_heads, p.value_dim}; }

void* advance(void* memory, std::int64_t numbers, std::int64_t bytes) {
  return static_cast<std::byte*>(memory) + numbers * bytes;
}

// Memory for one thread of a parallel loop, aligned to a cache line.
class ThreadScratch {
 public:
  explicit ThreadScratch(std::size_t bytes)
      : memory_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kCacheLine}))) {}

  void* data() const { return memory_.get(); }

 private:
  struct Release {
    void operator()(std::byte* memory) const {
      ::operator delete (memory, std::align_val_t{kCacheLine});
    }
  };
  std::unique_ptr<std::byte, Release> memory_;
};

// Makes the forward pass' copies of k and v.
class Packer {
 public:
  Packer(const AttentionProblem& p, const AttentionKernels& kernels)
      : problem_(p),
        kernels_(kernels),
        key_bytes_(rounded_up(p.dim, kernels_.column_step) * kernels_.copy_bytes),
        value_bytes_(spread_dim(p.value_dim) * kernels_.copy_bytes) {}

  std::size_t bytes(std::int64_t keys) const {
    return static_cast<std::size_t>(keys * (key_bytes_ + value_bytes_));
  }

  // The packed head from key `key` of `room` keys on.
  PackedHead at(void* memory, std::int64_t room, std::int64_t key) const {
    return {advance(memory, key, key_bytes_),
            advance(memory, room * key_bytes_ + key * value_bytes_, 1)};
  }

  void pack(std::int64_t batch, std::int64_t kv_head, Range keys, PackedHead target) const {
    pack_keys(problem_, batch, kv_head, keys, kernels_.pack, {target.keys, nullptr},
              {nullptr, target.values});
  }

 private:
  const AttentionProblem& problem_;
  const AttentionKernels& kernels_;
  std::int64_t key_bytes_;
  std::int64_t value_bytes_;
};

// Copies of all heads and sequences, each packed once for all threads.
class SharedCopies {
 public:
  SharedCopies(const Context& context, const AttentionProblem& p, const AttentionKernels& kernels)
      : packer_(p, kernels),
        steps_(key_steps(p)),
        memory_(context, packer_.bytes(room())) {
    const std::int64_t grain = rows_per_range(kKeyStep * (p.dim + p.value_dim));
    parallel_for(context, steps_.size(), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const RowBlock at = steps_[i];
        const std::int64_t key = at.block * kKeyStep;
        const std::int64_t keys = p.sequence(at.batch).keys;
        packer_.pack(at.batch, at.head, {key, std::min(key + kKeyStep, keys)}, from_step(i));
      }
    });
  }

  PackedHead of(std::int64_t batch, std::int64_t kv_head) const {
    return from_step(steps_.first(batch, kv_head));
  }

 private:
  std::int64_t room() const { return steps_.size() * kKeyStep; }

  PackedHead from_step(std::int64_t step) const {
    return packer_.at(memory_.data(), room(), step * kKeyStep);
  }

  Packer packer_;
  BlockList steps_;
  AlignedScratch memory_;
};

// The rows of k of the longest sequence.
std::int64_t most_keys(const AttentionProblem& p) {
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) most = std::max(most, p.sequence(b).keys);
  return most;
}

// Whether one copy of k and v serves all threads: where it would not fit a thread's caches, or
// where so few heads would be packed by many threads each.
bool shares_copies(const AttentionProblem& p, const AttentionKernels& kernels) {
  constexpr std::int64_t kFewHeads = 8;
  constexpr std::size_t kMostOwnBytes = std::size_t{512} * 1024;
  return p.batch * p.kv_heads < kFewHeads || Packer(p, kernels).bytes(most_keys(p)) > kMostOwnBytes;
}

// A thread's own copy of the head that it works on, in its second cache.
class OwnCopy {
 public:
  OwnCopy(const AttentionProblem& p, const AttentionKernels& kernels)
      : problem_(p),
        packer_(p, kernels),
        room_(rounded_up(most_keys(p), kKeyStep)),
        memory_(packer_.bytes(room_)) {}

  PackedHead of(std::int64_t batch, std::int64_t kv_head) {
    const PackedHead head = packer_.at(memory_.data(), room_, 0);
    if (batch != batch_ || kv_head != kv_head_) {
      packer_.pack(batch, kv_head, {0, problem_.sequence(batch).keys}, head);
      batch_ = batch;
      kv_head_ = kv_head;
    }
    return head;
  }

 private:
  const AttentionProblem& problem_;
  Packer packer_;
  std::int64_t room_;
  ThreadScratch memory_;
  std::int64_t batch_ = -1;
  std::int64_t kv_head_ = -1;
};

// Block `block` of `size` queries.
Range query_range(const AttentionProblem& p, const RowBlock& at, std::int64_t block,
                  std::int64_t size) {
  return {block * size, std::min((block + 1) * size, p.sequence(at.batch).queries)};
}

// Calls body(item, scratch) for every block of queries, in parallel.
template <class Body>
void for_each_query_item(const Context& context, const AttentionProblem& p, Body&& body) {
  const BlockList list = query_blocks(p, kQueryBlock);
  const std::size_t bytes = bytes_of(p, 2 * padded_dim(kMostDim));
  const std::int64_t grain = rows_per_range(kQueryBlock * (p.dim + p.value_dim));
  parallel_for(context, list.size(), grain, [&](std::int64_t begin, std::int64_t end) {
    const ThreadScratch scratch(bytes);
    for (std::int64_t i = begin; i < end; ++i) {
      const RowBlock at = list[i];
      body(QueryItem{at.batch, at.head, query_range(p, at, at.block, kQueryBlock)}, scratch.data());
    }
  });
}

std::int64_t dq_numbers(const AttentionProblem& p, std::int64_t rows) {
  return rows * padded_dim(p.dim);
}

// dq of some queries of one head, from the sums of all splits, which lie one after the other.
void finish_dq(const AttentionKernels& kernels, const AttentionBackwardProblem& p,
               const QueryItem& item, const void* first_split, std::int64_t splits, void* scratch) {
  kernels.add_splits(p, item, first_split, splits, dq_numbers(p, p.rows()), scratch);
}

// The arguments that all items of the backward pass share.
struct BackwardPass {
  const AttentionBackwardProblem& problem;
  const AttentionKernels& kernels;
  BackwardPlan plan;
  const void* delta;
  void* splits;  // sums of dq, each beside lse; null where there is but one

  // Numbers of dq of the heads that share a head of k, where there is only one split.
  std::int64_t own_dq_numbers() const {
    return splits == nullptr ? dq_numbers(problem, problem.group() * problem.queries) : 0;
  }

  void* dq_of(std::int64_t split, std::int64_t row) const {
    return advance(splits, dq_numbers(problem, split * problem.rows() + row),
                   number_bytes(problem));
  }
};

// The gradients of those keys of one head that `split` has.
void run_backward_head(const BackwardPass& pass, std::int64_t batch, std::int64_t kv_head,
                       std::int64_t split, void* own_dq, void* scratch) {
  const AttentionBackwardProblem& p = pass.problem;
  const std::int64_t first_head = kv_head * p.group();
  void* const dq = pass.splits == nullptr ? own_dq : pass.dq_of(split, p.row(batch, first_head));
  pass.kernels.backward(p, {batch, kv_head, split, pass.plan.splits, pass.delta, dq}, scratch);
  for (std::int64_t h = 0; pass.splits == nullptr && h < p.group(); ++h) {
    finish_dq(pass.kernels, p, {batch, first_head + h, {0, p.sequence(batch).queries}},
              advance(dq, dq_numbers(p, h * p.queries), number_bytes(p)), 1, scratch);
  }
}

// Item `index` of the plan, for all the heads and sequences that it owns.
void run_backward_item(const BackwardPass& pass, std::int64_t index, void* own_dq, void* scratch) {
  const BackwardPlan& plan = pass.plan;
  const std::int64_t owner = index / plan.splits;
  const std::int64_t owners_per_batch = pass.problem.kv_heads / plan.kv_heads_per_item;
  const std::int64_t first_batch = owner / owners_per_batch * plan.batches_per_item;
  const std::int64_t first_head = owner % owners_per_batch * plan.kv_heads_per_item;
  for (std::int64_t b = first_batch; b < first_batch + plan.batches_per_item; ++b) {
    for (std::int64_t h = first_head; h < first_head + plan.kv_heads_per_item; ++h) {
      run_backward_head(pass, b, h, index % plan.splits, own_dq, scratch);
    }
  }
}

// Every block of queries; a thread takes copies of k and v from what make_copies() returns.
template <class MakeCopies>
void run_forward(const Context& context, const AttentionForwardProblem& p,
                 const AttentionKernels& run, MakeCopies&& make_copies) {
  const std::int64_t size = run.forward_block.queries;
  const BlockList list = query_blocks(p, size);
  const std::int64_t grain = rows_per_range(size * p.keys);
  parallel_for(context, list.size(), grain, [&](std::int64_t begin, std::int64_t end) {
    const ThreadScratch scratch(run.forward_scratch(p));
    auto&& copies = make_copies();
    for (std::int64_t i = begin; i < end; ++i) {
      const RowBlock at = list[i];
      const std::int64_t count = divide_up(p.sequence(at.batch).queries, size);
      const Range queries = query_range(p, at, from_both_ends(at.block, count), size);
      const PackedHead packed = copies.of(at.batch, at.head / p.group());
      run.forward(p, {at.batch, at.head, queries, packed}, scratch.data());
    }
  });
}

// d lse / d sink is exp(sink - lse - lse_rest); each sum has one owner, so its order is fixed.
template <class A>
void sum_sink_gradients(const AttentionBackwardProblem& p, const void* delta) {
  for (std::int64_t head = 0; head < p.heads; ++head) {
    const double sink = p.sinks.at<A>(0, head, 0);
    double sum = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const std::int64_t first = p.row(b, head);
      for (std::int64_t row = first; row < first + p.sequence(b).queries; ++row) {
        const double lse = static_cast<const A*>(p.lse)[row];
        if (sink == -HUGE_VAL) continue;
        const double rest = p.lse_rest == nullptr ? 0 : static_cast<const A*>(p.lse_rest)[row];
        sum -= std::exp((sink - lse) - rest) * static_cast<const A*>(delta)[row];
      }
    }
    static_cast<A*>(p.dsinks)[head] = static_cast<A>(sum);
  }
}

// Rows past the last sequence belong to none: results are 0 there, and -inf in lse.
void clear_tail(const HeadRows& result, DType dtype, Range rows, std::int64_t heads,
                std::int64_t dim) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      std::memset(result.address(dtype, 0, row, head), 0,
                  static_cast<std::size_t>(dim * size_of(dtype)));
    }
  }
}

template <class A>
void fill_tail(void* statistic, Range rows, std::int64_t heads, double value) {
  for (std::int64_t head = 0; head < heads; ++head) {
    A* const row = static_cast<A*>(statistic) + head * rows.end;
    std::fill(row + rows.begin, row + rows.end, static_cast<A>(value));
  }
}

}  // namespace

void attention_forward(const Context& context, const AttentionForwardProblem& p) {
  // Tiny numbers of q and k change no score that counts.
  const AttentionKernels& run = kernels(context, p, {v_of(p)});
  log_cpu_kernel("attention", p, run.forward_block);
  if (shares_copies(p, run)) {
    const SharedCopies copies(context, p, run);
    run_forward(context, p, run, [&]() -> const SharedCopies& { return copies; });
  } else {
    run_forward(context, p, run, [&] { return OwnCopy(p, run); });
  }
  if (p.q_offsets == nullptr) return;
  const Range tail{p.q_offsets[p.batch], p.queries};
  clear_tail(p.out, p.dtype, tail, p.heads, p.value_dim);
  for (const auto& [statistic, value] : {std::pair{p.lse, -HUGE_VAL}, std::pair{p.lse_rest, 0.0}}) {
    if (statistic == nullptr) continue;
    p.dtype == DType::kFloat64 ? fill_tail<double>(statistic, tail, p.heads, value)
                               : fill_tail<float>(statistic, tail, p.heads, value);
  }
}

void attention_backward(const Context& context, const AttentionBackwardProblem& p) {
  const AttentionKernels& run = kernels(context, p,
                                        {{p.q, query_rows(p), p.heads, p.dim},
                                         {p.k, key_rows(p), p.kv_heads, p.dim},
                                         v_of(p),
                                         {p.dout, query_rows(p), p.heads, p.value_dim}});
  log_cpu_kernel("attention", p, run.backward_block);
  const BackwardPlan plan = backward_plan(p);
  const std::int64_t split_numbers = plan.splits == 1 ? 0 : dq_numbers(p, plan.splits * p.rows());
  const AlignedScratch delta(context, bytes_of(p, p.rows()));
  const AlignedScratch splits(context, bytes_of(p, split_numbers));
  const BackwardPass pass{p, run, plan, delta.data(), splits.data()};
  for_each_query_item(context, p, [&](const QueryItem& item, void* scratch) {
    run.delta(p, item, delta.data(), scratch);
  });
  if (p.dbias.defined()) std::memset(p.dbias.data, 0, bytes_of(p, p.dbias_count));
  parallel_for(context, plan.items, 1, [&](std::int64_t begin, std::int64_t end) {
    const ThreadScratch scratch(run.backward_scratch(p));
    const ThreadScratch own_dq(bytes_of(p, pass.own_dq_numbers()));
    for (std::int64_t i = begin; i < end; ++i) {
      run_backward_item(pass, i, own_dq.data(), scratch.data());
    }
  });
  if (plan.splits > 1) {
    for_each_query_item(context, p, [&](const QueryItem& item, void* scratch) {
      const std::int64_t row = p.row(item.batch, item.head) + item.queries.begin;
      finish_dq(run, p, item, pass.dq_of(0, row), plan.splits, scratch);
    });
  }
  if (p.q_offsets != nullptr) {
    const Range keys{p.k_offsets[p.batch], p.keys};
    clear_tail(p.dq, p.dtype, {p.q_offsets[p.batch], p.queries}, p.heads, p.dim);
    clear_tail(p.dk, p.dtype, keys, p.kv_heads, p.dim);
    clear_tail(p.dv, p.dtype, keys, p.kv_heads, p.value_dim);
  }
  if (p.dsinks == nullptr) return;
  p.dtype == DType::kFloat64 ? sum_sink_gradients<double>(p, delta.data())
                             : sum_sink_gradients<float>(p, delta.data());
}

}  // namespace transformer_kernels::cpu
