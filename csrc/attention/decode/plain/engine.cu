// SPDX-License-Identifier: MIT
#include "attention/decode/common/combine.cuh"
#include "attention/decode/plain/attend.cuh"
#include "core/dispatch.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "attention_with_kv_cache";

const char* refusal(const KvCacheProblem&, const DeviceLimits&) { return nullptr; }

CacheGrid grid(const KvCacheProblem& p) {
  return grid_of(p, PlainCacheTile<float, float, 2>::kRows);
}

template <class Tile>
void attend_with(const Context& context, const KvCacheProblem& p, const CacheGrid& grid,
                 const CacheParts& parts) {
  launch(kOp, context, {.ctas = grid.ctas(p), .threads = Tile::kThreads}, &attend_plainly<Tile>, p,
         grid, parts);
}

template <class T, class C>
void attend_rows(const Context& context, const KvCacheProblem& p, const CacheGrid& grid,
                 const CacheParts& parts) {
  const std::int64_t dim = std::max(p.dim, p.value_dim);
  const auto run = dim <= 64    ? &attend_with<PlainCacheTile<T, C, 2>>
                   : dim <= 128 ? &attend_with<PlainCacheTile<T, C, 4>>
                                : &attend_with<PlainCacheTile<T, C, 8>>;
  run(context, p, grid, parts);
}

void attend(const Context& context, const KvCacheProblem& p, const CacheGrid& grid,
            const CacheParts& parts) {
  const bool scaled = p.k_cache.dtype == DType::kInt8;
  dispatch_below_double(p.dtype, [&]<class T>() {
    const auto run = scaled ? &attend_rows<T, std::int8_t> : &attend_rows<T, T>;
    run(context, p, grid, parts);
  });
}

void combine(const Context& context, const KvCacheProblem& p, const CacheGrid& grid,
             const CacheParts& parts) {
  dispatch_below_double(
      p.dtype, [&]<class T>() { launch_combine<T, Exponent<T>>(kOp, context, p, grid, parts); });
}

}  // namespace

const CacheEngine kPlainCacheEngine{"plain", refusal, grid, attend, combine};

}  // namespace transformer_kernels::cuda
