// SPDX-License-Identifier: MIT
// Rows of tokens and of places on CUDA. A warp has one token and a piece of its columns, kPacks
// packs a lane: it reads or writes those once, and those of the token's places once each.
#pragma once

#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"
#include "core/rounding.h"
#include "moe/dispatch/kernels_cuda.h"

namespace transformer_kernels::cuda {

inline constexpr int kMoveWarps = 4;  // of a CTA
inline constexpr int kMoveThreads = kMoveWarps * kWarp;
inline constexpr int kMovePacks = 4;  // of a lane

template <class T, class V = accumulate_t<T>>
__device__ __forceinline__ V weight_of(const DispatchProblem& p, std::int64_t assignment) {
  if (p.weights == nullptr) return 1;
  if (p.weights_dtype == p.dtype) return widen(static_cast<const T*>(p.weights)[assignment]);
  return static_cast<const V*>(p.weights)[assignment];
}

template <class T>
__device__ __forceinline__ T* row_of(const Rows& rows, std::int64_t row) {
  return static_cast<T*>(rows.data) + row * rows.stride;
}

// A warp's piece of the columns of one token.
template <class T, int kSize>
struct Piece {
  using P = Pack<T, kSize>;
  static constexpr std::int64_t kCols = std::int64_t{kMovePacks} * kWarp * kSize;

  std::int64_t token;
  std::int64_t first;  // column of the lane

  __device__ __forceinline__ Piece()
      : token(std::int64_t{blockIdx.x} * kMoveWarps + threadIdx.x / kWarp),
        first(blockIdx.y * kCols + threadIdx.x % kWarp * kSize) {}

