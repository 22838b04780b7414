// SPDX-License-Identifier: MIT
#include "transformer_kernels/attention/attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "attention/problem.h"
#include "core/backends.h"
#include "core/dispatch.h"
#include "core/overlap.h"
#include "core/sequences.h"
#include "core/softcap.h"
#include "core/strides.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "attention";

constexpr Backends<AttentionForwardProblem> kForward{
    .cpu = cpu::attention_forward,
    .cuda = kHasCuda ? cuda::attention_forward : nullptr,
    .fpga = fpga::attention_forward};
constexpr Backends<AttentionBackwardProblem> kBackward{
    .cpu = cpu::attention_backward, .cuda = kHasCuda ? cuda::attention_backward : nullptr};

using Sizes = std::array<std::int64_t, 4>;

// The sizes that one call's arguments share.
struct Shape {
  DType dtype;
  std::int64_t batch;  // of the tensors: 1 with offsets
  std::int64_t queries;
  std::int64_t keys;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t dim;
  std::int64_t value_dim;
  bool with_offsets;

  Sizes q() const { return {batch, queries, heads, dim}; }
  Sizes k() const { return {batch, keys, kv_heads, dim}; }
  Sizes v() const { return {batch, keys, kv_heads, value_dim}; }
  Sizes out() const { return {batch, queries, heads, value_dim}; }
  std::int64_t rows() const { return batch * queries * heads; }
};

class Checker {
 public:
  explicit Checker(Device device) : device_(device), check_(kOp, device) {}

  Shape shape(const AttentionInputs& a) const;
  AttentionProblem problem(const AttentionInputs& a, const Shape& s) const;

  HeadRows rows(const char* name, const TensorView& view, const Shape& s, const Sizes& sizes,
                const char* of) const {
    check_.typed(name, view, s.dtype, "the dtype of q");
    check_sizes(name, view, s.with_offsets, sizes, of);
    const bool even = sizes[3] <= 1 || view.numel() == 0 || view.strides[view.rank - 1] == 1;
    check_value(even, kOp, ": ", name, " has a last stride of ", view.strides[view.rank - 1],
                ", expected 1");
    const TensorView v = with_batch(view);
    return {v.data, v.strides[0], v.strides[1], v.strides[2]};
  }

  HeadRows output(const char* name, const TensorView& view, const Shape& s, const Sizes& sizes,
                  const char* of) const {
    const HeadRows out = rows(name, view, s, sizes, of);
    check_value(!overlaps_itself(view), kOp, ": ", name,
                " has rows that overlap, expected each element in a place of its own");
    return out;
  }

  // Numbers in accumulation precision, contiguous.
  void* statistics(const char* name, const TensorView& view, const Shape& s) const {
    if (!view.defined()) return nullptr;
    check_.typed(name, view, accumulate_dtype(s.dtype), "what sums are kept in");
    check_.packed(name, view, s.rows(), "the rows of q in all heads");
    return view.data;
  }

  void* sink_gradients(const TensorView& view, const TensorView& sinks, const Shape& s) const {
    if (!view.defined()) return nullptr;
    check_value(sinks.defined(), kOp, ": dsinks is given, expected none without sinks");
    check_.typed("dsinks", view, accumulate_dtype(s.dtype), "what sums are kept in");
    check_.packed("dsinks", view, s.heads, "the heads of q");
    return view.data;
  }

  ScoreMap bias_gradient(const TensorView& view, const TensorView& bias, const Shape& s) const;

 private:
  void check_sizes(const char* name, const TensorView& view, bool with_offsets, const Sizes& sizes,
                   const char* of) const {
    const int rank = with_offsets ? 3 : 4;
    bool same = view.rank == rank;
    for (int i = 0; same && i < rank; ++i) same = view.sizes[i] == sizes[4 - rank + i];
    if (same) return;
    TensorView wanted;
    wanted.rank = rank;
    for (int i = 0; i < rank; ++i) wanted.sizes[i] = sizes[4 - rank + i];
    check_value(false, kOp, ": ", name, " has shape ", shape_of(view), ", expected ",
                shape_of(wanted), " (", of, ")");
  }

  ScoreMap scores(const char* name, const TensorView& view, const Shape& s) const;
  void numbers(const char* name, const TensorView& view, const Shape& s) const;
  HeadNumbers slopes(const TensorView& view, const Shape& s, std::int64_t batch) const;
  HeadNumbers sinks(const TensorView& view, const Shape& s) const;
  void add_offsets(const AttentionInputs& a, const Shape& s, AttentionProblem& p) const;
  void add_dropout(const AttentionInputs& a, AttentionProblem& p) const;

