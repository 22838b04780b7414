// SPDX-License-Identifier: MIT
// Checks that the family's ops share: of heads, results, tables and positions.
#pragma once

#include <algorithm>

#include "core/dispatch.h"
#include "core/overlap.h"
#include "core/sequences.h"
#include "rope/problem.h"

namespace transformer_kernels {

// The tensors of one pass by their names; those of k may be absent.
struct RopeOperands {
  Operand q;
  Operand k;
  Operand q_rotated;
  Operand k_rotated;
};

inline Heads heads_of(const TensorView& view) {
  const TensorView v = with_batch(view);
  return {v.data, v.strides[0], v.strides[1], v.strides[2]};
}

inline bool on_host(const TensorView& view) { return view.device.type == DeviceType::kCpu; }

class RopeChecker {
 public:
  RopeChecker(const char* op, Device device, const RopeOperands& operands)
      : op_(op),
        device_(device),
        check_(op, device),
        operands_(operands) {}

  // Without tables, where an op does without them, nothing is rotated.
  RopeProblem problem(const RopeAngles& a, bool inverse, bool needs_tables = true) const {
    RopeProblem p = heads();
    p.inverse = inverse;
    if (!needs_tables && !a.cos.defined()) {
      check_no_positions(a);
      add_results(p);
      return p;
    }
    p.angles = tables(a, p);
    if (a.position_ids.defined()) {
      add_ids(a, p);
    } else {
      count_positions(a, p);
    }
    add_results(p);
    return p;
  }

  // A tensor of the shape and dtype of one of the operands.
  Heads like(const char* name, const TensorView& view, const Operand& of) const {
    check_.typed(name, view, of.view.dtype, "the dtype of q");
    check_.same_shape(name, view, of.name, of.view);
    check_last_stride(name, view);
    return heads_of(view);
  }

 private:
  void check_no_positions(const RopeAngles& a) const {
    for (const auto& [name, view] :
         {std::pair{"sin", &a.sin}, std::pair{"position_ids", &a.position_ids},
          std::pair{"offsets", &a.offsets}, std::pair{"cu_seqlens", &a.cu_seqlens}}) {
      check_value(!view->defined(), op_, ": ", name, " is given, expected none without cos");
    }
    for (const auto& [name, number] :
         {std::pair{"offset", a.offset}, std::pair{"section_time", a.section_time},
          std::pair{"section_height", a.section_height}}) {
      check_value(number == 0, op_, ": ", name, " is ", number, ", expected 0 without cos");
    }
  }

