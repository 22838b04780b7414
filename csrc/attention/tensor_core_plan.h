// SPDX-License-Identifier: MIT
// Tiles of the tensor-core engine. No CUDA header, so that the choice is tested without a GPU.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
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
  constexpr int shared_bytes(int element_bytes, int own, int streamed) const {
    return element_bytes * dim * (own * rows() + 2 * streamed * cols);
  }
};

// By head dim, smallest first. Two CTAs a multiprocessor keep its tensor cores busy where one
// waits; all fit the 99 KB of sm_86, sm_89 and sm_120. 32 rows a warp halve what is read from
// shared memory, where registers last.
template <int kElementBytes>
struct TensorCoreTiles;

template <>
struct TensorCoreTiles<2> {
  static constexpr std::array forward = {
      TensorCoreTile{64, 4, 32, 64},
      TensorCoreTile{128, 4, 32, 32},
      TensorCoreTile{256, 4, 16, 32},
  };
  // With bias, mask, softcap, ALiBi or dropout.
  static constexpr std::array forward_extras = {
      TensorCoreTile{64, 4, 32, 32},
      TensorCoreTile{128, 4, 16, 64},
      TensorCoreTile{256, 4, 16, 32},
  };
  // For dk and dv, which own keys.
  static constexpr std::array keys = {
      TensorCoreTile{64, 4, 16, 64},
      TensorCoreTile{128, 4, 16, 32},
      TensorCoreTile{256, 4, 16, 16},
  };
  static constexpr std::array keys_extras = {
      TensorCoreTile{64, 4, 16, 32},
      TensorCoreTile{128, 4, 16, 16},
      TensorCoreTile{256, 4, 16, 16},
  };
  // For dq, which owns queries.
  static constexpr std::array queries = {
      TensorCoreTile{64, 4, 32, 32},
      TensorCoreTile{128, 4, 32, 32},
      TensorCoreTile{256, 4, 16, 16},
  };
  static constexpr std::array queries_extras = {
      TensorCoreTile{64, 4, 16, 32},
      TensorCoreTile{128, 4, 16, 32},
      TensorCoreTile{256, 4, 16, 16},
  };
};

// A head dim of 256 has more results than registers hold beside operands in two parts.
template <>
struct TensorCoreTiles<4> {
  static constexpr std::array forward = {
      TensorCoreTile{64, 4, 32, 32},
      TensorCoreTile{128, 4, 16, 32},
  };
  static constexpr std::array forward_extras = {
      TensorCoreTile{64, 4, 16, 32},
      TensorCoreTile{128, 4, 16, 32},
  };
  static constexpr std::array keys = {
      TensorCoreTile{64, 4, 16, 32},
      TensorCoreTile{128, 4, 16, 16},
  };
  static constexpr std::array keys_extras = keys;
  static constexpr std::array queries = {
      TensorCoreTile{64, 4, 32, 32},
      TensorCoreTile{128, 4, 16, 16},
  };
  static constexpr std::array queries_extras = {
      TensorCoreTile{64, 4, 16, 32},
      TensorCoreTile{128, 4, 16, 16},
  };
};

// Shared memory that a CTA needs at most.
template <int kElementBytes>
constexpr int tensor_core_shared_bytes() {
  using Tiles = TensorCoreTiles<kElementBytes>;
  constexpr int kStaticBytes = 3 * 1024;
  int most = 0;
  for (std::size_t i = 0; i < Tiles::forward.size(); ++i) {
    for (const TensorCoreTile& tile : {Tiles::forward[i], Tiles::forward_extras[i]}) {
      most = std::max(most, tile.shared_bytes(kElementBytes, 1, 2));
    }
    for (const TensorCoreTile& tile :
         {Tiles::keys[i], Tiles::keys_extras[i], Tiles::queries[i], Tiles::queries_extras[i]}) {
      most = std::max(most, tile.shared_bytes(kElementBytes, 2, 2));
    }
  }
  return kStaticBytes + most;
}

template <class T, bool kExtras, int kIndex>
struct ForwardPlan {
  using Tiles = TensorCoreTiles<sizeof(T)>;
  static constexpr TensorCoreTile tile = (kExtras ? Tiles::forward_extras : Tiles::forward)[kIndex];
};
template <class T, bool kExtras, int kIndex>
struct KeyPlan {
  using Tiles = TensorCoreTiles<sizeof(T)>;
  static constexpr TensorCoreTile tile = (kExtras ? Tiles::keys_extras : Tiles::keys)[kIndex];
};
template <class T, bool kExtras, int kIndex>
struct QueryPlan {
  using Tiles = TensorCoreTiles<sizeof(T)>;
  static constexpr TensorCoreTile tile = (kExtras ? Tiles::queries_extras : Tiles::queries)[kIndex];
};

// Places, distances and their sums fit 32 bits.
inline constexpr std::int64_t kMostTensorCoreLength = 1 << 28;

}  // namespace transformer_kernels::cuda
