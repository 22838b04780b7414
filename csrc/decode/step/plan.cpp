// SPDX-License-Identifier: MIT
#include "decode/step/plan.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "core/check.h"
#include "core/cpu/parallel.h"
#include "core/softcap.h"
#include "decode/step/kernels.h"

namespace transformer_kernels {
namespace decode {
namespace {

constexpr std::int64_t kMostParts = 1024;
constexpr std::int64_t kMostSize = std::int64_t{1} << 24;

// Share `part` of `parts` of `count` things, in steps.
Range share_of(std::int64_t count, std::int64_t step, std::int64_t part, std::int64_t parts) {
  const std::int64_t steps = divide_up(count, step);
  const auto at = [&](std::int64_t i) { return std::min(count, i * steps / parts * step); };
  return {at(part), at(part + 1)};
}

Share share_of(const StepModel& m, std::int64_t part) {
  Share share{};
  share.heads = share_of(m.heads, 1, part, m.parts);
  const std::int64_t group = m.heads / m.kv_heads;
  if (share.heads.count() > 0) {
    share.kv_heads = {share.heads.begin / group, (share.heads.end - 1) / group + 1};
  }
  // Units of a part make whole blocks of most formats.
  share.units = share_of(m.inner, kSubBlock, part, m.parts);
  share.tokens = share_of(m.vocabulary, kTileRows, part, m.parts);
  return share;
}

void check_size(const char* name, std::int64_t size) {
  check_value(size >= 1 && size <= kMostSize, kOp, ": ", name, " is ", size, ", expected 1 to ",
              kMostSize);
}

std::vector<float> checked_table(const char* name, const TensorView& view, const StepModel& m) {
  check_value(view.defined() && view.rank == 2 && view.dtype == DType::kFloat32, kOp, ": ", name,
              " is not a float32 matrix, expected (positions, at most ", m.head_dim / 2, ")");
  check_value(view.sizes[0] >= 1 && view.sizes[1] * 2 <= m.head_dim, kOp, ": ", name, " has shape ",
              shape_of(view), ", expected (positions, at most ", m.head_dim / 2, ")");
  check_value(view.strides[1] == 1 && view.strides[0] == view.sizes[1] &&
                  view.device.type == DeviceType::kCpu,
              kOp, ": ", name, " is not in memory of the CPU without gaps");
  const auto* const data = static_cast<const float*>(view.data);
  return {data, data + view.numel()};
}

void check_model(const StepModel& m) {
  check_size("hidden", m.hidden);
  check_size("heads", m.heads);
  check_size("inner", m.inner);
  check_size("vocabulary", m.vocabulary);
  check_value(m.kv_heads >= 1 && m.heads % m.kv_heads == 0, kOp, ": kv_heads is ", m.kv_heads,
              ", expected a divisor of ", m.heads, " (heads)");
  check_value(m.head_dim >= 2 && m.head_dim % 2 == 0 && m.head_dim <= kMostDim, kOp,
              ": head_dim is ", m.head_dim, ", expected an even number up to ", kMostDim);
  check_value(m.parts >= 1 && m.parts <= kMostParts, kOp, ": parts is ", m.parts,
              ", expected 1 to ", kMostParts);
  check_value(m.eps >= 0, kOp, ": eps is ", m.eps, ", expected 0 or more");
  check_value(std::isfinite(m.scale), kOp, ": scale is ", m.scale, ", expected a finite number");
  check_softcap(kOp, "softcap", m.softcap);
  check_softcap(kOp, "logit_softcap", m.logit_softcap);
  check_value(m.cosines.sizes == m.sines.sizes, kOp, ": sines has shape ", shape_of(m.sines),
              ", expected ", shape_of(m.cosines), " (cosines)");
}

// Packs slices of a matrix, one a part, next to each other only by way of the arena, which takes
// them back unless they are kept.
class Packer {
 public:
  Packer(const Context& context, Arena& arena)
      : context_(context),
        arena_(arena),
        kept_(arena.used()) {}
  ~Packer() { arena_.shrink(kept_); }
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  void keep() { kept_ = arena_.used(); }

  PackedMatrix operator()(const Matrix& matrix, Range rows, Range cols) const {
    const Slice slice{rows.begin, rows.count(), cols.begin, cols.count()};
    if (slice.rows == 0 || slice.cols == 0) return {};
    PackedMatrix packed = layout_of(matrix, slice);
    std::byte* const target = arena_.allocate(packed.bytes());
    pack(context_, matrix, slice, packed, target);
    return packed;
  }

