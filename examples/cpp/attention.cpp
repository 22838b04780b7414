// SPDX-License-Identifier: MIT
// Grouped-query attention of a decoder: a prompt at once, then token by token with a cache of keys
// and values. Each token has to get what it gets where all tokens are computed at once.
#include <transformer_kernels/attention/attention.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tensors.h"

namespace {

constexpr std::int64_t kTokens = 96, kPrompt = 64;
constexpr std::int64_t kHeads = 8, kKeyHeads = 2, kDim = 64;
constexpr std::int64_t kQueryRow = kHeads * kDim;  // floats of one token

// Queries [first, last) beside all keys up to the last: the mask lines up their ends.
void attend(Floats& q, Floats& k, Floats& v, std::int64_t first, std::int64_t last, float* out) {
  const std::int64_t count = last - first;
  tfk::attention_forward({}, {.inputs = {.q = view(&q[first * kQueryRow], {1, count, kHeads, kDim}),
                                         .k = view(k, {1, last, kKeyHeads, kDim}),
                                         .v = view(v, {1, last, kKeyHeads, kDim}),
                                         .causal = true},
                              .out = view(out, {1, count, kHeads, kDim})});
}

}  // namespace

int main() {
  Floats q = random_values({kTokens, kHeads, kDim}, 1);
  Floats k = random_values({kTokens, kKeyHeads, kDim}, 2);
  Floats v = random_values({kTokens, kKeyHeads, kDim}, 3);
  Floats at_once(q.size()), in_steps(q.size());

  attend(q, k, v, 0, kTokens, at_once.data());
  attend(q, k, v, 0, kPrompt, in_steps.data());
  for (std::int64_t token = kPrompt; token < kTokens; ++token) {
    attend(q, k, v, token, token + 1, &in_steps[token * kQueryRow]);
  }

  float most = 0;
  for (std::size_t i = 0; i < q.size(); ++i) {
    most = std::max(most, std::abs(at_once[i] - in_steps[i]));
  }
  std::printf("attention: %lld tokens of a prompt and %lld steps differ by %.1e from all at once\n",
              static_cast<long long>(kPrompt), static_cast<long long>(kTokens - kPrompt), most);
  return most < 1e-5f ? 0 : 1;
}
