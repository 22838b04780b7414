// SPDX-License-Identifier: MIT
// Attention of the newest tokens of each sequence to its cache of keys and values: the step of
// decoding, of speculative decoding (several rows), and of a prompt that comes in chunks.
//
//   1. the new k and v are written into the caches, behind the tokens that are there
//   2. out = attention(q, the cache's keys, the cache's values)     as in attention.h
//
// A sequence b holds total = lengths[b] + added tokens after step 1. Query i stands at position
// total - Tq + i, the last query with the last key; new key t at lengths[b] + t. From these follow
// the rotation (rope.h), the causal mask, the window and ALiBi's distances. With cos and sin, q and
// the new k are rotated first; numbers beyond the first R of a row pass through. q and the caches
// of other tokens are not changed, nor are lengths and page_table. A query that sees no key gives 0
// and a log-sum-exp of -inf (that of the sink, where there is one).
//
// Shapes: q is (B, Tq, H, D), k is (B, added, Hk, D), v is (B, added, Hk, Dv), out is (B, Tq, H,
// Dv), lse is (B, H, Tq) and contiguous; H is a multiple of Hk, and query head h reads head h / (H
// / Hk). D and Dv are 1 to 256. The caches are (B, capacity, Hk, D) and (B, capacity, Hk, Dv), or
// with a page_table (pages, page, Hk, D) and (pages, page, Hk, Dv), where page is a multiple of 16.
// The last stride is 1, others are free: heads may come before tokens in memory, and both caches
// may take turns in one tensor. Token j of sequence b lies in row j % page of page page_table[b, j
// / page]; page_table is (B, columns), the last stride 1, and entries that no token needs are not
// read. Without lengths the cache is full. k_scale and v_scale have the shape of their cache
// without its last dimension. cos and sin are (P, R / 2), alibi_slopes is (B, H), broadcast by
// strides of 0, sinks is (H,).
//
// Dtypes: q, k, v and out are all float32, float16 or bfloat16; the caches both are too, or both
// int8 with scales: a number is its integer times the scale of its token and head, and new tokens
// are rounded to the nearest multiple of a 127th of their largest number. lse, scales, sinks and
// alibi_slopes are float32; cos and sin are both of q's dtype or both float32; lengths is int32 or
// int64, page_table int32. Arithmetic is in float32; q is not rounded after its rotation. On CUDA
// tensor cores take 16-bit q: after a rotation it is rounded to its dtype again, and so are the
// exponentials that values are multiplied by. Beside caches of int8 both are float16 at any scale.
//
// On the CPU every length and every table entry that is needed is checked before anything is
// written. On CUDA nothing is checked: new tokens without a place are dropped, and keys without one
// are not seen. Nothing that lies behind a sequence's length is read. Pages may be shared by
// sequences that read them; a page that one sequence writes to belongs to it alone. Results of a
// sequence depend neither on the number of threads nor on other sequences of the batch. Memory
// beyond the arguments does not grow with the length of the caches. out and lse overlap no other
// operand; caches and scales that are written to overlap neither each other nor q, k and v.
#pragma once

#include <cstdint>
#include <optional>

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct AttentionWithKvCache {
  TensorView q;
  TensorView k_cache;             // written to where k is given
  TensorView v_cache;             // likewise
  TensorView k{};                 // optional, like all below: new keys
  TensorView v{};                 // with k
  TensorView lengths{};           // tokens in the cache before k
  TensorView page_table{};        //
  TensorView cos{};               // both or neither
  TensorView sin{};               //
  TensorView k_scale{};           // both with caches of int8; written to where k is given
  TensorView v_scale{};           //
  TensorView alibi_slopes{};      //
  TensorView sinks{};             // a logit of every row that has no value
  bool interleaved = false;       // how cos and sin pair numbers: see rope.h
  std::optional<double> scale{};  // default: 1 / sqrt(D)
  bool causal = false;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  double softcap = 0.0;
  TensorView out;
  TensorView lse{};  // optional
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void attention_with_kv_cache(const Context& context, const AttentionWithKvCache& arguments);

}  // namespace transformer_kernels
