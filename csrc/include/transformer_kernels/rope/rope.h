// SPDX-License-Identifier: MIT
// Rotary position embedding (Su et al. 2021, arXiv:2104.09864) of q, and of k in the same pass.
//
//   y[a] = x[a] cos[p, f] - x[b] sin[p, f]
//   y[b] = x[b] cos[p, f] + x[a] sin[p, f]      for each f < R / 2, in each head of a token
//
// p is the token's position. (a, b) is (f, f + R / 2), the halves of a rotated row as in GPT-NeoX
// and Llama, or with `interleaved` (2 f, 2 f + 1), neighbours as in GPT-J. Numbers beyond the first
// R of a row pass through. The backward pass rotates by the opposite angle; the tables have no
// gradient.
//
// Positions, of token t of sequence b:
//   t + offset + offsets[b]      by default; with cu_seqlens, t counts from the sequence's first
//   position_ids[b, t]           where these are given
//   position_ids[axis, b, t]     where they have three axes: (time, height, width), as in Qwen2-VL.
//                                The axis of f is 0 for the first section_time of frequencies, 1
//                                for the section_height after them, and 2 for the rest
// A position that the tables do not have: on the CPU an error; on a CUDA device one where the host
// knows it, and NaN in the rotated part of the token's rows where position_ids, offsets or
// cu_seqlens on the device say so.
//
// Shapes: q and its results are (B, T, H, D), k and its results (B, T, Hk, D), or (T, H, D) and
// (T, Hk, D), a batch of one; the last stride is 1, others are free. cos and sin are (P, R / 2), R
// <= D, with a last stride of 1. position_ids is (B, T) or (3, B, T), without B where q has none,
// of any strides. offsets is (B,), contiguous. cu_seqlens is (sequences + 1,) and contiguous,
// beside q of three dimensions: the first number is 0, and none is below the one before it.
// Sequence b holds the rows from cu_seqlens[b] up to cu_seqlens[b + 1]; offsets then has a number
// for each sequence, and rows after the last sequence pass through. Dtypes: q, k and results are
// all float64, float32, float16 or bfloat16; cos and sin both of q's dtype or both float32;
// position_ids and offsets are int32 or int64, cu_seqlens is int32. Arithmetic is in float32
// (float64 for float64). Aliasing: a result may be exactly its input's memory, which rotates in
// place; apart from that, results overlap neither inputs nor each other.
#pragma once

#include <cstdint>

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

// The angle by which each token is rotated.
struct RopeAngles {
  TensorView cos{};
  TensorView sin{};
  TensorView position_ids{};  // optional, like all below
  TensorView offsets{};       // neither with position_ids, nor are `offset` and cu_seqlens
  TensorView cu_seqlens{};
  std::int64_t offset = 0;
  std::int64_t section_time = 0;    // of position_ids with three axes
  std::int64_t section_height = 0;  // the same
  bool interleaved = false;
};

struct RopeForward {
  TensorView q;
  TensorView k{};  // optional
  RopeAngles angles;
  TensorView q_rotated;
  TensorView k_rotated{};  // with k
};

struct RopeBackward {
  TensorView dq_rotated;
  TensorView dk_rotated{};  // optional
  RopeAngles angles;
  TensorView dq;
  TensorView dk{};  // with dk_rotated
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void rope_forward(const Context& context, const RopeForward& arguments);
TFK_API void rope_backward(const Context& context, const RopeBackward& arguments);

}  // namespace transformer_kernels
