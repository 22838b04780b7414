// SPDX-License-Identifier: MIT
#include "attention/sm90/backward/engine.h"

#include <algorithm>
#include <utility>

#include "attention/bias_gradient/engine.h"
#include "attention/sm90/backward/kernel.cuh"
#include "attention/sm90/backward/rows.cuh"
#include "attention/sm90/backward_cluster/kernel.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/scratch.h"
#include "core/cuda/tensor_map.h"
#include "core/rounding.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "attention";
constexpr std::int64_t kTensorMapRows = 64;  // of a box
constexpr std::int64_t kMostTileDim = 128;   // of one CTA; a cluster takes more

// Boxes of 64 rows and 64 columns of one head; columns past `dim` are loaded as 0, and not stored.
TensorMapLayout layout_of(const AttentionProblem& p, const HeadRows& rows, std::int64_t time,
                          std::int64_t heads, std::int64_t dim) {
  const std::int64_t batch = p.q_offsets ? 1 : p.batch;
  return {.dtype = p.dtype,
          .data = rows.data,
          .sizes = {dim, time, heads, batch, 1},
          .strides = {rows.row_stride, rows.head_stride, rows.batch_stride, 0},
          .box = {64, 64, 1, 1, 1}};
}

// The layout with two dimensions for rows, see ragged_box(): row r of place b is row r + b - 64.
TensorMapLayout ragged(TensorMapLayout layout) {
  const auto [row, head, batch, none] = layout.strides;
  const auto [columns, time, heads, batches, one] = layout.sizes;
  const std::int64_t row_bytes = row * static_cast<std::int64_t>(size_of(layout.dtype));
  layout.data = static_cast<char*>(layout.data) - kTensorMapRows * row_bytes;
  layout.sizes = {columns, kTensorMapRows, heads, time + 1, batches};
  layout.strides = {row, head, row, batch};
  return layout;
}

// A tensor of which no box that begins with column 64 or a later one has an element. `memory` is
// where boxes of it begin.
TensorMapLayout nothing_at(void* memory, DType dtype) {
  return {.dtype = dtype,
          .data = memory,
          .sizes = {8, 1, 1, 1, 1},
          .strides = {},
          .box = {64, 64, 1, 1, 1}};
}

// For each slab of 64 columns the map of `layout`, or `nothing` where the tensor has none of them.
template <std::size_t kSlabs>
void set_maps(CUtensorMap (&maps)[kSlabs], const TensorMapLayout& layout,
              const CUtensorMap& nothing) {
  maps[0] = encode_tensor_map(kOp, layout);
  for (std::size_t i = 1; i != kSlabs; ++i) {
    maps[i] = static_cast<std::int64_t>(64 * i) < layout.sizes[0] ? maps[0] : nothing;
  }
}

struct BackwardLayouts {
  TensorMapLayout q, k, v, out, dout, dq, dk, dv;

  explicit BackwardLayouts(const AttentionBackwardProblem& p)
      : q(layout_of(p, p.q, p.queries, p.heads, p.dim)),
        k(layout_of(p, p.k, p.keys, p.kv_heads, p.dim)),
        v(layout_of(p, p.v, p.keys, p.kv_heads, p.value_dim)),
        out(layout_of(p, p.out, p.queries, p.heads, p.value_dim)),
        dout(layout_of(p, p.dout, p.queries, p.heads, p.value_dim)),
        dq(layout_of(p, p.dq, p.queries, p.heads, p.dim)),
        dk(layout_of(p, p.dk, p.keys, p.kv_heads, p.dim)),
        dv(layout_of(p, p.dv, p.keys, p.kv_heads, p.value_dim)) {}

  bool fit() const {
    for (const TensorMapLayout* layout : {&q, &k, &v, &out, &dout, &dq, &dk, &dv}) {
      if (!fits_tensor_map(*layout)) return false;
    }
    return true;
  }
};

// Whether the mask can be loaded in eights of bytes.
bool comes_in_eights(const AttentionProblem& p) {
  constexpr std::int64_t kEight = 8;
  const ScoreMap& mask = p.mask;
  return !mask.defined() ||
         (reinterpret_cast<std::uintptr_t>(mask.data) % kEight == 0 && p.keys % kEight == 0 &&
          mask.col_stride == 1 && mask.row_stride % kEight == 0 && mask.head_stride % kEight == 0 &&
          mask.batch_stride % kEight == 0);
}

// The columns of a head in shared memory: as many of q as of v.
constexpr std::int64_t padded_dim_of(const AttentionProblem& p) {
  return rounded_up(std::max(p.dim, p.value_dim), 64);
}

// Scores that are more than products times a scale, or dropout.
bool has_features(const AttentionProblem& p) { return !has_plain_scores(p) || p.drop_below != 0; }

