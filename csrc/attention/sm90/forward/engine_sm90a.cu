// SPDX-License-Identifier: MIT
#include "attention/sm90/forward/kernel.cuh"

#include <algorithm>
#include <utility>

#include "core/cuda/launch.cuh"
#include "core/cuda/tensor_map.h"
#include "core/dispatch.h"
#include "core/rounding.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "attention";

bool has_window(const AttentionProblem& p) { return p.window_left >= 0 || p.window_right >= 0; }

unsigned features_of(const AttentionProblem& p) {
  return (p.slopes.data != nullptr ? kAlibi : 0u) | (p.softcap != 0 ? kSoftcap : 0u) |
         (p.bias.defined() ? kBias : 0u) | (p.mask.defined() ? kMask : 0u) |
         (p.drop_below != 0 ? kDropout : 0u) | (leaves_scale(p) ? 0u : kOtherScale);
}

// Whether ForwardScores can load pairs of numbers.
bool loads_in_pairs(const ScoreMap& map, std::int64_t queries, std::int64_t keys) {
  if (!map.defined() || map.col_stride == 0) return true;
  const std::int64_t pair = 2 * static_cast<std::int64_t>(size_of(map.dtype));
  const auto even = [](std::int64_t stride) { return stride % 2 == 0; };
  return reinterpret_cast<std::uintptr_t>(map.data) % pair == 0 && keys % 2 == 0 &&
         even(map.batch_stride) && even(map.head_stride) && (queries == 1 || even(map.row_stride));
}

// Rows of q, k, v or out as TMA sees them, in boxes of `rows` rows. Where the plan's columns are
// the tensor's, one box takes all of them; else one box for each 64, and TMA clips the last.
TensorMapLayout layout_of(const AttentionProblem& p, const HeadRows& rows, std::int64_t heads,
                          std::int64_t length, std::int64_t columns, int box_rows, int boxes) {
  const bool whole = boxes == 1 && columns > 64;
  const std::int64_t slabs = whole ? columns / 64 : 1;
  return {.dtype = p.dtype,
          .data = rows.data,
          .sizes = {whole ? 64 : columns, length, slabs, heads, p.q_offsets ? 1 : p.batch},
          .strides = {rows.row_stride, 64, rows.head_stride, rows.batch_stride},
          .box = {64, box_rows, static_cast<int>(slabs), 1, 1}};
}

int boxes_of(const HopperForwardPlan& plan, std::int64_t columns) {
  return columns == 64 * plan.slabs() ? 1 : plan.slabs();
}

struct ForwardLayouts {
  TensorMapLayout q, k, v, out;
};

ForwardLayouts layouts_of(const HopperForwardPlan& plan, const AttentionForwardProblem& p) {
  const int qk = boxes_of(plan, p.dim);
  const int v = boxes_of(plan, p.value_dim);
  return {.q = layout_of(p, p.q, p.heads, p.queries, p.dim, 64, qk),
          .k = layout_of(p, p.k, p.kv_heads, p.keys, p.dim, plan.block_keys, qk),
          .v = layout_of(p, p.v, p.kv_heads, p.keys, p.value_dim, plan.block_keys, v),
          .out = layout_of(p, p.out, p.heads, p.queries, p.value_dim, 64, v)};
}

const char* refusal(const HopperForwardPlan& plan, const AttentionForwardProblem& p,
                    const DeviceLimits& device) {
  if (device.architecture != 90) return "needs sm_90";
  if (p.dtype != DType::kFloat16 && p.dtype != DType::kBFloat16) return "takes 16-bit dtypes";
  const unsigned features = features_of(p);
  if ((features & ~plan.features) != 0) return "takes fewer features";
  if (plan.has_one_feature() && features == 0) return "takes what has its feature";
  for (const ScoreMap* map : {&p.bias, &p.mask}) {
    if (!loads_in_pairs(*map, p.queries, p.keys)) return "bias or mask is not in aligned pairs";
  }
  if (std::max(p.dim, p.value_dim) > plan.dim) return "dim is larger";
  if (p.dim % 8 != 0 || p.value_dim % 8 != 0) return "dim is no multiple of 8";
  if (p.keys < plan.least_keys) return "pays for longer sequences";
  if (std::max(p.queries, p.keys) >= kNoBound) return "more than 2^29 rows";
  if (p.keys == 0) return "k is empty";
  const ForwardLayouts layouts = layouts_of(plan, p);
  for (const TensorMapLayout* layout : {&layouts.q, &layouts.k, &layouts.v, &layouts.out}) {
    if (!fits_tensor_map(*layout)) return "rows are not 16-byte aligned";
  }
  const std::int64_t blocks = RowBlocks{p.q_offsets, p.batch, p.queries, 64}.count();
  if (blocks * p.heads >= kNoBound) return "too many tiles";
  return nullptr;
}

// Heads in a section of the order of tiles. Longest first evens out the end with many heads; k and
// v of few fit L2. Equal sections: a short last one would leave SMs idle.
int heads_per_section(const AttentionProblem& p) {
  if (!has_window(p)) return 1;
  constexpr std::int64_t kColumns = 4096;
  const std::int64_t heads = p.batch * p.heads;
  const std::int64_t wanted = std::max<std::int64_t>(kColumns / p.dim, 1) * (p.keys <= 512 ? 2 : 1);
  const std::int64_t sections = std::max<std::int64_t>((heads + wanted / 2) / wanted, 1);
  return static_cast<int>(divide_up(heads, sections));
}

