// SPDX-License-Identifier: MIT
// CPU: attention in tiles that stay in a core's caches. This file declares the exports of the
// sources that are compiled once per instruction set.
//
// plan.h cuts a problem into work items, from its sizes alone; engine.cpp deals them out to
// threads. In the forward pass an item owns a block of queries of one head and goes through the
// keys that they see; in the backward pass it owns blocks of keys of one head of k and v, and goes
// through the queries that see them, of all heads of the group. Its dk and dv are final; dq is a
// sum over the splits of the keys.
//
//   time ->    one item
//   forward    pack k, v | q k^T, softmax, out += p v | next tile of keys: ... | out / sum, lse
//   backward   pack k, v | p, dp, ds, then dv, dk, dq += | next queries: ... | dk, dv
//              before it delta of every query; behind it dq, from the splits
//
// bfloat16/ has both passes by products of pairs of bfloat16, for instruction sets that have them.
#pragma once

#include "attention/problem.h"
#include "core/cpu/isa.h"
#include "core/rounding.h"

namespace transformer_kernels::cpu {

// A tile of scores of the backward pass is kQueryBlock x kKeyBlock numbers. Queries are a multiple
// of the register tile's rows (6), keys of kKeyStep. The tiles, their operands and the gradients
// stay in the second-level cache.
inline constexpr std::int64_t kQueryBlock = 48;
inline constexpr std::int64_t kKeyBlock = 192;
// Tiles begin at multiples of this: the widest panel, and a multiple of what Philox gives at once.
inline constexpr std::int64_t kKeyStep = 64;

// Columns of a row in scratch memory: whole vectors, and rows that start at a cache line.
constexpr std::int64_t padded_dim(std::int64_t dim) { return rounded_up(dim, 16); }
// The row pitch where a product reads the same few columns of many rows: an odd number of cache
// lines, so that these columns lie in different sets of a cache.
constexpr std::int64_t spread_dim(std::int64_t dim) {
  return padded_dim(dim) / 16 % 2 == 0 ? padded_dim(dim) + 16 : padded_dim(dim);
}

// A copy of rows of k or v, in blocks of kKeyStep keys, in accumulation precision or, of bfloat16,
// in pairs (bfloat16/rows.h). `columns` holds panels of keys: a number of each key, for all
// dimensions in turn, as the product with rows of q wants it. `rows` holds rows, spread_dim()
// numbers apart. What lies past the last key is 0.
struct PackedRows {
  void* columns = nullptr;
  void* rows = nullptr;
};

// A sequence's keys, in columns, and values, in rows, of one head.
struct PackedHead {
  void* keys;
  void* values;
};

struct ForwardItem {
  std::int64_t batch;
  std::int64_t head;
  Range queries;
  PackedHead packed;
};

// Some key blocks of one head of k and v, for all queries that see them. `dq` has rows of
// padded_dim() for the queries of all heads that share these keys, a head p.queries rows after the
// one before, to be added to.
struct BackwardItem {
  std::int64_t batch;
  std::int64_t kv_head;
  std::int64_t first_key_block;
  std::int64_t key_block_step;
  const void* delta;  // beside lse
  void* dq;
};

// Queries of one head: the work item of the passes before and after the backward items.
struct QueryItem {
  std::int64_t batch;
  std::int64_t head;
  Range queries;
};

// Packs `keys` rows from `source` on, and zeros up to a whole block; either target may be null.
using PackRows = void (*)(const void* source, DType dtype, std::int64_t row_stride,
                          std::int64_t keys, std::int64_t dim, PackedRows target);

// Packs these keys of a head, and their values.
[[gnu::always_inline]] inline void pack_keys(const AttentionProblem& p, std::int64_t batch,
                                             std::int64_t kv_head, Range keys, PackRows pack,
                                             PackedRows k, PackedRows v) {
  const std::int64_t row = p.sequence(batch).k_begin + keys.begin;
  pack(p.k.address(p.dtype, batch, row, kv_head), p.dtype, p.k.row_stride, keys.size(), p.dim, k);
  pack(p.v.address(p.dtype, batch, row, kv_head), p.dtype, p.v.row_stride, keys.size(), p.value_dim,
       v);
}

// The kernels of one engine, and its properties that the host needs.
struct AttentionKernels {
  BlockSizes forward_block;
  BlockSizes backward_block;
  std::int64_t copy_bytes;   // of a number in the copies of k and v
  std::int64_t column_step;  // columns have as many numbers as dimensions, rounded up to this
  std::size_t (*forward_scratch)(const AttentionProblem& problem);  // bytes
  std::size_t (*backward_scratch)(const AttentionProblem& problem);
  PackRows pack;
  void (*forward)(const AttentionForwardProblem& problem, const ForwardItem& item, void* scratch);
  void (*backward)(const AttentionBackwardProblem& problem, const BackwardItem& item,
                   void* scratch);
  // sum(out * dout) - dlse, which stands beside lse.
  void (*delta)(const AttentionBackwardProblem& problem, const QueryItem& item, void* delta,
                void* scratch);
  // dq, the scaled sum of those of `count` splits: those of the item's queries begin at `splits`,
  // `split_step` numbers apart.
  void (*add_splits)(const AttentionBackwardProblem& problem, const QueryItem& item,
                     const void* splits, std::int64_t count, std::int64_t split_step,
                     void* scratch);
};

// One engine computes in float and one in double; where the instruction set multiplies pairs of
// bfloat16, one does so, if that is fast.
struct AttentionKernelTable {
  AttentionKernels in_float;
  AttentionKernels in_double;
  AttentionKernels of_pairs;

  const AttentionKernels& of(DType dtype) const {
    if (dtype == DType::kFloat64) return in_double;
    return dtype == DType::kBFloat16 && multiplies_pairs_fast() ? of_pairs : in_float;
  }
};

TFK_DECLARE_PER_ISA(extern const AttentionKernelTable attention_kernels)

}  // namespace transformer_kernels::cpu