// Whether dS is made of other weights than P.
bool has_weights(const AttentionProblem& p) { return p.softcap != 0 || p.drop_below != 0; }

// Whether a plan's tiles add to dq in order whatever is asked for.
bool knows_order_alone(const HopperBackwardPlan& plan) {
  using enum BackwardVariant;
  return plan.variant == kOrdered || (plan.variant == kDropout && plan.dim == 64);
}

// Whether tiles add to dq in order.
bool adds_in_order(const HopperBackwardPlan& plan, const AttentionBackwardProblem& p) {
  return p.deterministic || knows_order_alone(plan);
}

// The reason why a plan's variant does not take the problem; null if it does.
const char* refusal_of_variant(const HopperBackwardPlan& plan, const AttentionBackwardProblem& p) {
  using enum BackwardVariant;
  const bool of_cluster = plan.dim > kMostTileDim;
  if (plan.variant == kDropout) {
    if (p.drop_below == 0 || !has_plain_scores(p)) return "is for dropout alone";
  } else {
    if (plan.variant < kWeights && has_weights(p)) return "knows no softcap and no dropout";
    if (plan.variant < kScores && has_features(p)) return "knows no bias, mask or slopes";
  }
  if (plan.variant < kRagged && p.q_offsets) return "knows no sequences of different lengths";
  if (plan.variant < kRagged && of_cluster && !(p.scale > 0)) return "wants a scale above 0";
  if (plan.variant == kUnordered && of_cluster && p.deterministic) return "adds to dq in any order";
  if (of_cluster && p.bias.defined()) return "has no room for a bias above 128 columns";
  if (plan.variant == kWeights && plan.dim > 64 && p.bias.defined() &&
      p.bias.dtype == DType::kFloat32) {
    return "has no room for a float32 bias beside softcap or dropout above 64 columns";
  }
  return nullptr;
}

const char* refusal(const HopperBackwardPlan& plan, const AttentionBackwardProblem& p,
                    const DeviceLimits& device) {
  constexpr std::int64_t kVector = 8;
  constexpr std::int64_t kMostBlocks = std::int64_t{1} << 30;
  if (device.architecture != 90) return "runs on compute capability 9.0 only";
  if (size_of(p.dtype) != 2) return "takes float16 and bfloat16 only";
  if (p.dim % kVector != 0 || p.value_dim % kVector != 0) {
    return "wants dims that are multiples of 8";
  }
  if (padded_dim_of(p) != plan.dim) return "is for another dim";
  if (const char* reason = refusal_of_variant(plan, p)) return reason;
  if (p.queries == 0 || p.keys == 0 || p.batch == 0 || p.heads == 0) return "wants some rows";
  if (p.queries > kMostRows || p.keys > kMostRows) return "counts rows up to 2^28";
  const std::int64_t rows = (p.q_offsets ? 1 : p.batch) * (p.queries + p.keys);
  if (p.heads * (rows / kBlockQueries + 2 * p.batch) > kMostBlocks) {
    return "counts blocks of rows up to 2^30";
  }
  if (!comes_in_eights(p)) return "wants a mask in aligned eights of keys";
  return BackwardLayouts(p).fit() ? nullptr : "wants addresses and strides in steps of 16 bytes";
}

// Heads of k and v whose tiles are mixed. Where every query sees every key, tiles are equally long
// and go through the queries of a few heads in step. Else the longest tiles of many heads come
// first, so that all CTAs end together: as many heads as twice the L2 cache holds, since about half
// of each is seen. Tiles of one head that add to dq in order wait for each other: the most heads
// leave fewest of those. Sums that leave through shared memory wait for themselves, and where tiles
// are equally long they stay in step: then the heads are as many as the cache likes.
int section_of(const HopperBackwardPlan& plan, const AttentionBackwardProblem& p) {
  constexpr std::int64_t kColumnsInStep = 512;
  constexpr std::int64_t kMostInStep = 4;
  constexpr std::int64_t kBytes = 64 << 20;
  struct InOrder {
    std::int64_t bytes, least;
  };
  constexpr InOrder kAllSeen{16 << 20, 12};
  constexpr InOrder kCausal{96 << 20, 32};
  constexpr std::int64_t kMostColumns = 4096;
  constexpr std::int64_t kBlock = kBlockQueries;
  const std::int64_t queries = p.q_offsets ? std::max(p.queries / p.batch, kBlock) : p.queries;
  const std::int64_t bytes = p.group() * queries * plan.dim * (2 + 2 + 4);  // q, dout, dq
  const std::int64_t most = kMostColumns / plan.dim;
  const bool all_seen = p.window_left < 0 && p.window_right < 0;
  const auto wanted = [&]() -> std::int64_t {
    if (!adds_in_order(plan, p)) {
      return all_seen ? std::min(kColumnsInStep / plan.dim, kMostInStep)
                      : std::clamp<std::int64_t>(kBytes / bytes, 1, most);
    }
    const bool sums_wait = plan.dim == 64 && knows_order_alone(plan);
    if (!sums_wait || p.window_left >= 0) return most;
    const InOrder& heads = all_seen ? kAllSeen : kCausal;
    return std::clamp(heads.bytes / bytes, heads.least, most);
  }();
  const std::int64_t heads = (p.q_offsets ? 1 : p.batch) * p.kv_heads;
  const std::int64_t sections = std::max<std::int64_t>(1, (heads + wanted / 2) / wanted);
  return static_cast<int>(divide_up(heads, sections));
}

