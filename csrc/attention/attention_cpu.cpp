// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "attention/attention_plan.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"

namespace transformer_kernels::cpu {
namespace {

constexpr std::size_t kCacheLine = 64;

// Of accumulation precision.
std::int64_t number_bytes(const AttentionProblem& p) { return p.dtype == DType::kFloat64 ? 8 : 4; }

const AttentionKernels& kernels(DType dtype) {
  constexpr const AttentionKernelTable* kTables[] = TFK_PER_ISA(attention_kernels);
  return kTables[static_cast<int>(isa())]->of(dtype);
}

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

// Memory of the whole call, aligned to a cache line.
class CallScratch {
 public:
  CallScratch(const Context& context, std::size_t bytes)
      : scratch_(context, bytes == 0 ? 0 : bytes + kCacheLine) {}

  void* data() const {
    const auto past = reinterpret_cast<std::uintptr_t>(scratch_.data()) % kCacheLine;
    return static_cast<std::byte*>(scratch_.data()) + (kCacheLine - past) % kCacheLine;
  }

 private:
  Scratch scratch_;
};

// The copies that a pass needs of k and v.
struct WantedCopies {
  bool k_rows;
  bool v_rows;
  bool v_columns;  // those of k are always needed
};

// Copies of k and v of all heads and sequences, each packed once for all queries.
class PackedCopies {
 public:
  PackedCopies(const Context& context, const AttentionProblem& p, WantedCopies wanted)
      : kernels_(kernels(p.dtype)),
        dim_(p.dim),
        value_dim_(p.value_dim),
        steps_(key_steps(p)),
        k_columns_(context, part(true, column_dim(dim_))),
        k_rows_(context, part(wanted.k_rows, padded_dim(dim_))),
        v_columns_(context, part(wanted.v_columns, column_dim(value_dim_))),
        v_rows_(context, part(wanted.v_rows, padded_dim(value_dim_))) {
    const std::int64_t grain = rows_per_range(kKeyStep * (p.dim + p.value_dim));
    parallel_for(context, steps_.size(), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const RowBlock at = steps_[i];
        const Sequence s = p.sequence(at.batch);
        const std::int64_t key = at.block * kKeyStep;
        const std::int64_t count = std::min(kKeyStep, s.keys - key);
        const std::int64_t row = s.k_begin + key;
        const PackedHead target = from_step(i);
        kernels_.pack(p.k.address(p.dtype, at.batch, row, at.head), p.dtype, p.k.row_stride, count,
                      p.dim, target.k);
        kernels_.pack(p.v.address(p.dtype, at.batch, row, at.head), p.dtype, p.v.row_stride, count,
                      p.value_dim, target.v);
      }
    });
  }

  PackedHead head(std::int64_t batch, std::int64_t kv_head) const {
    return from_step(steps_.first(batch, kv_head));
  }

 private:
  std::size_t part(bool wanted, std::int64_t width) const {
    const std::int64_t numbers = wanted ? steps_.size() * kKeyStep * width : 0;
    return static_cast<std::size_t>(numbers * kernels_.copy_bytes);
  }

  std::int64_t column_dim(std::int64_t dim) const { return rounded_up(dim, kernels_.column_step); }

  void* at_step(const CallScratch& part, std::int64_t step, std::int64_t width) const {
    void* const data = part.data();
    return data == nullptr ? nullptr : advance(data, step * kKeyStep * width, kernels_.copy_bytes);
  }

  PackedHead from_step(std::int64_t step) const {
    return {{at_step(k_columns_, step, column_dim(dim_)), at_step(k_rows_, step, padded_dim(dim_))},
            {at_step(v_columns_, step, column_dim(value_dim_)),
             at_step(v_rows_, step, padded_dim(value_dim_))}};
  }

  const AttentionKernels& kernels_;
  std::int64_t dim_;
  std::int64_t value_dim_;
  BlockList steps_;
  CallScratch k_columns_;
  CallScratch k_rows_;
  CallScratch v_columns_;
  CallScratch v_rows_;
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
  const auto bytes = static_cast<std::size_t>(2 * padded_dim(kMostDim) * number_bytes(p));
  const std::int64_t grain = rows_per_range(kQueryBlock * (p.dim + p.value_dim));
  parallel_for(context, list.size(), grain, [&](std::int64_t begin, std::int64_t end) {
    const ThreadScratch scratch(bytes);
    for (std::int64_t i = begin; i < end; ++i) {
      const RowBlock at = list[i];
      body(QueryItem{at.batch, at.head, query_range(p, at, at.block, kQueryBlock)}, scratch.data());
    }
  });
}

