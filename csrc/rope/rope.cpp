// SPDX-License-Identifier: MIT
#include "transformer_kernels/rope/rope.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "core/backends.h"
#include "core/dispatch.h"
#include "core/sequences.h"
#include "core/strides.h"
#include "rope/rope_problem.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "rope";

constexpr Backends<RopeProblem> kBackends{.cpu = cpu::rope,
                                          .cuda = kHasCuda ? cuda::rope : nullptr};

// The tensors of one pass by their names; those of k may be absent.
struct Operands {
  struct Operand {
    const char* name;
    const TensorView& view;
  };
  Operand q;
  Operand k;
  Operand q_rotated;
  Operand k_rotated;
};

Heads heads_of(const TensorView& view) {
  const TensorView v = with_batch(view);
  return {v.data, v.strides[0], v.strides[1], v.strides[2]};
}

bool on_host(const TensorView& view) { return view.device.type == DeviceType::kCpu; }

class Checker {
 public:
  Checker(Device device, const Operands& operands)
      : device_(device),
        check_(kOp, device),
        operands_(operands) {}

  RopeProblem problem(const RopeAngles& a, bool inverse) {
    RopeProblem p = heads();
    p.inverse = inverse;
    p.angles = tables(a, p);
    if (a.position_ids.defined()) {
      add_ids(a, p);
    } else {
      count_positions(a, p);
    }
    add_results(p);
    return p;
  }

 private:
  RopeProblem heads() const {
    const auto& [q_name, q] = operands_.q;
    check_.floating(q_name, q);
    check_value(q.rank == 3 || q.rank == 4, kOp, ": ", q_name, " has ", q.rank,
                " dimensions, expected 3 (time, heads, dim) or 4 (batch, time, heads, dim)");
    check_last_stride(q_name, q);
    const TensorView v = with_batch(q);
    RopeProblem p{.dtype = q.dtype,
                  .batch = v.sizes[0],
                  .time = v.sizes[1],
                  .q_heads = v.sizes[2],
                  .k_heads = 0,
                  .dim = v.sizes[3],
                  .q = heads_of(q)};
    const auto& [k_name, k] = operands_.k;
    if (!k.defined()) return p;
    check_.typed(k_name, k, q.dtype, "the dtype of q");
    TensorView wanted = q;
    const bool same_rank = k.rank == q.rank;
    if (same_rank) wanted.sizes[k.rank - 2] = k.sizes[k.rank - 2];
    bool same = same_rank;
    for (int i = 0; same && i < k.rank; ++i) same = k.sizes[i] == wanted.sizes[i];
    check_value(same, kOp, ": ", k_name, " has shape ", shape_of(k), ", expected ",
                shape_of(wanted), " (that of ", q_name, " but for the heads)");
    check_last_stride(k_name, k);
    p.k = heads_of(k);
    p.k_heads = k.sizes[k.rank - 2];
    return p;
  }

  AngleTables tables(const RopeAngles& a, const RopeProblem& p) const {
    check_.floating("cos", a.cos);
    const bool allowed = a.cos.dtype == p.dtype || a.cos.dtype == accumulate_dtype(p.dtype);
    check_type(allowed, kOp, ": cos is ", name_of(a.cos.dtype), ", expected ", name_of(p.dtype),
               size_of(p.dtype) < 4 ? " or float32" : "", " (the dtype of q)");
    check_value(a.cos.rank == 2, kOp, ": cos has ", a.cos.rank,
                " dimensions, expected 2 (positions, frequencies)");
    const std::int64_t most = p.dim / 2;
    check_value(a.cos.sizes[1] >= 1 && a.cos.sizes[1] <= most, kOp, ": cos has ", a.cos.sizes[1],
                " columns, expected 1 to ", most, " (pairs in a head of q)");
    check_last_stride("cos", a.cos);
    check_.typed("sin", a.sin, a.cos.dtype, "the dtype of cos");
    check_.same_shape("sin", a.sin, "cos", a.cos);
    check_last_stride("sin", a.sin);
    return {.dtype = a.cos.dtype,
            .cos = {a.cos.data, a.cos.strides[0]},
            .sin = {a.sin.data, a.sin.strides[0]},
            .positions = a.cos.sizes[0],
            .frequencies = a.cos.sizes[1],
            .interleaved = a.interleaved,
            .axis_end = {a.cos.sizes[1], a.cos.sizes[1]}};
  }