BackwardGeometry geometry_of(const HopperBackwardPlan& plan, const AttentionBackwardProblem& p) {
  const auto blocks = [](std::int64_t rows, int block) {
    return static_cast<int>(divide_up(rows, block));
  };
  BackwardGeometry geometry{.queries = static_cast<int>(p.queries),
                            .keys = static_cast<int>(p.keys),
                            .heads = static_cast<int>(p.heads),
                            .kv_heads = static_cast<int>(p.kv_heads),
                            .batch = static_cast<int>(p.batch),
                            .shift = static_cast<int>(p.diagonal({0, p.queries, 0, p.keys}, 0)),
                            .window_left = bound_of(p.window_left),
                            .window_right = bound_of(p.window_right),
                            .query_blocks = blocks(p.queries, kBlockQueries),
                            .key_tiles = blocks(p.keys, kTileKeys),
                            .section = section_of(plan, p),
                            .bottom_right = p.bottom_right};
  if (p.q_offsets == nullptr) return geometry;
  geometry.sequences = geometry.batch;
  geometry.batch = 1;
  geometry.q_offsets = p.q_offsets;
  geometry.k_offsets = p.k_offsets;
  geometry.query_blocks = static_cast<int>(geometry.blocks_of_queries().count());
  geometry.key_tiles = static_cast<int>(geometry.tiles_of_keys().count());
  return geometry;
}

// ------------------------------------------------------------------ features of scores

// The factor that dropout leaves to the end. Where it keeps nothing, any will do.
double grown_by(const AttentionProblem& p) {
  constexpr double kValues = 65536;
  const double kept = kValues - p.drop_below;
  return kept == 0 ? 1 : kValues / kept;
}

// With so many slabs of bias and mask in shared memory. A bias has room, or none is needed.
BackwardFeatures features_of(const AttentionProblem& p, int slabs) {
  constexpr double kUnit = Exponent<BFloat16>::kPerNatural;
  const ScoreScales scales = scales_of(p);
  const double grown = grown_by(p);
  const int of_bias = slabs_of(p.bias, kTileKeys);
  const int of_mask = slabs_of(p.mask, kTileKeys);
  const bool bias_by_tma = of_bias <= slabs && is_loadable(p, p.bias);
  const bool mask_by_tma = of_bias + of_mask <= slabs && is_loadable(p, p.mask);
  const int loaded = (bias_by_tma ? of_bias : 0) + (mask_by_tma ? of_mask : 0);
  return {.problem = p,
          .bias = bias_by_tma ? loaded_map(kOp, p, p.bias, 0) : LoadedMap{},
          .mask = mask_by_tma ? loaded_map(kOp, p, p.mask, of_bias) : LoadedMap{},
          .map_bytes = static_cast<std::uint32_t>(loaded * kMapSlabBytes),
          .capped = p.softcap != 0,
          .inner = static_cast<float>(scales.inner),
          .unit = static_cast<float>(scales.unit),
          .added = static_cast<float>(1 / scales.unit),
          .outer = static_cast<float>(scales.outer),
          .outer_in_bits = static_cast<float>(scales.outer * kUnit),
          .grown_by = static_cast<float>(grown)};
}

// The memory that the three kernels share, in one allocation.
struct BackwardMemory {
  std::size_t sums, statistics, counters;

  BackwardMemory(const BackwardGeometry& geometry, int dim, int slices)
      : sums(sizeof(float) * geometry.all_blocks() * kBlockQueries * dim),
        statistics(sizeof(float) * geometry.all_blocks() * kBlockQueries * 2),
        counters(sizeof(int) * (geometry.all_blocks() * slices + 1)) {}

  std::size_t bytes() const { return sums + statistics + counters; }
};