// Every item of the plan, for all the heads and sequences that it owns.
void run_backward_item(const AttentionBackwardProblem& p, const BackwardPlan& plan,
                       const PackedCopies& copies, const void* delta, void* dq, std::int64_t index,
                       void* scratch) {
  const std::int64_t share = index % plan.shares;
  const std::int64_t owner = index / plan.shares;
  const std::int64_t owners_per_batch = p.kv_heads / plan.kv_heads_per_item;
  const std::int64_t first_batch = owner / owners_per_batch * plan.batches_per_item;
  const std::int64_t first_head = owner % owners_per_batch * plan.kv_heads_per_item;
  void* const own_dq = advance(dq, share * p.rows() * padded_dim(p.dim), number_bytes(p));
  for (std::int64_t b = first_batch; b < first_batch + plan.batches_per_item; ++b) {
    for (std::int64_t h = first_head; h < first_head + plan.kv_heads_per_item; ++h) {
      kernels(p.dtype).backward(p, {b, h, share, plan.shares, copies.head(b, h), delta, own_dq},
                                scratch);
    }
  }
}

// d lse / d sink is exp(sink - lse); each sum has one owner, so its order is fixed.
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
        sum -= std::exp(sink - lse) * static_cast<const A*>(delta)[row];
      }
    }
    static_cast<A*>(p.dsinks)[head] = static_cast<A>(sum);
  }
}

// Rows past the last sequence belong to nobody: results are 0 there, and -inf in lse.
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
void hide_tail(void* lse, Range rows, std::int64_t heads) {
  for (std::int64_t head = 0; head < heads; ++head) {
    A* const row = static_cast<A*>(lse) + head * rows.end;
    std::fill(row + rows.begin, row + rows.end, -std::numeric_limits<A>::infinity());
  }
}

}  // namespace

void attention_forward(const Context& context, const AttentionForwardProblem& p) {
  log_cpu_kernel("attention", p);
  const PackedCopies copies(context, p, {.k_rows = false, .v_rows = true, .v_columns = false});
  const AttentionKernels& run = kernels(p.dtype);
  const std::int64_t size = run.query_block;
  const BlockList list = query_blocks(p, size);
  const std::size_t bytes = run.forward_scratch(p);
  const std::int64_t grain = rows_per_range(size * p.keys);
  parallel_for(context, list.size(), grain, [&](std::int64_t begin, std::int64_t end) {
    const ThreadScratch scratch(bytes);
    for (std::int64_t i = begin; i < end; ++i) {
      const RowBlock at = list[i];
      const std::int64_t count = divide_up(p.sequence(at.batch).queries, size);
      const Range queries = query_range(p, at, from_both_ends(at.block, count), size);
      const PackedHead packed = copies.head(at.batch, at.head / p.group());
      run.forward(p, {at.batch, at.head, queries, packed}, scratch.data());
    }
  });
  if (p.q_offsets == nullptr) return;
  const Range tail{p.q_offsets[p.batch], p.queries};
  clear_tail(p.out, p.dtype, tail, p.heads, p.value_dim);
  if (p.lse == nullptr) return;
  p.dtype == DType::kFloat64 ? hide_tail<double>(p.lse, tail, p.heads)
                             : hide_tail<float>(p.lse, tail, p.heads);
}

void attention_backward(const Context& context, const AttentionBackwardProblem& p) {
  log_cpu_kernel("attention", p);
  const BackwardPlan plan = backward_plan(p);
  const std::int64_t dq_numbers = p.rows() * padded_dim(p.dim);
  const CallScratch delta(context, static_cast<std::size_t>(p.rows() * number_bytes(p)));
  const CallScratch dq(context,
                       static_cast<std::size_t>(plan.shares * dq_numbers * number_bytes(p)));
  const PackedCopies copies(context, p, {.k_rows = true, .v_rows = false, .v_columns = true});
  const AttentionKernels& run = kernels(p.dtype);
  for_each_query_item(context, p, [&](const QueryItem& item, void* scratch) {
    run.delta(p, item, delta.data(), scratch);
  });
  if (p.dbias.defined()) {
    std::memset(p.dbias.data, 0, static_cast<std::size_t>(p.dbias_count * number_bytes(p)));
  }
  const std::size_t bytes = run.backward_scratch(p);
  parallel_for(context, plan.items, 1, [&](std::int64_t begin, std::int64_t end) {
    const ThreadScratch scratch(bytes);
    for (std::int64_t i = begin; i < end; ++i) {
      run_backward_item(p, plan, copies, delta.data(), dq.data(), i, scratch.data());
    }
  });
  for_each_query_item(context, p, [&](const QueryItem& item, void* scratch) {
    run.add_shares(p, item, dq.data(), plan.shares, dq_numbers, scratch);
  });
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