  RopeProblem heads() const {
    const auto& [q_name, q] = operands_.q;
    check_.floating(q_name, q);
    check_value(q.rank == 3 || q.rank == 4, op_, ": ", q_name, " has ", q.rank,
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
    check_value(same, op_, ": ", k_name, " has shape ", shape_of(k), ", expected ",
                shape_of(wanted), " (that of ", q_name, " but for the heads)");
    check_last_stride(k_name, k);
    p.k = heads_of(k);
    p.k_heads = k.sizes[k.rank - 2];
    return p;
  }

  AngleTables tables(const RopeAngles& a, const RopeProblem& p) const {
    check_.floating("cos", a.cos);
    check_.typed_or_float32("cos", a.cos, p.dtype, "q");
    check_value(a.cos.rank == 2, op_, ": cos has ", a.cos.rank,
                " dimensions, expected 2 (positions, frequencies)");
    const std::int64_t most = p.dim / 2;
    check_value(a.cos.sizes[1] >= 1 && a.cos.sizes[1] <= most, op_, ": cos has ", a.cos.sizes[1],
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
      check_value(!view->defined(), op_, ": ", name, " is given, expected none with position_ids");
    }
    check_value(a.offset == 0, op_, ": offset is ", a.offset, ", expected 0 with position_ids");
    t.id_time = ids.strides[ids.rank - 1];
    t.id_batch = rank == 4 ? ids.strides[ids.rank - 2] : 0;
    t.id_axis = axes ? ids.strides[0] : 0;
    add_sections(a, axes, t);
    if (on_host(ids)) check_ids(p);
  }

  void add_sections(const RopeAngles& a, bool axes, AngleTables& t) const {
    std::int64_t left = axes ? t.frequencies : 0;
    const std::pair<const char*, std::int64_t> sections[] = {{"section_time", a.section_time},
                                                             {"section_height", a.section_height}};
    for (const auto& [name, size] : sections) {
      check_value(size >= 0 && size <= left, op_, ": ", name, " is ", size, ", expected 0 to ",
                  left, axes ? " (frequencies that are left)" : " (position_ids has no axes)");
      left -= size;
    }
    if (!axes) return;
    t.axis_end[0] = a.section_time;
    t.axis_end[1] = a.section_time + a.section_height;
  }

  void check_ids(const RopeProblem& p) const {
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
    check_value(a.offset >= 0, op_, ": offset is ", a.offset, ", expected 0 or more");
    t.offset = a.offset;
    t.sequences = p.batch;
    if (a.cu_seqlens.defined()) add_sequences(a.cu_seqlens, p);
    if (a.offsets.defined()) {
      t.offsets = integers("offsets", a.offsets);
      check_value(a.offsets.rank == 1, op_, ": offsets has ", a.offsets.rank,
                  " dimensions, expected 1");
      check_.packed("offsets", a.offsets, t.sequences, "sequences");
    }
    const bool lengths_known = t.cu_seqlens == nullptr || on_host(a.cu_seqlens);
    const bool offsets_known = t.offsets.data == nullptr || on_host(a.offsets);
    if (lengths_known && offsets_known) check_counted(p);
  }

  void add_sequences(const TensorView& view, RopeProblem& p) const {
    const int rank = operands_.q.view.rank;
    check_value(rank == 3, op_, ": cu_seqlens is given, expected none with q of ", rank,
                " dimensions");
    AngleTables& t = p.angles;
    t.cu_seqlens = cu_seqlens_of(op_, device_, "cu_seqlens", view, p.time, "q");
    t.sequences = view.numel() - 1;
  }

  void check_counted(const RopeProblem& p) const {
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

  void check_position(const char* name, std::int64_t position, const AngleTables& t) const {
    check_value(position >= 0 && position < t.positions, op_, ": ", name, " has position ",
                position, ", expected 0 to ", t.positions - 1, " (the rows of cos)");
  }

  void add_results(RopeProblem& p) const {
    p.q_rotated = result(operands_.q_rotated, operands_.q);
    if (operands_.k.view.defined()) {
      p.k_rotated = result(operands_.k_rotated, operands_.k);
    } else {
      check_value(!operands_.k_rotated.view.defined(), op_, ": ", operands_.k_rotated.name,
                  " is given, expected none without ", operands_.k.name);
      return;
    }
    check_apart(op_, operands_.q_rotated, operands_.k_rotated);
    check_apart(op_, operands_.q_rotated, operands_.k);
    check_apart(op_, operands_.k_rotated, operands_.q);
  }

  Heads result(const Operand& out, const Operand& of) const {
    check_.typed(out.name, out.view, of.view.dtype, "the dtype of what it is of");
    check_.same_shape(out.name, out.view, of.name, of.view);
    check_last_stride(out.name, out.view);
    check_value(!overlaps_itself(out.view), op_, ": ", out.name,
                " has rows that overlap, expected each element in a place of its own");
    check_over_or_apart(op_, out, of);
    return heads_of(out.view);
  }

  Integers integers(const char* name, const TensorView& view) const {
    check_.indices(name, view);
    return {view.data, view.dtype == DType::kInt64};
  }

  void check_last_stride(const char* name, const TensorView& view) const {
    const std::int64_t last = view.rank - 1;
    const bool even = view.sizes[last] <= 1 || view.numel() == 0 || view.strides[last] == 1;
    check_value(even, op_, ": ", name, " has a last stride of ", view.strides[last],
                ", expected 1");
  }

  const char* op_;
  Device device_;
  ArgumentChecker check_;
  const RopeOperands& operands_;
};

}  // namespace transformer_kernels
