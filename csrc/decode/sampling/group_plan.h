// SPDX-License-Identifier: MIT
// How many CTAs share a row of logits. No CUDA header, so that it is tested without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/cuda/device.h"
#include "core/rounding.h"

namespace transformer_kernels::cuda::sampling {

inline constexpr int kThreads = 512;
inline constexpr int kMostCtas = 16;                      // of a row
inline constexpr int kPortableCtas = 8;                   // more in a cluster may not run
inline constexpr std::int64_t kPartStep = 4 * kThreads;   // elements: 4 at once for each thread
inline constexpr std::int64_t kMostPart = 9 * kPartStep;  // two CTAs of an SM have memory for

constexpr int most_ctas(const DeviceLimits& device) {
  return device.architecture < 90 ? 1 : device.architecture < 100 ? kMostCtas : kPortableCtas;
}

struct GroupPlan {
  int ctas;  // of a row
  int part;  // elements of each
};

// Clusters are as small as shared memory lets them be where there are rows for all SMs, else
// larger.
constexpr GroupPlan plan_of(const DeviceLimits& device, std::int64_t rows, std::int64_t cols) {
  const int most = most_ctas(device);
  int ctas = 1;
  const auto part = [&] { return rounded_up(divide_up(cols, ctas), kPartStep); };
  while (ctas < most && part() > kPartStep &&
         (part() > kMostPart || rows * ctas * 2 <= device.processors)) {
    ctas *= 2;
  }
  // A CTA without memory for its part has an SM alone, and not every GPC has 16 of them.
  if (part() > kMostPart) ctas = std::min(ctas, kPortableCtas);
  return {ctas, static_cast<int>(part())};
}

}  // namespace transformer_kernels::cuda::sampling
