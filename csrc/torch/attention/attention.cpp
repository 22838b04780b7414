// SPDX-License-Identifier: MIT
#include "transformer_kernels/attention/attention.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "core/check.h"
#include "core/dispatch.h"
#include "torch/on_array.h"

namespace transformer_kernels::torch_ops {
namespace {

constexpr const char* kOp = "attention";

// The arguments of an op: those of the pass in C++, and two that PyTorch's callers give.
template <class Pass>
struct With : Pass {
  std::optional<Tensor> bias_tensor;
  bool top_left;
};

template <class A>
constexpr auto shared_fields() {
  const auto in = [](auto member) { return within(&A::inputs, member); };
  using In = AttentionInputs;
  return std::tuple(
      tensor("q", in(&In::q), with_even_columns), tensor("k", in(&In::k), with_even_columns),
      tensor("v", in(&In::v), with_even_columns),
      optional("bias", in(&In::bias), &A::bias_tensor, with_broadcast_columns),
      optional("mask", in(&In::mask), with_broadcast_columns),
      optional("alibi_slopes", in(&In::alibi_slopes)), parameter("sinks", in(&In::sinks)),
      optional("cu_seqlens_q", in(&In::cu_seqlens_q)),
      optional("cu_seqlens_k", in(&In::cu_seqlens_k)), optional("seed", in(&In::seed)),
      real("scale", in(&In::scale)), integer("window_left", in(&In::window_left)),
      integer("window_right", in(&In::window_right)), flag("top_left", &A::top_left),
      real("softcap", in(&In::softcap)), real("dropout", in(&In::dropout)));
}

void broadcast_scores(const char* name, const AttentionInputs& in, TensorView& view) {
  if (!view.defined() || in.q.rank != 4 || in.k.rank != 4) return;  // the checks will say why not
  const TensorView scores =
      TensorView::contiguous(nullptr, view.dtype, view.device,
                             {in.q.sizes[0], in.q.sizes[2], in.q.sizes[1], in.k.sizes[1]});
  view = broadcast_to(kOp, name, view, scores, "batch, heads, queries, keys");
}

void broadcast_slopes(const AttentionInputs& in, TensorView& view) {
  if (!view.defined()) return;
  const bool packed = in.cu_seqlens_q.defined();
  const std::int64_t batch = packed ? in.cu_seqlens_q.numel() - 1 : in.q.sizes[0];
  const TensorView wanted =
      TensorView::contiguous(nullptr, view.dtype, view.device, {batch, in.q.sizes[packed ? 1 : 2]});
  view = broadcast_to(kOp, "alibi_slopes", view, wanted, "batch and heads of q");
}

// An expanded bias is one of its full size to those who want its gradient.
bool is_expanded(const TensorView& view) {
  for (int i = 0; i < view.rank; ++i) {
    if (view.sizes[i] > 1 && view.strides[i] == 0) return true;
  }
  return false;
}

// The inputs as C++ takes them. `a` owns the bias's memory.
template <class A>
void complete_inputs(A& a, bool need_dbias) {
  AttentionInputs& in = a.inputs;
  if (need_dbias && a.bias_tensor && is_expanded(in.bias)) {
    a.bias_tensor = torch::stable::contiguous(*a.bias_tensor);
    in.bias = view_of(kOp, "bias", a.bias_tensor);
  }
  broadcast_scores("bias", in, in.bias);
  if (in.mask.dtype == DType::kBool) broadcast_scores("mask", in, in.mask);  // or it is refused
  broadcast_slopes(in, in.alibi_slopes);
  in.diagonal = a.top_left ? Diagonal::kTopLeft : Diagonal::kBottomRight;
}

// Without lse_rest there is nothing to differentiate from.
template <bool kDifferentiated>
struct Forward {
  using Arguments = With<AttentionForward>;
  static constexpr const char* kOp = torch_ops::kOp;
  static constexpr const char* kPass = kDifferentiated ? "_forward" : "_inference";
  static constexpr auto* kCall = attention_forward;
  static constexpr auto kLike = within(&Arguments::inputs, &AttentionInputs::q);
  // The forward pass is always deterministic.
  static constexpr auto kFields =
      std::tuple_cat(shared_fields<Arguments>(), std::tuple(unused<bool>("deterministic")));
  // (batch, heads, queries), of packed sequences (heads, queries).
  static TensorView layout_of_lse(const TensorView& q) {
    const DType dtype = accumulate_dtype(q.dtype);
    if (q.rank == 3) return layout_of(q.device, std::array{q.sizes[1], q.sizes[0]}, dtype);
    return layout_of(q.device, std::array{q.sizes[0], q.sizes[2], q.sizes[1]}, dtype);
  }
  static TensorView layout_of_out(const Arguments& a) {
    TensorView like = a.inputs.q;
    like.sizes[like.rank - 1] = a.inputs.v.sizes[like.rank - 1];
    return heads_like(like);
  }
  static constexpr auto kResults = std::tuple_cat(
      std::tuple(result("out", &Arguments::out, layout_of_out),
                 result("lse", &Arguments::lse, layout_of_lse, kLike)),
      fields_if<kDifferentiated>(result("lse_rest", &Arguments::lse_rest, layout_of_lse, kLike)));