struct MapRoom {
  int taken;  // slabs
  int slabs;
};

// Loads a map by TMA where it can and there is room; else the warps load it themselves.
LoadedMap map_of(const HopperForwardPlan& plan, const AttentionProblem& p, const ScoreMap& map,
                 MapRoom& room) {
  const int slabs = slabs_of(map, plan.block_keys);
  if (room.taken + slabs > room.slabs || !is_loadable(p, map)) return {};
  const int place = std::exchange(room.taken, room.taken + slabs);
  return loaded_map(kOp, p, map, place);
}

// The broadcast of a map over the batches comes from L2 where they follow each other.
bool is_shared(const AttentionProblem& p, const ScoreMap& map) {
  return map.defined() && map.batch_stride == 0 && p.batch > 1;
}

void add_features(HopperForward& p, const HopperForwardPlan& plan, const ScoreScales& scales) {
  const AttentionProblem& problem = p.problem;
  p.features = features_of(problem);
  p.inner = static_cast<float>(scales.inner);
  p.unit = static_cast<float>(scales.unit);
  p.added = static_cast<float>(1 / scales.unit);
  const std::uint32_t values = 65536;
  const std::uint32_t kept = values - problem.drop_below;
  p.kept = kept == 0 ? 0.0f : static_cast<float>(values) / static_cast<float>(kept);
  p.batches_inside = is_shared(problem, problem.bias) || is_shared(problem, problem.mask);
  if (p.batches_inside) p.section = std::max(p.section, static_cast<int>(problem.batch));
  MapRoom room{.taken = 0, .slabs = plan.map_slabs - (problem.drop_below != 0 ? 1 : 0)};
  p.bias = map_of(plan, problem, problem.bias, room);
  p.mask = map_of(plan, problem, problem.mask, room);
  p.map_bytes = room.taken * kMapSlabBytes;
}

template <class C>
void launch_forward(const Context& context, const AttentionForwardProblem& problem) {
  constexpr HopperForwardPlan kPlan = C::kPlan;
  constexpr double kUnit = Exponent<typename C::Element>::kPerNatural;
  const ForwardLayouts layouts = layouts_of(kPlan, problem);
  const RowBlocks blocks{problem.q_offsets, problem.batch, problem.queries, kPlan.tile_queries()};
  const std::int64_t all = blocks.count();
  const bool varlen = problem.q_offsets != nullptr;
  const ScoreScales scales = scales_of(problem);
  const std::int64_t processors = device_limits(context.device.index).processors;
  const std::int64_t ctas = std::min(all * problem.heads, processors);
  const WorkCounter tiles(kOp, context, all * problem.heads, ctas);
  HopperForward p{.q = encode_tensor_map(kOp, layouts.q),
                  .k = encode_tensor_map(kOp, layouts.k),
                  .v = encode_tensor_map(kOp, layouts.v),
                  .out = encode_tensor_map(kOp, layouts.out),
                  .problem = problem,
                  .blocks = blocks,
                  .blocks_per_head = static_cast<int>(varlen ? all : all / problem.batch),
                  .section = heads_per_section(problem),
                  .tiles = tiles.queue(),
                  .left = bound_of(problem.window_left),
                  .right = bound_of(problem.window_right),
                  .q_boxes = boxes_of(kPlan, problem.dim),
                  .v_boxes = boxes_of(kPlan, problem.value_dim),
                  .heads_per_kv_head = static_cast<int>(problem.group()),
                  .outer = static_cast<float>(scales.outer),
                  .inverse_outer = static_cast<float>(1 / scales.outer),
                  .scale = static_cast<float>(scales.outer * kUnit)};
  if constexpr (C::kHasFeatures) add_features(p, kPlan, scales);
  const LaunchShape shape{
      .ctas = ctas, .threads = kPlan.threads(), .shared_bytes = sizeof(ForwardStorage<C>)};
  launch(kOp, context, shape, &hopper_forward_kernel<C>, p);
}

template <int kIndex, class T>
void run_with(const Context& context, const AttentionForwardProblem& problem) {
  constexpr HopperForwardPlan kPlan = kHopperForwardPlans[kIndex];
  if constexpr (kPlan.features != 0) {
    launch_forward<HopperForwardConfig<T, kIndex, true>>(context, problem);
  } else {
    has_window(problem) ? launch_forward<HopperForwardConfig<T, kIndex, true>>(context, problem)
                        : launch_forward<HopperForwardConfig<T, kIndex, false>>(context, problem);
  }
}

template <int kIndex>
void run(const Context& context, const AttentionForwardProblem& problem) {
  if (problem.dtype == DType::kBFloat16) return run_with<kIndex, BFloat16>(context, problem);
  run_with<kIndex, Half>(context, problem);
}

template <int kIndex>
const char* refusal_of(const AttentionForwardProblem& problem, const DeviceLimits& device) {
  return refusal(kHopperForwardPlans[kIndex], problem, device);
}

template <int... kIndex>
constexpr std::array<AttentionEngine<AttentionForwardProblem>, kHopperForwardCount> engines(
    std::integer_sequence<int, kIndex...>) {
  return {{{kHopperForwardPlans[kIndex].name, kHopperForwardPlans[kIndex].block(),
            refusal_of<kIndex>, run<kIndex>}...}};
}

}  // namespace

const std::array<AttentionEngine<AttentionForwardProblem>, kHopperForwardCount>
    kHopperForwardEngines = engines(std::make_integer_sequence<int, kHopperForwardCount>());

}  // namespace transformer_kernels::cuda
