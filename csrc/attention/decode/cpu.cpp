// SPDX-License-Identifier: MIT
// Attention over a cache on the CPU. A work item is a chunk of the keys of one head of one
// sequence, for all rows of q that read it; threads take items of equal numbers of keys in all. The
// thread that ends the last chunk of some rows adds up all of them, in their order: who it is does
// not change the bits.
#include <algorithm>
#include <atomic>
#include <vector>

#include "attention/decode/kernels.h"
#include "core/check.h"
#include "core/cpu/parallel.h"

namespace transformer_kernels::cpu {
namespace {

constexpr const char* kOp = "attention_with_kv_cache";

const KvCacheKernels& kernels(const KvCacheProblem& p) {
  constexpr const KvCacheKernelTable* kTables[] = TFK_PER_ISA(kv_cache_kernels);
  return kTables[static_cast<int>(isa())]->of(p.k_cache.dtype);
}

void check_length(const KvCacheProblem& p, std::int64_t b) {
  const std::int64_t length = p.length(b);
  const std::int64_t most = p.capacity() - p.added;
  check_value(most >= 0, kOp, ": k has ", p.added, " new tokens, expected at most ", p.capacity(),
              " (what the cache holds)");
  check_value(length >= 0 && length <= most, kOp, ": lengths[", b, "] is ", length,
              ", expected 0 to ", most, " (what the cache holds besides new tokens)");
  const std::int64_t total = length + p.added;
  check_value(p.frequencies == 0 || total <= p.positions, kOp, ": cos has ", p.positions,
              " positions, expected at least ", total, " (the tokens of sequence ", b, ")");
  check_value(p.frequencies == 0 || total >= p.queries, kOp, ": q has ", p.queries,
              " tokens, expected at most ", total, " with cos (the tokens of sequence ", b, ")");
}

void check_pages(const KvCacheProblem& p, std::int64_t b) {
  const std::int64_t needed = divide_up(p.length(b) + p.added, p.page_size);
  for (std::int64_t i = 0; i < needed; ++i) {
    const std::int64_t page = p.page(b, i);
    check_value(page >= 0 && page < p.pages, kOp, ": page_table[", b, ", ", i, "] is ", page,
                ", expected 0 to ", p.pages - 1, " (the pages of k_cache)");
  }
}

// No two sequences, and no two entries of one, may write to the same page.
void check_written_pages(const KvCacheProblem& p) {
  std::vector<std::pair<std::int64_t, std::int64_t>> written;  // page, sequence
  for (std::int64_t b = 0; b < p.batch && p.added > 0; ++b) {
    const std::int64_t end = divide_up(p.length(b) + p.added, p.page_size);
    for (std::int64_t i = p.length(b) / p.page_size; i < end; ++i) {
      written.emplace_back(p.page(b, i), b);
    }
  }
  std::sort(written.begin(), written.end());
  for (std::size_t i = 1; i < written.size(); ++i) {
    check_value(written[i].first != written[i - 1].first, kOp, ": page_table lets sequences ",
                written[i - 1].second, " and ", written[i].second, " write to page ",
                written[i].first, ", expected pages of their own for new tokens");
  }
}

class Step {
 public:
  Step(const Context& context, const KvCacheProblem& p)
      : context_(context),
        p_(p),
        run_(kernels(p)),
        block_(std::min(p.group_rows(), kCacheRows)),
        blocks_(divide_up(p.group_rows(), block_)),
        sequences_(plan()),
        q_(context, bytes(p.batch * p.heads * p.queries, wide_cols(p.dim))),
        found_(context, bytes(sequences_.back().first_item * block_, step())),
        left_(p.batch * p.kv_heads * blocks_) {
    for (std::int64_t i = 0; i < std::ssize(left_); ++i) {
      left_[i] = static_cast<int>(sequences_[i / (p.kv_heads * blocks_)].chunks.count);
    }
  }

  void run() {
    const std::int64_t rows = p_.batch * p_.heads * p_.queries;
    parallel_for(context_, rows, rows_per_range(p_.dim), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) run_.prepare(p_, row, q());
    });
    const std::int64_t grain = rows_per_range((p_.dim + p_.value_dim) * kCacheBlock);
    parallel_for(context_, sequences_.back().first_unit, grain,
                 [&](std::int64_t begin, std::int64_t end) { run_units(begin, end); });
  }

