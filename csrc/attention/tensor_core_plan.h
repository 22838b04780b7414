// SPDX-License-Identifier: MIT
// Tiles of the tensor-core engine. No CUDA header, so that the choice is tested without a GPU.
#pragma once

#include <array>
#include <cstdint>

namespace transformer_kernels::cuda {

// A kernel owns warps * warp_rows rows and streams tiles of `cols` of the other side.
struct TensorCoreTile {
  int dim;  // D and Dv are padded to it
  int warps;
  int warp_rows;
  int cols;

  constexpr int threads() const { return warps * 32; }
  constexpr int rows() const { return warps * warp_rows; }
  // `own` and `streamed` matrices, the latter two stages deep.
  constexpr int shared_bytes(int own, int streamed) const {
    return 2 * dim * (own * rows() + 2 * streamed * cols);
  }
};

// By head dim, smallest first. All fit the 99 KB of sm_86, sm_89 and sm_120; two CTAs a
// multiprocessor keep its tensor cores busy where one waits. 32 rows a warp halve what is read from
// shared memory, where registers last.
inline constexpr std::array kForwardTiles = {
    TensorCoreTile{64, 4, 32, 64},
    TensorCoreTile{128, 4, 32, 32},
    TensorCoreTile{256, 4, 16, 32},
};
// With bias, mask, softcap, ALiBi or dropout.
inline constexpr std::array kForwardExtrasTiles = {
    TensorCoreTile{64, 4, 32, 32},
    TensorCoreTile{128, 4, 16, 64},
    TensorCoreTile{256, 4, 16, 32},
};
// For dk and dv, which own keys.
inline constexpr std::array kKeyTiles = {
    TensorCoreTile{64, 4, 16, 64},
    TensorCoreTile{128, 4, 16, 32},
    TensorCoreTile{256, 4, 16, 16},
};
inline constexpr std::array kKeyExtrasTiles = {
    TensorCoreTile{64, 4, 16, 32},
    TensorCoreTile{128, 4, 16, 16},
    TensorCoreTile{256, 4, 16, 16},
};
// For dq and dbias, which own queries.
inline constexpr std::array kQueryTiles = {
    TensorCoreTile{64, 4, 32, 32},
    TensorCoreTile{128, 4, 32, 32},
    TensorCoreTile{256, 4, 16, 16},
};
inline constexpr std::array kQueryExtrasTiles = {
    TensorCoreTile{64, 4, 16, 32},
    TensorCoreTile{128, 4, 16, 32},
    TensorCoreTile{256, 4, 16, 16},
};

template <bool kExtras, int kIndex>
struct ForwardPlan {
  static constexpr TensorCoreTile tile = (kExtras ? kForwardExtrasTiles : kForwardTiles)[kIndex];
};
template <bool kExtras, int kIndex>
struct KeyPlan {
  static constexpr TensorCoreTile tile = (kExtras ? kKeyExtrasTiles : kKeyTiles)[kIndex];
};
template <bool kExtras, int kIndex>
struct QueryPlan {
  static constexpr TensorCoreTile tile = (kExtras ? kQueryExtrasTiles : kQueryTiles)[kIndex];
};

// Places, distances and their sums fit 32 bits.
inline constexpr std::int64_t kMostTensorCoreLength = 1 << 28;

}  // namespace transformer_kernels::cuda