  Device device_;
  ArgumentChecker check_;
};

Shape Checker::shape(const AttentionInputs& a) const {
  const bool with_offsets = a.cu_seqlens_q.defined() || a.cu_seqlens_k.defined();
  const int rank = with_offsets ? 3 : 4;
  check_.floating("q", a.q);
  for (const auto& [name, view] : {std::pair{"k", &a.k}, std::pair{"v", &a.v}}) {
    check_.typed(name, *view, a.q.dtype, "the dtype of q");
  }
  for (const auto& [name, view] :
       {std::pair{"q", &a.q}, std::pair{"k", &a.k}, std::pair{"v", &a.v}}) {
    check_value(view->rank == rank, kOp, ": ", name, " has ", view->rank, " dimensions, expected ",
                rank, with_offsets ? " (time, heads, dim)" : " (batch, time, heads, dim)");
  }
  const TensorView q = with_batch(a.q);
  const TensorView k = with_batch(a.k);
  const TensorView v = with_batch(a.v);
  const Shape s{a.q.dtype,  q.sizes[0], q.sizes[1], k.sizes[1],  q.sizes[2],
                k.sizes[2], q.sizes[3], v.sizes[3], with_offsets};
  for (const auto& [name, dim] : {std::pair{"q", s.dim}, std::pair{"v", s.value_dim}}) {
    check_value(dim >= 1 && dim <= kMostDim, kOp, ": ", name, " has a head dim of ", dim,
                ", expected 1 to ", kMostDim);
  }
  const bool even = s.kv_heads > 0 ? s.heads % s.kv_heads == 0 : s.heads == 0;
  check_value(even, kOp, ": q has ", s.heads, " heads, expected a multiple of ", s.kv_heads,
              " (the heads of k)");
  return s;
}

ScoreMap Checker::scores(const char* name, const TensorView& view, const Shape& s) const {
  check_value(!s.with_offsets, kOp, ": ", name,
              " is given, expected none with cu_seqlens (sequences share no scores)");
  check_value(view.device == device_, kOp, ": ", name, " is on ", name_of(view.device.type), ":",
              view.device.index, ", expected ", name_of(device_.type), ":", device_.index);
  const Sizes sizes = {s.batch, s.heads, s.queries, s.keys};
  check_sizes(name, view, false, sizes, "scores, broadcast by strides of 0");
  const auto stride = [&](int i) { return sizes[i] == 1 ? 0 : view.strides[i]; };
  check_value(stride(3) == 0 || stride(3) == 1, kOp, ": ", name, " has a last stride of ",
              stride(3), ", expected 1 or 0");
  return {view.data, view.dtype, stride(0), stride(1), stride(2), stride(3)};
}

void Checker::numbers(const char* name, const TensorView& view, const Shape& s) const {
  check_type(is_floating(view.dtype), kOp, ": ", name, " is ", name_of(view.dtype),
             ", expected a floating-point dtype");
  check_.typed(name, view, accumulate_dtype(s.dtype), "what sums are kept in");
}

HeadNumbers Checker::slopes(const TensorView& view, const Shape& s, std::int64_t batch) const {
  if (!view.defined()) return {};
  numbers("alibi_slopes", view, s);
  check_value(view.rank == 2 && view.sizes[0] == batch && view.sizes[1] == s.heads, kOp,
              ": alibi_slopes has shape ", shape_of(view), ", expected (", batch, ", ", s.heads,
              ") (batch and heads of q), broadcast by strides of 0");
  return {view.data, view.strides[0], view.strides[1]};
}

HeadNumbers Checker::sinks(const TensorView& view, const Shape& s) const {
  if (!view.defined()) return {};
  numbers("sinks", view, s);
  check_value(view.rank == 1, kOp, ": sinks has ", view.rank, " dimensions, expected 1");
  check_.packed("sinks", view, s.heads, "the heads of q");
  return {view.data, 0, 1};
}

void Checker::add_offsets(const AttentionInputs& a, const Shape& s, AttentionProblem& p) const {
  check_value(a.cu_seqlens_q.defined() && a.cu_seqlens_k.defined(), kOp,
              ": one of cu_seqlens_q and cu_seqlens_k is missing, expected both or neither");
  p.q_offsets = cu_seqlens_of(kOp, device_, "cu_seqlens_q", a.cu_seqlens_q, s.queries, "q");
  p.k_offsets = cu_seqlens_of(kOp, device_, "cu_seqlens_k", a.cu_seqlens_k, s.keys, "k");
  p.batch = a.cu_seqlens_q.numel() - 1;
  check_value(a.cu_seqlens_k.numel() - 1 == p.batch, kOp, ": cu_seqlens_k has ",
              a.cu_seqlens_k.numel() - 1, " sequences, expected ", p.batch,
              " (those of cu_seqlens_q)");
}

