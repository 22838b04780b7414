// SPDX-License-Identifier: MIT
// The kernels that this build has. A kernel for some architectures only is compiled for these alone
// (cmake/cuda.cmake), and not at all where the build has none of them; its name must not be used
// then.
#pragma once

namespace transformer_kernels::cuda {

inline constexpr bool kBuildsSm80 = TFK_CUDA_SM80 != 0;    // sm_80 and later: *_sm80*
inline constexpr bool kBuildsSm90 = TFK_CUDA_SM90 != 0;    // sm_90 and later: *_sm90_*
inline constexpr bool kBuildsSm90a = TFK_CUDA_SM90A != 0;  // Hopper alone: *_sm90a_*

}  // namespace transformer_kernels::cuda
