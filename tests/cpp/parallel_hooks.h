// SPDX-License-Identifier: MIT
// Contexts that cut a parallel loop in different ways: results must be the same for all of them.
#pragma once

#include <algorithm>
#include <thread>
#include <vector>

#include "backend.h"

namespace transformer_kernels::testing {

inline void run_alone(void*, std::int64_t count, std::int64_t, RangeBody body, void* argument) {
  body(argument, 0, count);
}

inline void run_backwards(void*, std::int64_t count, std::int64_t grain, RangeBody body,
                          void* argument) {
  for (std::int64_t end = count; end > 0; end -= std::min(end, grain)) {
    body(argument, std::max<std::int64_t>(0, end - grain), end);
  }
}

inline void run_on_five_threads(void*, std::int64_t count, std::int64_t grain, RangeBody body,
                                void* argument) {
  const std::int64_t length = std::max(grain, (count + 4) / 5);
  std::vector<std::thread> threads;
  for (std::int64_t begin = 0; begin < count; begin += length) {
    threads.emplace_back(body, argument, begin, std::min(begin + length, count));
  }
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<Context> contexts_with_different_threads(const Backend& backend) {
  std::vector<Context> contexts(2, backend.context());
  for (auto hook : {run_alone, run_backwards, run_on_five_threads}) {
    contexts.push_back(backend.context());
    contexts.back().parallel_for = {hook, nullptr};
  }
  return contexts;
}

}  // namespace transformer_kernels::testing
