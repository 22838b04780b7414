// SPDX-License-Identifier: MIT
// Moves the rows of tokens to their experts and back. An assignment is a token with one of its K
// experts; there are N = T K of them, of which token t has t K to t K + K - 1.
//
//   moe_sort        gives each assignment a place. Places of an expert follow one another, in the
//                   order of the assignments: expert e has [offsets[e], offsets[e + 1])
//   moe_permute     y[places[t, k]] = x[t]
//   moe_unpermute   y[t] = sum_k weights[t, k] * x[places[t, k]]
//
// With a capacity, only the first so many assignments of an expert have a place there. The others
// are dropped, and so are those whose index is no expert: their places follow behind all experts,
// and `places` holds ~place instead, a negative number. tokens[place] is the token of an
// assignment, or -1 where that is dropped. A dropped assignment has a row of zeros in y of permute,
// and adds nothing in unpermute; its weight has a gradient of 0.
//
// Shapes: indices, places, weights and dweights are (T, K), offsets (experts + 1) and tokens (N),
// all without gaps; x of permute and y of unpermute are (T, C), the others (N, C), with a last
// stride of 1. K <= 16, 1 to 4096 experts, N < 2^31. Dtypes: indices, offsets, tokens and places
// are int32; rows are float64, float32, float16 or bfloat16, all of one dtype; weights have it or
// are float32, as dweights are. Sums are kept in float32, float64 for float64, in the order of k
// and of columns. Places that are not those of moe_sort are an Error on the CPU, where they lead
// outside; on CUDA such an assignment counts as dropped. Outputs may not overlap inputs.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct MoeSort {
  TensorView indices;
  std::int64_t experts = 1;
  std::int64_t capacity = 0;  // 0: none
  TensorView offsets;
  TensorView tokens;
  TensorView places;
};

struct MoePermuteForward {
  TensorView x;
  TensorView places;
  TensorView y;
};

struct MoePermuteBackward {
  TensorView dy;
  TensorView places;
  TensorView dx;
};

struct MoeUnpermuteForward {
  TensorView x;
  TensorView places;
  TensorView weights{};  // optional: 1
  TensorView y;
};

struct MoeUnpermuteBackward {
  TensorView dy;
  TensorView x{};  // with dweights
  TensorView places;
  TensorView weights{};
  TensorView dx{};        // optional
  TensorView dweights{};  // optional
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void moe_sort(const Context& context, const MoeSort& arguments);
TFK_API void moe_permute_forward(const Context& context, const MoePermuteForward& arguments);
TFK_API void moe_permute_backward(const Context& context, const MoePermuteBackward& arguments);
TFK_API void moe_unpermute_forward(const Context& context, const MoeUnpermuteForward& arguments);
TFK_API void moe_unpermute_backward(const Context& context, const MoeUnpermuteBackward& arguments);

}  // namespace transformer_kernels