void Checker::add_dropout(const AttentionInputs& a, AttentionProblem& p) const {
  p.drop_below = static_cast<std::uint32_t>(std::lrint(a.dropout * 65536));
  check_value(a.seed.defined() || a.dropout == 0, kOp,
              ": seed is missing, expected one for dropout");
  if (!a.seed.defined()) return;
  const bool on_cpu = a.seed.device.type == DeviceType::kCpu;
  const bool fits = (on_cpu || a.seed.device == device_) && a.seed.dtype == DType::kInt64 &&
                    a.seed.rank == 1 && a.seed.sizes[0] == 2 && a.seed.strides[0] == 1;
  check_value(fits, kOp,
              ": seed is not a seed and an offset, expected 2 int64 on the CPU or beside q");
  const auto* const numbers = static_cast<const std::uint64_t*>(a.seed.data);
  if (!on_cpu) {
    p.seed_data = numbers;
    return;
  }
  p.seed = numbers[0];
  p.offset = numbers[1];
}

void check_options(const AttentionInputs& a) {
  check_value(!a.scale || std::isfinite(*a.scale), kOp, ": scale is ", a.scale.value_or(0),
              ", expected a finite number");
  check_softcap(kOp, "softcap", a.softcap);
  check_value(a.dropout >= 0 && a.dropout <= 1, kOp, ": dropout is ", a.dropout,
              ", expected a number from 0 to 1");
  for (const auto& [name, size] :
       {std::pair{"window_left", a.window_left}, std::pair{"window_right", a.window_right}}) {
    check_value(size >= -1, kOp, ": ", name, " is ", size, ", expected -1 (no bound) or above");
  }
}

// A bound that hides nothing is none: plans without windows take it, and no sum of it and a place
// overflows.
std::int64_t bound_of(std::int64_t window, const Shape& s) {
  return window < std::max(s.queries, s.keys) ? window : -1;
}

AttentionProblem Checker::problem(const AttentionInputs& a, const Shape& s) const {
  AttentionProblem p{};
  p.dtype = s.dtype;
  p.batch = s.batch;
  p.heads = s.heads;
  p.kv_heads = s.kv_heads;
  p.dim = s.dim;
  p.value_dim = s.value_dim;
  p.queries = s.queries;
  p.keys = s.keys;
  p.q = rows("q", a.q, s, s.q(), "its own");
  p.k = rows("k", a.k, s, s.k(), "q and the heads of k");
  p.v = rows("v", a.v, s, s.v(), "k and the dim of v");
  if (s.with_offsets) add_offsets(a, s, p);
  if (a.bias.defined()) {
    check_type(a.bias.dtype == s.dtype || a.bias.dtype == accumulate_dtype(s.dtype), kOp,
               ": bias is ", name_of(a.bias.dtype), ", expected ", name_of(s.dtype),
               size_of(s.dtype) < 4 ? " or float32" : "");
    p.bias = scores("bias", a.bias, s);
  }
  if (a.mask.defined()) {
    check_type(a.mask.dtype == DType::kBool, kOp, ": mask is ", name_of(a.mask.dtype),
               ", expected bool");
    p.mask = scores("mask", a.mask, s);
  }
  p.slopes = slopes(a.alibi_slopes, s, p.batch);
  p.sinks = sinks(a.sinks, s);
  check_options(a);
  p.scale = a.scale.value_or(1 / std::sqrt(static_cast<double>(s.dim)));
  p.softcap = a.softcap;
  p.window_left = bound_of(a.window_left, s);
  p.window_right = bound_of(a.causal ? 0 : a.window_right, s);
  p.bottom_right = a.diagonal == Diagonal::kBottomRight;
  add_dropout(a, p);
  return p;
}

ScoreMap Checker::bias_gradient(const TensorView& view, const TensorView& bias,
                                const Shape& s) const {
  if (!view.defined()) return {};
  check_value(bias.defined(), kOp, ": dbias is given, expected none without bias");
  check_.typed("dbias", view, accumulate_dtype(s.dtype), "what sums are kept in");
  Sizes sizes = {s.batch, s.heads, s.queries, s.keys};
  std::int64_t count = 1;
  for (int i = 0; i < 4; ++i) {
    if (bias.strides[i] == 0) sizes[i] = 1;
    count *= sizes[i];
  }
  check_sizes("dbias", view, false, sizes, "bias, 1 where it is broadcast");
  check_.packed("dbias", view, count, "bias, 1 where it is broadcast");
  const auto stride = [&](int i) { return sizes[i] == 1 ? 0 : view.strides[i]; };
  return {view.data, view.dtype, stride(0), stride(1), stride(2), stride(3)};
}

