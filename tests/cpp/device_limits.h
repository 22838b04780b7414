// SPDX-License-Identifier: MIT
// Limits of the devices that launch policies are tested for. Needs no GPU.
#pragma once

#include "core/cuda/device.h"

namespace transformer_kernels::cuda {

inline constexpr DeviceLimits kAmpere{
    .architecture = 80, .processors = 108, .shared_bytes_per_cta = 166912};
inline constexpr DeviceLimits kAda{
    .architecture = 89, .processors = 128, .shared_bytes_per_cta = 101376};
inline constexpr DeviceLimits kHopper{
    .architecture = 90, .processors = 132, .shared_bytes_per_cta = 232448};
inline constexpr DeviceLimits kBlackwellDesktop{
    .architecture = 120, .processors = 170, .shared_bytes_per_cta = 101376};

}  // namespace transformer_kernels::cuda
