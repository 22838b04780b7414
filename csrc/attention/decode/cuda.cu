// SPDX-License-Identifier: MIT
// Attention over a cache on CUDA: new tokens are written by a kernel of their own, a warp a token
// and head; then an engine attends to chunks of keys, and a last kernel adds up those of sequences
// that have several.
#include <array>

#include "attention/decode/common/sequence.cuh"
#include "core/cuda/built.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "core/select.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "attention_with_kv_cache";
constexpr int kAppendWarps = 4;
constexpr int kNumbersOfLane = kMostDim / kWarp;

// Writes a row to its place: a number a step of a warp.
template <class T>
__device__ void store_token(const CacheRows& cache, const CacheRows& scale, int page, int row,
                            int head, int dim, const float (&number)[kNumbersOfLane], int lane) {
  const std::int64_t at = page * cache.page_stride + row * cache.row_stride +
                          static_cast<std::int64_t>(head) * cache.head_stride;
  if (scale.data == nullptr) {
    T* const target = static_cast<T*>(cache.data) + at;
#pragma unroll
    for (int i = 0; i < kNumbersOfLane; ++i) {
      const int column = lane + i * kWarp;
      if (column < dim) target[column] = narrow<T>(number[i]);
    }
    return;
  }
  float most = 0;
  float rest = 0;  // not a number where one of the row is not finite
#pragma unroll
  for (int i = 0; i < kNumbersOfLane; ++i) {
    most = fmaxf(most, fabsf(number[i]));
    rest += number[i] * 0.0f;
  }
  most = reduce_lanes<Max>(most);
  rest = reduce_lanes<Add>(rest);
  const float steps = most > 0 && rest == 0 ? __fdiv_rn(127, most) : 0;
  auto* const target = static_cast<std::int8_t*>(cache.data) + at;
#pragma unroll
  for (int i = 0; i < kNumbersOfLane; ++i) {
    const int column = lane + i * kWarp;
    if (column >= dim) continue;
    target[column] =
        steps == 0 ? std::int8_t{0} : static_cast<std::int8_t>(__float2int_rn(number[i] * steps));
  }
  if (lane != 0) return;
  static_cast<float*>(scale.data)[page * scale.page_stride + row * scale.row_stride +
                                  static_cast<std::int64_t>(head) * scale.head_stride] =
      __fdiv_rn(most, 127) + rest;
}

// One CTA an SM would do: without that bound ptxas saves registers and spills.
template <class T>
__global__ void __launch_bounds__(kAppendWarps* kWarp, 1) append_tokens(const KvCacheProblem p) {
  const auto index = static_cast<std::int64_t>(blockIdx.x) * kAppendWarps + threadIdx.x / kWarp;
  if (index >= p.batch * p.added * p.kv_heads) return;
  const int lane = threadIdx.x % kWarp;
  const int head = static_cast<int>(index % p.kv_heads);
  const int token = static_cast<int>(index / p.kv_heads % p.added);
  const int batch = static_cast<int>(index / p.kv_heads / p.added);
  const int position = length_of(p, batch) + token;
  if (position < 0 || position >= p.capacity()) return;
  const int size = static_cast<int>(p.page_size);
  const int page = page_of(p, batch, position / size);
  if (page < 0) return;
  float number[kNumbersOfLane];
  const T* const k = row_at<T>(p.k, batch, token, head);
  const T* const v = row_at<T>(p.v, batch, token, head);
  load_row(k, static_cast<int>(p.dim), number);
  rotate_row(p, k, position, number);
  store_token<T>(p.k_cache, p.k_scale, page, position % size, head, static_cast<int>(p.dim), number,
                 lane);
  load_row(v, static_cast<int>(p.value_dim), number);
  store_token<T>(p.v_cache, p.v_scale, page, position % size, head, static_cast<int>(p.value_dim),
                 number, lane);
}

void append(const Context& context, const KvCacheProblem& p) {
  const std::int64_t rows = p.batch * p.added * p.kv_heads;
  if (rows == 0) return;
  dispatch_below_double(p.dtype, [&]<class T>() {
    launch(kOp, context, {.ctas = divide_up(rows, kAppendWarps), .threads = kAppendWarps * kWarp},
           &append_tokens<T>, p);
  });
}

// Best first. What this build lacks is not named.
constexpr auto kEngines = [] {
  if constexpr (kBuildsSm80) {
    return std::array{&kTensorCoreCacheEngine, &kPlainCacheEngine};
  } else {
    return std::array{&kPlainCacheEngine};
  }
}();

void attend(const Context& context, const KvCacheProblem& p) {
  const DeviceLimits& device = device_limits(context.device.index);
  const CacheEngine& engine = *kEngines[choose(
      kOp, kEngines, p, [&](const CacheEngine* e) { return e->refusal(p, device); })];
  const CacheGrid grid = engine.grid(p);
  if (grid.chunks == 1) return engine.attend(context, p, grid, {});
  const std::int64_t width = rounded_up(p.value_dim, 4);
  const std::int64_t rows = p.batch * p.kv_heads * grid.chunks * p.group_rows();
  const Scratch scratch(kOp, context, static_cast<std::size_t>(rows * (width + 2)) * sizeof(float));
  auto* const memory = scratch.as<float>();
  const CacheParts parts{memory, memory + rows * width, static_cast<int>(width)};
  engine.attend(context, p, grid, parts);
  engine.combine(context, p, grid, parts);
}

}  // namespace

void attention_with_kv_cache(const Context& context, const KvCacheProblem& p) {
  check_value(p.capacity() < kMostPosition && p.queries < kMostPosition && p.added < kMostPosition,
              kOp, ": a sequence has ", kMostPosition,
              " tokens or more, which CUDA kernels do not take");
  append(context, p);
  if (p.batch * p.heads * p.queries > 0) attend(context, p);
}

}  // namespace transformer_kernels::cuda