AttentionForwardProblem check_forward(Device device, const AttentionForward& a) {
  const Checker check(device);
  const Shape s = check.shape(a.inputs);
  AttentionForwardProblem p{check.problem(a.inputs, s), {}, nullptr, nullptr};
  p.out = check.output("out", a.out, s, s.out(), "q and the dim of v");
  p.lse = check.statistics("lse", a.lse, s);
  p.lse_rest = check.statistics("lse_rest", a.lse_rest, s);
  const AttentionInputs& in = a.inputs;
  check_apart(kOp, {{"out", a.out}, {"lse", a.lse}, {"lse_rest", a.lse_rest}},
              {{"q", in.q},
               {"k", in.k},
               {"v", in.v},
               {"bias", in.bias},
               {"mask", in.mask},
               {"alibi_slopes", in.alibi_slopes},
               {"sinks", in.sinks}});
  return p;
}

AttentionBackwardProblem check_backward(Device device, const AttentionBackward& a) {
  const Checker check(device);
  const AttentionInputs& in = a.inputs;
  const Shape s = check.shape(in);
  AttentionBackwardProblem p{};
  static_cast<AttentionProblem&>(p) = check.problem(in, s);
  p.out = check.rows("out", a.out, s, s.out(), "q and the dim of v");
  p.dout = check.rows("dout", a.dout, s, s.out(), "the shape of out");
  check_value(a.lse.defined(), kOp, ": lse is missing");
  p.lse = check.statistics("lse", a.lse, s);
  p.lse_rest = check.statistics("lse_rest", a.lse_rest, s);
  p.dlse = check.statistics("dlse", a.dlse, s);
  p.dq = check.output("dq", a.dq, s, s.q(), "the shape of q");
  p.dk = check.output("dk", a.dk, s, s.k(), "the shape of k");
  p.dv = check.output("dv", a.dv, s, s.v(), "the shape of v");
  p.dbias = check.bias_gradient(a.dbias, in.bias, s);
  p.dbias_count = a.dbias.defined() ? a.dbias.numel() : 0;
  p.dsinks = check.sink_gradients(a.dsinks, in.sinks, s);
  p.deterministic = a.deterministic;
  check_apart(kOp,
              {{"dq", a.dq}, {"dk", a.dk}, {"dv", a.dv}, {"dbias", a.dbias}, {"dsinks", a.dsinks}},
              {{"q", in.q},
               {"k", in.k},
               {"v", in.v},
               {"bias", in.bias},
               {"mask", in.mask},
               {"alibi_slopes", in.alibi_slopes},
               {"sinks", in.sinks},
               {"out", a.out},
               {"dout", a.dout},
               {"lse", a.lse},
               {"lse_rest", a.lse_rest},
               {"dlse", a.dlse}});
  return p;
}

std::string describe_problem(const char* pass, const AttentionProblem& p) {
  return concat(pass, " ", name_of(p.dtype), " B", p.batch, " H", p.heads, "/", p.kv_heads, " T",
                p.queries, "x", p.keys, " D", p.dim, p.value_dim == p.dim ? "" : " Dv",
                p.value_dim == p.dim ? "" : std::to_string(p.value_dim),
                p.q_offsets ? " varlen" : "", p.window_right == 0 ? " causal" : "",
                p.window_left >= 0 ? " window" : "", p.bias.defined() ? " + bias" : "",
                p.mask.defined() ? " + mask" : "", p.slopes.data ? " + alibi" : "",
                p.softcap != 0 ? " softcap" : "", p.sinks.data ? " + sinks" : "",
                p.drop_below != 0 ? " dropout" : "");
}

}  // namespace

std::string describe(const AttentionForwardProblem& p) { return describe_problem("forward", p); }

std::string describe(const AttentionBackwardProblem& p) {
  return concat(describe_problem("backward", p), p.deterministic ? " deterministic" : "");
}

void attention_forward(const Context& context, const AttentionForward& arguments) {
  const AttentionForwardProblem problem = check_forward(context.device, arguments);
  if (problem.rows() == 0) return;
  run_on(kOp, kForward, context, problem);
}

void attention_backward(const Context& context, const AttentionBackward& arguments) {
  const AttentionBackwardProblem problem = check_backward(context.device, arguments);
  run_on(kOp, kBackward, context, problem);
}

}  // namespace transformer_kernels
