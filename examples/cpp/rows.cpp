// SPDX-License-Identifier: MIT
// The library without PyTorch: a row of attention scores through softmax, activations through
// add + LayerNorm, on threads of the program's own, and what a wrong argument gives.
#include <transformer_kernels/error.h>
#include <transformer_kernels/norm/norm.h>
#include <transformer_kernels/softmax/softmax.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <thread>

#include "tensors.h"

namespace {

// An engine has threads already; the library runs its loops on them. Two threads, one range each.
void run_on_two_threads(void* calls, std::int64_t count, std::int64_t grain, tfk::RangeBody body,
                        void* argument) {
  ++*static_cast<int*>(calls);
  const std::int64_t half = std::min(count, std::max(grain, (count + 1) / 2));
  std::thread other([=] { body(argument, half, count); });
  body(argument, 0, half);
  other.join();
}

void attention_weights(const tfk::Context& context) {
  constexpr std::int64_t kQueries = 512, kKeys = 512, kHeadDim = 64;
  Floats scores = random_values({kQueries, kKeys}), weights(scores.size());
  tfk::softmax_forward(context, {.x = view(scores, {kQueries, kKeys}),
                                 .y = view(weights, {kQueries, kKeys}),
                                 .scale = 1 / std::sqrt(double{kHeadDim}),
                                 .causal = true});
  double last_row = 0;
  for (std::int64_t key = 0; key < kKeys; ++key) last_row += weights[weights.size() - kKeys + key];
  std::printf(
      "softmax: query 0 sees key 0 with %.3f and key 1 with %.3f; the last row sums to %.6f\n",
      weights[0], weights[1], last_row);
}

void residual_block(const tfk::Context& context) {
  constexpr std::int64_t kTokens = 1024, kChannels = 768;
  Floats x = random_values({kTokens, kChannels}), residual = x;
  Floats weight(kChannels, 1), bias(kChannels, 0.5), y(x.size()), sum(x.size());
  tfk::layer_norm_forward(context, {.x = view(x, {kTokens, kChannels}),
                                    .residual = view(residual, {kTokens, kChannels}),
                                    .weight = view(weight, {kChannels}),
                                    .bias = view(bias, {kChannels}),
                                    .y = view(y, {kTokens, kChannels}),
                                    .sum = view(sum, {kTokens, kChannels})});
  double mean = 0;
  for (std::int64_t c = 0; c < kChannels; ++c) mean += y[c] / kChannels;
  std::printf(
      "add + layer_norm: x + x = %.3f where x is %.3f; the mean of a row is the bias: %.6f\n",
      sum[0], x[0], mean);
}

void wrong_argument(const tfk::Context& context) {
  Floats x(4 * 768), y(4 * 768), weight(767);
  try {
    tfk::layer_norm_forward(
        context, {.x = view(x, {4, 768}), .weight = view(weight, {767}), .y = view(y, {4, 768})});
  } catch (const tfk::Error& error) {
    std::printf("refused: %s\n", error.what());
  }
}

}  // namespace

int main() {
  int loops = 0;
  tfk::Context context;
  context.parallel_for = {.run = run_on_two_threads, .user = &loops};
  attention_weights(context);
  residual_block(context);
  wrong_argument(context);
  std::printf("%d loops ran on this program's threads\n", loops);
}