 private:
  const Context& context_;
  Arena& arena_;
  std::size_t kept_;
};

Range times(Range range, std::int64_t size) { return {range.begin * size, range.end * size}; }

}  // namespace
}  // namespace decode

using decode::kOp;
using decode::Matrix;
using decode::Range;

StepPlan::StepPlan(const Context& context, const StepModel& model)
    : state_(std::make_unique<State>()) {
  check_value(context.device.type == DeviceType::kCpu, kOp, ": the device is ",
              name_of(context.device.type), ", expected cpu");
  State& s = *state_;
  s.cosines = decode::checked_table("cosines", model.cosines, model);
  s.sines = decode::checked_table("sines", model.sines, model);
  decode::check_model(model);
  s.positions = model.cosines.sizes[0];
  s.pairs = model.cosines.sizes[1];
  s.model = model;
  s.model.cosines = s.model.sines = {};
  if (model.scale == 0) s.model.scale = 1 / std::sqrt(static_cast<double>(model.head_dim));
  for (std::int64_t part = 0; part < model.parts; ++part) {
    s.shares.push_back(decode::share_of(model, part));
  }
}

StepPlan::~StepPlan() = default;

void StepPlan::add_layer(const Context& context, const StepLayer& layer) {
  State& s = *state_;
  const StepModel& m = s.model;
  check_value(!s.finished, kOp, ": the plan is finished, expected all layers before");
  check_value(layer.window >= 0, kOp, ": window is ", layer.window, ", expected 0 or more");
  check_value(layer.attention_norm.defined() && layer.mlp_norm.defined(), kOp,
              ": a norm's weight is missing");
  const std::int64_t width = m.heads * m.head_dim;
  const std::int64_t kv_width = m.kv_heads * m.head_dim;
  const auto vector = decode::checked_vector;
  decode::PackedLayer packed{vector("attention_norm", layer.attention_norm, m.hidden),
                             vector("mlp_norm", layer.mlp_norm, m.hidden),
                             vector("q_bias", layer.q_bias, width),
                             vector("k_bias", layer.k_bias, kv_width),
                             vector("v_bias", layer.v_bias, kv_width),
                             vector("q_norm", layer.q_norm, m.head_dim),
                             vector("k_norm", layer.k_norm, m.head_dim),
                             layer.window,
                             {}};
  const auto matrix = decode::checked_matrix;
  const Matrix q = matrix("q", layer.q, width, m.hidden);
  const Matrix k = matrix("k", layer.k, kv_width, m.hidden);
  const Matrix v = matrix("v", layer.v, kv_width, m.hidden);
  const Matrix o = matrix("o", layer.o, m.hidden, width);
  const Matrix gate = matrix("gate", layer.gate, m.inner, m.hidden);
  const Matrix up = matrix("up", layer.up, m.inner, m.hidden);
  const Matrix down = matrix("down", layer.down, m.hidden, m.inner);
  decode::Packer pack(context, s.arena);
  const Range all{0, m.hidden};
  for (const decode::Share& share : s.shares) {
    const Range heads = decode::times(share.heads, m.head_dim);
    const Range kv_heads = decode::times(share.kv_heads, m.head_dim);
    // The order in which a step reads them.
    decode::PartOfLayer part;
    part.q = pack(q, heads, all);
    part.k = pack(k, kv_heads, all);
    part.v = pack(v, kv_heads, all);
    part.o = pack(o, all, heads);
    part.gate = pack(gate, share.units, all);
    part.up = pack(up, share.units, all);
    part.down = pack(down, all, share.units);
    packed.parts.push_back(part);
  }
  s.layers.push_back(std::move(packed));
  pack.keep();
}

void StepPlan::finish(const Context& context, const StepWeight& embedding,
                      const TensorView& final_norm, const StepWeight& head) {
  State& s = *state_;
  const StepModel& m = s.model;
  check_value(!s.finished, kOp, ": the plan is finished already");
  check_value(final_norm.defined(), kOp, ": final_norm is missing");
  const bool tied = !head.values.defined();
  const Matrix in = decode::checked_matrix("embedding", embedding, m.vocabulary, m.hidden);
  const Matrix out = tied ? in : decode::checked_matrix("head", head, m.vocabulary, m.hidden);
  std::vector<float> norm = decode::checked_vector("final_norm", final_norm, m.hidden);
  decode::Packer pack(context, s.arena);
  const auto parts_of = [&](const Matrix& matrix) {
    std::vector<decode::PackedMatrix> parts;
    parts.reserve(s.shares.size());
    for (const decode::Share& share : s.shares) {
      parts.push_back(pack(matrix, share.tokens, {0, m.hidden}));
    }
    return parts;
  };
  std::vector<decode::PackedMatrix> last = parts_of(out);
  if (!tied) s.embedding = parts_of(in);
  s.head = std::move(last);
  s.final_norm = std::move(norm);
  s.finished = true;
  pack.keep();
}

std::size_t StepPlan::packed_bytes() const { return state_->arena.used(); }

std::uint64_t StepPlan::read_all(const Context& context) const {
  const auto sum = cpu::step_kernels_in_use().sum;
  std::uint64_t total = 0;
  std::mutex mutex;
  for (const decode::Arena::Piece& piece : state_->arena.pieces()) {
    const auto bytes = static_cast<std::int64_t>(piece.used);
    const std::int64_t parts = state_->model.parts;
    cpu::parallel_for(context, parts, 1, [&](std::int64_t begin, std::int64_t end) {
      const auto at = [&](std::int64_t i) { return bytes * i / parts / 8 * 8; };
      const std::uint64_t own = sum(piece.begin + at(begin), at(end) - at(begin));
      const std::lock_guard lock(mutex);
      total += own;
    });
  }
  return total;
}

}  // namespace transformer_kernels
