// SPDX-License-Identifier: MIT
#pragma once

// A function that becomes a part of its caller: of a CUDA kernel, or of a loop over vectors. Builds
// that check or count every access keep functions apart, since such loops would take minutes to
// compile.
#if defined(__CUDACC__)
#define TFK_INLINE __device__ __forceinline__
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(TFK_COVERAGE)
#define TFK_INLINE [[gnu::noinline]] inline
#else
#define TFK_INLINE [[gnu::always_inline]] inline
#endif