  static std::int64_t head_dim(const Arguments& a) {
    const auto last = [](const TensorView& x) { return x.rank > 0 ? x.sizes[x.rank - 1] : 0; };
    return std::max(last(a.inputs.q), last(a.inputs.v));
  }

  static void prepare(Arguments& a) {
    complete_inputs(a, false);
    const AttentionInputs& in = a.inputs;
    const int rank = in.cu_seqlens_q.defined() ? 3 : 4;
    for (const auto& [name, view] : {std::pair{"q", &in.q}, std::pair{"v", &in.v}}) {
      check_value(view->rank == rank, kOp, ": ", name, " has ", view->rank,
                  " dimensions, expected ", rank,
                  rank == 3 ? " (time, heads, dim)" : " (batch, time, heads, dim)");
    }
  }
};

struct BackwardArguments : With<AttentionBackward> {
  bool need_dbias, need_dsinks;
};

struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = torch_ops::kOp;
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = attention_backward;
  static constexpr auto kLike = within(&Arguments::inputs, &AttentionInputs::q);
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(tensor("dout", &Arguments::dout, with_even_columns),
                                optional("dlse", &Arguments::dlse, contiguous),
                                tensor("out", &Arguments::out, with_even_columns),
                                tensor("lse", &Arguments::lse, contiguous),
                                tensor("lse_rest", &Arguments::lse_rest, contiguous)),
                     shared_fields<Arguments>(),
                     std::tuple(flag("deterministic", &Arguments::deterministic),
                                flag("need_dbias", &Arguments::need_dbias),
                                flag("need_dsinks", &Arguments::need_dsinks)));

  // (batch, heads, queries, keys), 1 where the bias is broadcast.
  static TensorView layout_of_dbias(const Arguments& a) {
    if (!a.need_dbias) return {};
    const TensorView& bias = a.inputs.bias;
    std::array<std::int64_t, 4> sizes{};
    for (int i = 0; i < 4; ++i) sizes[i] = bias.strides[i] == 0 ? 1 : bias.sizes[i];
    return layout_of(a.inputs.q.device, sizes, accumulate_dtype(a.inputs.q.dtype));
  }
  static TensorView layout_of_dsinks(const Arguments& a) {
    if (!a.need_dsinks) return {};
    const TensorView& q = a.inputs.q;
    return layout_of(q.device, std::array{a.inputs.sinks.sizes[0]}, accumulate_dtype(q.dtype));
  }
  static constexpr auto kResults = std::tuple(
      result("dq", &Arguments::dq, heads_like, kLike),
      result("dk", &Arguments::dk, heads_like, within(&Arguments::inputs, &AttentionInputs::k)),
      result("dv", &Arguments::dv, heads_like, within(&Arguments::inputs, &AttentionInputs::v)),
      result("dbias", &Arguments::dbias, layout_of_dbias),
      result("dsinks", &Arguments::dsinks, layout_of_dsinks));

  static void prepare(Arguments& a) { complete_inputs(a, a.need_dbias); }
};

using Ops = RawOps<Forward<true>, Forward<false>, Backward>;
using ArrayOps = RawOps<OnArray<Forward<true>>>;

}  // namespace

TFK_RAW_OPS(Ops)
TFK_RAW_OPS_ON_ARRAY(ArrayOps)

}  // namespace transformer_kernels::torch_ops