  void add_ids(const RopeAngles& a, RopeProblem& p) const {
    const TensorView& ids = a.position_ids;
    const int rank = operands_.q.view.rank;
    AngleTables& t = p.angles;
    t.ids = integers("position_ids", ids);
    const bool axes = ids.rank == rank - 1;
    TensorView wanted = operands_.q.view;  // of sizes alone
    wanted.rank = axes ? rank - 1 : rank - 2;
    for (int i = wanted.rank - 1; i >= (axes ? 1 : 0); --i) {
      wanted.sizes[i] = operands_.q.view.sizes[axes ? i - 1 : i];
    }
    if (axes) wanted.sizes[0] = kRopeAxes;
    check_.same_shape("position_ids", ids, "tokens of q", wanted);
    for (const auto& [name, view] :
         {std::pair{"offsets", &a.offsets}, std::pair{"cu_seqlens", &a.cu_seqlens}}) {
      check_value(!view->defined(), kOp, ": ", name, " is given, expected none with position_ids");
    }
    check_value(a.offset == 0, kOp, ": offset is ", a.offset, ", expected 0 with position_ids");
    t.id_time = ids.strides[ids.rank - 1];
    t.id_batch = rank == 4 ? ids.strides[ids.rank - 2] : 0;
    t.id_axis = axes ? ids.strides[0] : 0;
    add_sections(a, axes, t);
    if (on_host(ids)) check_ids(p);
  }

  static void add_sections(const RopeAngles& a, bool axes, AngleTables& t) {
    std::int64_t left = axes ? t.frequencies : 0;
    const std::pair<const char*, std::int64_t> sections[] = {{"section_time", a.section_time},
                                                             {"section_height", a.section_height}};
    for (const auto& [name, size] : sections) {
      check_value(size >= 0 && size <= left, kOp, ": ", name, " is ", size, ", expected 0 to ",
                  left, axes ? " (frequencies that are left)" : " (position_ids has no axes)");
      left -= size;
    }
    if (!axes) return;
    t.axis_end[0] = a.section_time;
    t.axis_end[1] = a.section_time + a.section_height;
  }

  static void check_ids(const RopeProblem& p) {
    const AngleTables& t = p.angles;
    const int axes = t.has_axes() ? kRopeAxes : 1;
    for (int axis = 0; axis < axes; ++axis) {
      for (std::int64_t b = 0; b < p.batch; ++b) {
        for (std::int64_t i = 0; i < p.time; ++i) {
          check_position("position_ids", t.ids[axis * t.id_axis + b * t.id_batch + i * t.id_time],
                         t);
        }
      }
    }
  }

  void count_positions(const RopeAngles& a, RopeProblem& p) const {
    AngleTables& t = p.angles;
    add_sections(a, false, t);
    check_value(a.offset >= 0, kOp, ": offset is ", a.offset, ", expected 0 or more");
    t.offset = a.offset;
    t.sequences = p.batch;
    if (a.cu_seqlens.defined()) add_sequences(a.cu_seqlens, p);
    if (a.offsets.defined()) {
      t.offsets = integers("offsets", a.offsets);
      check_value(a.offsets.rank == 1, kOp, ": offsets has ", a.offsets.rank,
                  " dimensions, expected 1");
      check_.packed("offsets", a.offsets, t.sequences, "sequences");
    }
    const bool lengths_known = t.cu_seqlens == nullptr || on_host(a.cu_seqlens);
    const bool offsets_known = t.offsets.data == nullptr || on_host(a.offsets);
    if (lengths_known && offsets_known) check_counted(p);
  }

  void add_sequences(const TensorView& view, RopeProblem& p) const {
    const int rank = operands_.q.view.rank;
    check_value(rank == 3, kOp, ": cu_seqlens is given, expected none with q of ", rank,
                " dimensions");
    AngleTables& t = p.angles;
    t.cu_seqlens = cu_seqlens_of(kOp, device_, "cu_seqlens", view, p.time, "q");
    t.sequences = view.numel() - 1;
  }

