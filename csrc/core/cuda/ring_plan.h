// SPDX-License-Identifier: MIT
// The layout of a persistent row kernel: how it spreads rows over warps. Host-only, as row_plan.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/check.h"
#include "core/cuda/device.h"

namespace transformer_kernels::cuda {

struct RingPlan {
  int packs;     // 16-byte packs of a row that one thread owns
  int warps;     // of a CTA that share a row
  int groups;    // of such warps in a CTA, each with a row of its own
  int cluster;   // CTAs that share a row; then groups == 1
  int stages;    // rows that the ring holds at most: more in flight make the memory slower
  int ctas = 1;  // CTAs that share an SM
  // Rows of any operand start anywhere: a warp fetches the 16-byte packs that its columns lie in,
  // one more than it owns, and shifts what it reads.
  bool shifted = false;

  constexpr int threads() const { return warps * groups * 32; }
  constexpr int cta_row_bytes() const { return 16 * 32 * packs * warps; }
  constexpr std::int64_t max_row_bytes() const { return std::int64_t{cta_row_bytes()} * cluster; }
  // Bytes of one operand's row that the ring holds, for one warp and for all groups of a CTA.
  constexpr int segment_bytes() const { return 16 * (32 * packs + (shifted ? 1 : 0)); }
  constexpr int stage_bytes() const { return segment_bytes() * warps * groups; }
};

inline constexpr int kSumSlots = 2;  // rows whose sums are under way at a time

// Static shared memory of a kernel: barriers, and messages on their way between warps.
constexpr int ring_static_bytes(const RingPlan& plan, int message_bytes) {
  const int messages = plan.groups * kSumSlots * (plan.warps + plan.cluster);
  return messages * message_bytes + plan.groups * plan.warps * plan.stages * 8 + 64;
}

// Stages for rows of `tensors` operands in what shared memory is left beside `other_bytes`.
constexpr int ring_stages(const RingPlan& plan, int tensors, int other_bytes,
                          const DeviceLimits& device) {
  constexpr int kReserved = 1024;  // by the system, in each CTA
  const int cta_bytes = (device.shared_bytes_per_cta + kReserved) / plan.ctas - kReserved;
  const int room = (cta_bytes - other_bytes - kReserved) / (plan.stage_bytes() * tensors);
  return std::min(plan.stages, room);
}

// "ring p2 w16 g1 c4 s3"
inline std::string name_of(const RingPlan& plan) {
  return concat("ring p", plan.packs, " w", plan.warps, " g", plan.groups, " c", plan.cluster, " s",
                plan.stages, plan.ctas > 1 ? concat(" m", plan.ctas) : "",
                plan.shifted ? " shifted" : "");
}

}  // namespace transformer_kernels::cuda