 private:
  // A unit is a block of keys of one item, or its constant cost. Items of a sequence have the same
  // number of them, and belong to the thread that has their first one.
  struct SequencePlan {
    CacheChunks chunks;
    std::int64_t first_item;
    std::int64_t first_unit;
    std::int64_t units_per_item;
  };

  static std::size_t bytes(std::int64_t rows, std::int64_t step) {
    return static_cast<std::size_t>(rows * step) * sizeof(float);
  }
  std::int64_t step() const { return PartialRows::step_of(p_.value_dim); }
  PreparedRows q() const { return {static_cast<float*>(q_.data()), wide_cols(p_.dim)}; }

  std::vector<SequencePlan> plan() const {
    std::vector<SequencePlan> plans(p_.batch + 1);
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      SequencePlan& own = plans[b];
      own.chunks = p_.chunks(b);
      own.units_per_item = own.chunks.step / kCacheBlock + 1;
      const std::int64_t items = own.chunks.count * p_.kv_heads * blocks_;
      plans[b + 1].first_item = own.first_item + items;
      plans[b + 1].first_unit = own.first_unit + items * own.units_per_item;
    }
    return plans;
  }

  void run_units(std::int64_t begin, std::int64_t end) {
    const auto after = std::upper_bound(
        sequences_.begin(), sequences_.end(), begin,
        [](std::int64_t unit, const SequencePlan& s) { return unit < s.first_unit; });
    for (std::int64_t b = after - sequences_.begin() - 1; b < p_.batch; ++b) {
      const SequencePlan& s = sequences_[b];
      if (s.first_unit >= end) return;
      const std::int64_t items = sequences_[b + 1].first_item - s.first_item;
      const auto item_at = [&](std::int64_t unit) {
        const std::int64_t within = std::max<std::int64_t>(unit - s.first_unit, 0);
        return std::min(divide_up(within, s.units_per_item), items);
      };
      for (std::int64_t i = item_at(begin); i < item_at(end); ++i) run_item(b, i);
    }
  }

  // Items of one chunk follow each other: its heads may lie beside each other in memory, and its
  // rows of q read the same keys.
  void run_item(std::int64_t b, std::int64_t index) {
    const SequencePlan& s = sequences_[b];
    const std::int64_t chunk = index / (p_.kv_heads * blocks_);
    const std::int64_t owner = index % (p_.kv_heads * blocks_);
    const std::int64_t first = owner % blocks_ * block_;
    const CacheItem item{b, owner / blocks_,
                         Range{first, std::min(first + block_, p_.group_rows())}, s.chunks[chunk]};
    const PartialRows all{static_cast<float*>(found_.data()), step()};
    const std::int64_t of_owner = s.first_item + owner * s.chunks.count;
    const PartialRows found = all.from(of_owner * block_);
    run_.attend(p_, item, q(), found.from(chunk * item.rows.size()));
    std::atomic_ref<int> left(left_[b * p_.kv_heads * blocks_ + owner]);
    if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      run_.finish(p_, item, found, s.chunks.count);
    }
  }

  const Context& context_;
  const KvCacheProblem& p_;
  const KvCacheKernels& run_;
  std::int64_t block_;   // rows of q in an item
  std::int64_t blocks_;  // of the rows of a group
  std::vector<SequencePlan> sequences_;
  AlignedScratch q_;
  AlignedScratch found_;
  std::vector<int> left_;  // chunks of each block of rows that are not done
};

}  // namespace

void check_cache(const Context&, const KvCacheProblem& p) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    check_length(p, b);
    if (p.table != nullptr) check_pages(p, b);
  }
  if (p.table != nullptr) check_written_pages(p);
}

void attention_with_kv_cache(const Context& context, const KvCacheProblem& p) {
  log_cpu_kernel(kOp, p);
  const KvCacheKernels& run = kernels(p);
  parallel_for(context, p.batch * p.added * p.kv_heads, rows_per_range(p.dim + p.value_dim),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) run.append(p, row);
               });
  if (p.batch * p.heads * p.queries > 0) Step(context, p).run();
}

}  // namespace transformer_kernels::cpu