  static void check_counted(const RopeProblem& p) {
    const AngleTables& t = p.angles;
    for (std::int64_t s = 0; s < t.sequences; ++s) {
      const std::int64_t length =
          t.cu_seqlens != nullptr ? t.cu_seqlens[s + 1] - t.cu_seqlens[s] : p.time;
      if (length == 0) continue;
      const std::int64_t first = t.offset + (t.offsets.data != nullptr ? t.offsets[s] : 0);
      check_position(source_of(t), first, t);
      check_position(source_of(t), std::min(first + length - 1, t.positions), t);
    }
  }

  static void check_position(const char* name, std::int64_t position, const AngleTables& t) {
    check_value(position >= 0 && position < t.positions, kOp, ": ", name, " has position ",
                position, ", expected 0 to ", t.positions - 1, " (the rows of cos)");
  }

  void add_results(RopeProblem& p) const {
    p.q_rotated = result(operands_.q_rotated, operands_.q);
    if (operands_.k.view.defined()) {
      p.k_rotated = result(operands_.k_rotated, operands_.k);
    } else {
      check_value(!operands_.k_rotated.view.defined(), kOp, ": ", operands_.k_rotated.name,
                  " is given, expected none without ", operands_.k.name);
      return;
    }
    check_apart(operands_.q_rotated, operands_.k_rotated);
    check_apart(operands_.q_rotated, operands_.k);
    check_apart(operands_.k_rotated, operands_.q);
  }

  Heads result(const Operands::Operand& out, const Operands::Operand& of) const {
    check_.typed(out.name, out.view, of.view.dtype, "the dtype of what it is of");
    check_.same_shape(out.name, out.view, of.name, of.view);
    check_last_stride(out.name, out.view);
    check_value(!overlaps_itself(out.view), kOp, ": ", out.name,
                " has rows that overlap, expected each element in a place of its own");
    if (!same_memory(out.view, of.view)) check_apart(out, of);
    return heads_of(out.view);
  }

  static void check_apart(const Operands::Operand& out, const Operands::Operand& other) {
    check_value(!share_memory(out.view, other.view), kOp, ": ", out.name, " overlaps ", other.name,
                ", expected memory of its own");
  }

  Integers integers(const char* name, const TensorView& view) const {
    check_.indices(name, view);
    return {view.data, view.dtype == DType::kInt64};
  }

  static void check_last_stride(const char* name, const TensorView& view) {
    const std::int64_t last = view.rank - 1;
    const bool even = view.sizes[last] <= 1 || view.numel() == 0 || view.strides[last] == 1;
    check_value(even, kOp, ": ", name, " has a last stride of ", view.strides[last],
                ", expected 1");
  }

  Device device_;
  ArgumentChecker check_;
  const Operands& operands_;
};

void run(const Context& context, const Operands& operands, const RopeAngles& angles, bool inverse) {
  const RopeProblem problem = Checker(context.device, operands).problem(angles, inverse);
  if (problem.tokens() == 0 || problem.heads() == 0) return;
  run_on(kOp, kBackends, context, problem);
}

}  // namespace

const char* source_of(const AngleTables& t) {
  if (t.ids.data != nullptr) return "position_ids";
  if (t.offsets.data != nullptr) return "offsets";
  return t.cu_seqlens != nullptr ? "cu_seqlens" : "q";
}

std::string describe(const RopeProblem& p) {
  return concat(p.inverse ? "backward " : "forward ", name_of(p.dtype), " ", p.batch, "x", p.time,
                "x", p.q_heads, "+", p.k_heads, "x", p.dim,
                p.angles.interleaved ? " interleaved " : " ", p.rotary_dim(), ", positions of ",
                source_of(p.angles), p.in_place() ? ", in place" : "");
}

void rope_forward(const Context& context, const RopeForward& a) {
  run(context, {{"q", a.q}, {"k", a.k}, {"q_rotated", a.q_rotated}, {"k_rotated", a.k_rotated}},
      a.angles, false);
}

void rope_backward(const Context& context, const RopeBackward& a) {
  run(context,
      {{"dq_rotated", a.dq_rotated}, {"dk_rotated", a.dk_rotated}, {"dq", a.dq}, {"dk", a.dk}},
      a.angles, true);
}

}  // namespace transformer_kernels
