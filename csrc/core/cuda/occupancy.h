// SPDX-License-Identifier: MIT
// How many CTAs an SM is to hold, where it cannot be as many as on sm_90: for launch bounds, which
// name CTAs of `threads` threads.
#pragma once

#include <algorithm>

namespace transformer_kernels::cuda {

// The architecture that the code is compiled for, as DeviceLimits writes it; 0 for the host.
#ifdef __CUDA_ARCH__
inline constexpr int kArchitecture = __CUDA_ARCH__ / 10;
#else
inline constexpr int kArchitecture = 0;
#endif

// `ctas`, or as many as an SM has threads for: ptxas refuses a larger number.
constexpr int ctas_by_threads(int threads, int ctas) {
  const bool has_1536 = (kArchitecture > 80 && kArchitecture < 90) || kArchitecture >= 110;
  const int of_sm = kArchitecture == 75 ? 1024 : has_1536 ? 1536 : 2048;
  return std::min(ctas, of_sm / threads);
}

// CTAs that leave each thread more registers than `ctas` do. A thread is given registers in steps.
constexpr int ctas_with_more_registers(int threads, int ctas) {
  constexpr int kOfSm = 65536;
  constexpr int kStep = 8;
  const int steps = kOfSm / (threads * ctas * kStep);
  return std::max(1, kOfSm / (threads * (steps + 1) * kStep));
}

}  // namespace transformer_kernels::cuda
