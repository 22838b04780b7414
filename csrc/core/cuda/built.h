// SPDX-License-Identifier: MIT
// Which kernels this build has. Those that only some architectures run are compiled for these alone
// (cmake/cuda.cmake), and not at all where the build has none of them: then they must not be named.
#pragma once

namespace transformer_kernels::cuda {

inline constexpr bool kBuildsSm80 = TFK_CUDA_SM80 != 0;    // sm_80 and later: *_sm80*
inline constexpr bool kBuildsSm90 = TFK_CUDA_SM90 != 0;    // sm_90 and later: *_sm90_*
inline constexpr bool kBuildsSm90a = TFK_CUDA_SM90A != 0;  // Hopper alone: *_sm90a_*

}  // namespace transformer_kernels::cuda