  __device__ __forceinline__ static std::int64_t col(int pack) { return pack * kWarp * kSize; }
};

template <class T, int kSize>
__global__ void __launch_bounds__(kMoveThreads)
    moe_spread_kernel(const __grid_constant__ SpreadProblem p) {
  using P = Pack<T, kSize>;
  using V = accumulate_t<T>;
  const Piece<T, kSize> piece;
  if (piece.token >= p.tokens) return;
  const T* const x = row_of<const T>(p.of_tokens, piece.token);
  typename P::Raw raw[kMovePacks];
#pragma unroll
  for (int n = 0; n < kMovePacks; ++n) {
    const std::int64_t col = piece.first + piece.col(n);
    if (col < p.cols) raw[n] = P::load(x + col);
  }
  for (int k = 0; k < p.assigned; ++k) {
    const std::int64_t i = piece.token * p.assigned + k;
    const std::int32_t place = p.places[i];
    const bool is_kept = p.is_kept(place);
    const std::int64_t at = is_kept ? place : ~place;
    if (at < 0 || at >= p.assignments()) continue;
    T* const y = row_of<T>(p.of_places, at);
    const V weight = is_kept ? weight_of<T>(p, i) : V(0);
#pragma unroll
    for (int n = 0; n < kMovePacks; ++n) {
      const std::int64_t col = piece.first + piece.col(n);
      if (col >= p.cols) continue;
      if (is_kept && p.weights == nullptr) {
        P::store(y + col, raw[n]);
        continue;
      }
      V v[kSize];
      P::unpack(raw[n], v);
#pragma unroll
      for (int j = 0; j < kSize; ++j) v[j] = is_kept ? v[j] * weight : V(0);
      P::store(y + col, P::pack(v));
    }
  }
}

template <class T, int kSize>
__global__ void __launch_bounds__(kMoveThreads)
    moe_combine_kernel(const __grid_constant__ CombineProblem p) {
  using P = Pack<T, kSize>;
  using V = accumulate_t<T>;
  const Piece<T, kSize> piece;
  if (piece.token >= p.tokens) return;
  V sum[kMovePacks][kSize] = {};
#pragma unroll 2
  for (int k = 0; k < p.assigned; ++k) {
    const std::int64_t i = piece.token * p.assigned + k;
    const std::int32_t place = p.places[i];
    if (!p.is_kept(place)) continue;
    const T* const x = row_of<const T>(p.of_places, place);
    const V weight = weight_of<T>(p, i);
    typename P::Raw raw[kMovePacks];
#pragma unroll
    for (int n = 0; n < kMovePacks; ++n) {
      const std::int64_t col = piece.first + piece.col(n);
      if (col < p.cols) raw[n] = P::load(x + col);
    }
#pragma unroll
    for (int n = 0; n < kMovePacks; ++n) {
      const std::int64_t col = piece.first + piece.col(n);
      if (col >= p.cols) continue;
      V v[kSize];
      P::unpack(raw[n], v);
#pragma unroll
      for (int j = 0; j < kSize; ++j) sum[n][j] = fma(v[j], weight, sum[n][j]);
    }
  }
  T* const y = row_of<T>(p.of_tokens, piece.token);
#pragma unroll
  for (int n = 0; n < kMovePacks; ++n) {
    const std::int64_t col = piece.first + piece.col(n);
    if (col < p.cols) P::store(y + col, P::pack(sum[n]));
  }
}

// A warp for each assignment: its row, multiplied by the gradient of its token, is the gradient of
// its weight; that gradient times the weight is the gradient of the row.
template <class T, int kSize>
__global__ void __launch_bounds__(kMoveThreads)
    moe_weight_gradient_kernel(const __grid_constant__ SpreadProblem p) {
  using P = Pack<T, kSize>;
  using V = accumulate_t<T>;
  const std::int64_t i = std::int64_t{blockIdx.x} * kMoveWarps + threadIdx.x / kWarp;
  if (i >= p.assignments()) return;
  const auto token = static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(p.assigned);
  const std::int32_t place = p.places[i];
  const bool is_kept = p.is_kept(place);
  const std::int64_t at = is_kept ? place : ~place;
  const auto write_gradient = [&](V gradient) {
    if (threadIdx.x % kWarp != 0) return;
    if (p.weights_dtype == p.dtype) {
      static_cast<T*>(p.dweights)[i] = narrow<T>(gradient);
    } else {
      static_cast<V*>(p.dweights)[i] = gradient;
    }
  };
  if (at < 0 || at >= p.assignments()) return write_gradient(0);
  const T* const dy = row_of<const T>(p.of_tokens, token);
  const T* const x = row_of<const T>(p.weighted, at);
  T* const dx = p.of_places.data == nullptr ? nullptr : row_of<T>(p.of_places, at);
  const V weight = is_kept ? weight_of<T>(p, i) : V(0);
  V dot = 0;
  const std::int64_t first = threadIdx.x % kWarp * kSize;
#pragma unroll 4
  for (std::int64_t col = first; col < p.cols; col += kWarp * kSize) {
    V g[kSize] = {};
    V v[kSize] = {};
    if (is_kept) {
      P::unpack(P::load_cached(dy + col), g);
      P::unpack(P::load(x + col), v);
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      dot = fma(g[j], v[j], dot);
      g[j] *= weight;
    }
    if (dx != nullptr) P::store(dx + col, P::pack(g));
  }
  write_gradient(reduce_lanes<Add>(dot));
}

template <class T, int kSize, class Problem>
void launch_move(const Context& context, const Problem& p, void (*kernel)(Problem)) {
  launch(p.op, context,
         {.ctas = divide_up(p.tokens, kMoveWarps),
          .threads = kMoveThreads,
          .ctas_y = static_cast<int>(divide_up(p.cols, Piece<T, kSize>::kCols))},
         kernel, p);
}

template <class T, int kSize>
void run_sized(const Context& context, const SpreadProblem& p) {
  if (p.dweights == nullptr) return launch_move<T, kSize>(context, p, &moe_spread_kernel<T, kSize>);
  launch(p.op, context, {.ctas = divide_up(p.assignments(), kMoveWarps), .threads = kMoveThreads},
         &moe_weight_gradient_kernel<T, kSize>, p);
}
template <class T, int kSize>
void run_sized(const Context& context, const CombineProblem& p) {
  launch_move<T, kSize>(context, p, &moe_combine_kernel<T, kSize>);
}

// Packs of 16 bytes are whole, and lie on their size.
template <class T>
bool rows_have_packs(const DispatchProblem& p) {
  constexpr int kPack = 16 / sizeof(T);
  if (std::is_same_v<T, double> || p.cols % kPack != 0) return false;
  for (const Rows& rows : {p.of_tokens, p.of_places, p.weighted}) {
    const auto address = reinterpret_cast<std::uintptr_t>(rows.data);
    if (address % 16 != 0 || rows.stride % kPack != 0) return false;
  }
  return true;
}

template <class T, class Problem>
void run_move(const Context& context, const Problem& p) {
  if constexpr (!std::is_same_v<T, double>) {
    if (rows_have_packs<T>(p)) return run_sized<T, 16 / sizeof(T)>(context, p);
  }
  run_sized<T, 1>(context, p);
}

}  // namespace transformer_kernels::cuda
