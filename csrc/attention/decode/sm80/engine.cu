// SPDX-License-Identifier: MIT
#include "attention/decode/common/combine.cuh"
#include "attention/decode/sm80/attend.cuh"
#include "core/dispatch.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "attention_with_kv_cache";
// Rows of a group from which on a CTA takes 16 of them.
constexpr std::int64_t kManyRows = 9;
// The least dim at which a second tile's sums do not fit the registers.
constexpr std::int64_t kWideDim = 129;

std::int64_t widest(const KvCacheProblem& p) { return std::max(p.dim, p.value_dim); }

bool in_pieces(const CacheRows& rows, std::int64_t dim) {
  const std::int64_t piece = 16 / size_of(rows.dtype);
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.page_stride % piece == 0 &&
         rows.row_stride % piece == 0 && rows.head_stride % piece == 0 && dim % piece == 0;
}

const char* refusal(const KvCacheProblem& p, const DeviceLimits& device) {
  if (device.architecture < 80) return "the device is older than sm_80";
  if (size_of(p.dtype) != 2) return "q is not of 16 bits";
  if (!in_pieces(p.k_cache, p.dim) || !in_pieces(p.v_cache, p.value_dim)) {
    return "rows of a cache are no whole pieces of 16 bytes";
  }
  return nullptr;
}

CacheGrid grid(const KvCacheProblem& p) {
  return grid_of(p, p.group_rows() < kManyRows || widest(p) >= kWideDim ? 8 : 16);
}

template <class T, class C, int kDim, int kTiles, int kCtas>
void attend_with(const Context& context, const KvCacheProblem& p, const CacheGrid& grid,
                 const CacheParts& parts) {
  using Tile = CacheTile<T, C, kDim, kTiles, kCtas>;
  launch(kOp, context, {.ctas = grid.ctas(p), .threads = Tile::kThreads}, &attend_to_cache<Tile>, p,
         grid, parts);
}

// CTAs of an SM leave each thread the registers that its tile needs, and no more.
void attend(const Context& context, const KvCacheProblem& p, const CacheGrid& grid,
            const CacheParts& parts) {
  const bool many = grid.rows == 16;
  if (p.k_cache.dtype == DType::kInt8) {
    const auto run = widest(p) >= kWideDim ? &attend_with<Half, std::int8_t, 256, 1, 2>
                     : many                ? &attend_with<Half, std::int8_t, 128, 2, 2>
                                           : &attend_with<Half, std::int8_t, 128, 1, 3>;
    return run(context, p, grid, parts);
  }
  dispatch_narrow(p.dtype, [&]<class T>() {
    const auto run = widest(p) >= kWideDim ? &attend_with<T, T, 256, 1, 2>
                     : widest(p) > 64
                         ? (many ? &attend_with<T, T, 128, 2, 2> : &attend_with<T, T, 128, 1, 3>)
                         : (many ? &attend_with<T, T, 64, 2, 3> : &attend_with<T, T, 64, 1, 4>);
    run(context, p, grid, parts);
  });
}

void combine(const Context& context, const KvCacheProblem& p, const CacheGrid& grid,
             const CacheParts& parts) {
  dispatch_narrow(p.dtype,
                  [&]<class T>() { launch_combine<T, Exponent<T>>(kOp, context, p, grid, parts); });
}

}  // namespace

const CacheEngine kTensorCoreCacheEngine{"sm80", refusal, grid, attend, combine};

}  // namespace transformer_kernels::cuda