// `run` is called with configuration C; a tile is one of `kCtas` CTAs.
template <class C, int kCtas>
void launch_backward(void (*run)(HopperBackward), const Context& context,
                     const HopperBackwardPlan& plan, const AttentionBackwardProblem& p) {
  using T = typename C::T;
  const BackwardGeometry geometry = geometry_of(plan, p);
  const BackwardMemory memory(geometry, C::kDim, C::kSlices);
  const Scratch scratch(kOp, context, memory.bytes());
  float* const sums = scratch.as<float>();
  float* const statistics = sums + memory.sums / sizeof(float);
  int* const next_tile = reinterpret_cast<int*>(statistics + memory.statistics / sizeof(float));
  int* const tiles_added = adds_in_order(plan, p) ? next_tile + 1 : nullptr;

  const float scale = static_cast<float>(p.scale);
  const BackwardLayouts layouts(p);
  HopperBackward arguments{.geometry = geometry,
                           .statistics = statistics,
                           .lse = p.lse,
                           .lse_rest = p.lse_rest,
                           .dq = sums,
                           .next_tile = next_tile,
                           .tiles_added = tiles_added,
                           .scale = scale,
                           .scale_in_bits = scale * Exponent<T>::kPerNatural,
                           .features = features_of(p, C::kMapSlabs)};
  const CUtensorMap nothing = encode_tensor_map(kOp, nothing_at(sums, p.dtype));
  const auto set = [&](auto& maps, const TensorMapLayout& layout) {
    set_maps(maps, C::kRagged ? ragged(layout) : layout, nothing);
  };
  set(arguments.q, layouts.q);
  set(arguments.k, layouts.k);
  set(arguments.v, layouts.v);
  set(arguments.dout, layouts.dout);
  set(arguments.dk, layouts.dk);
  set(arguments.dv, layouts.dv);

  const LaunchShape rows{.ctas = geometry.all_blocks(), .threads = kRowThreads};
  launch(kOp, context, rows, &backward_prologue_kernel<T, C::kDim>,
         BackwardPrologue{p, geometry, statistics, sums, C::kStoresFirst, next_tile, tiles_added,
                          C::kSlices, static_cast<float>(1 / grown_by(p))});
  const int processors = device_limits(context.device.index).processors;
  const LaunchShape persistent{.ctas = std::min(processors / kCtas, geometry.tiles()) * kCtas,
                               .threads = C::kThreads,
                               .cluster = kCtas,
                               .shared_bytes = C::kSharedBytes,
                               .after_previous = true};
  launch(kOp, context, persistent, run, arguments);
  LaunchShape after = rows;
  after.after_previous = true;
  constexpr int kMostSlabs = C::kSlabs <= 2 ? 2 : 4;
  launch(kOp, context, after,
         C::kDqTransposed ? &backward_transposed_epilogue_kernel<T>
                          : &backward_epilogue_kernel<T, kMostSlabs>,
         BackwardEpilogue{geometry, sums, p.dq, static_cast<int>(p.dim), C::kSlabs,
                          scale * arguments.features.grown_by});
  make_sink_gradients(context, p, statistics, geometry.query_blocks, -arguments.features.grown_by);
}

template <class T, int kIndex>
void run_with(const Context& context, const AttentionBackwardProblem& p) {
  constexpr HopperBackwardPlan kPlan = kHopperBackwardPlans[kIndex];
  if constexpr (kPlan.dim <= kMostTileDim) {
    using C = HopperBackwardConfig<T, kPlan.dim, kPlan.variant>;
    launch_backward<C, 1>(&hopper_backward_kernel<C>, context, kPlan, p);
  } else {
    using C = BackwardClusterConfig<T, kPlan.dim, kPlan.variant>;
    launch_backward<C, C::kCtas>(&hopper_backward_cluster_kernel<C>, context, kPlan, p);
  }
  if (p.dbias.defined()) run_bias_gradient(context, p);
}

template <int kIndex>
void run(const Context& context, const AttentionBackwardProblem& p) {
  if (p.dtype == DType::kBFloat16) return run_with<BFloat16, kIndex>(context, p);
  run_with<Half, kIndex>(context, p);
}

template <int kIndex>
const char* refusal_of(const AttentionBackwardProblem& p, const DeviceLimits& device) {
  return refusal(kHopperBackwardPlans[kIndex], p, device);
}

template <int... kIndex>
constexpr std::array<AttentionEngine<AttentionBackwardProblem>, kHopperBackwardCount> engines(
    std::integer_sequence<int, kIndex...>) {
  return {{{kHopperBackwardPlans[kIndex].name,
            {kBlockQueries, kTileKeys},
            refusal_of<kIndex>,
            run<kIndex>}...}};
}

}  // namespace

const std::array<AttentionEngine<AttentionBackwardProblem>, kHopperBackwardCount>
    kHopperBackwardEngines = engines(std::make_integer_sequence<int, kHopperBackwardCount>());

}  // namespace transformer_kernels::cuda
