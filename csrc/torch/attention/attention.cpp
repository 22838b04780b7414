// SPDX-License-Identifier: MIT
#include "transformer_kernels/attention/attention.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <tuple>

#include "core/check.h"
#include "core/dispatch.h"
#include "torch/on_array.h"

namespace transformer_kernels::torch_ops {
namespace {

constexpr const char* kOp = "attention";

// The arguments that the forward and the backward op share.
struct SharedArguments : AttentionInputs {
  std::optional<Tensor> bias_tensor;
  bool top_left;
  bool deterministic;  // the forward pass always is
};

template <class A>
constexpr auto shared_fields() {
  return std::tuple(tensor("q", &A::q, with_even_columns), tensor("k", &A::k, with_even_columns),
                    tensor("v", &A::v, with_even_columns),
                    optional("bias", &A::bias_tensor, with_broadcast_columns),
                    optional("mask", &A::mask, with_broadcast_columns),
                    optional("alibi_slopes", &A::alibi_slopes), parameter("sinks", &A::sinks),
                    optional("cu_seqlens_q", &A::cu_seqlens_q),
                    optional("cu_seqlens_k", &A::cu_seqlens_k), optional("seed", &A::seed),
                    real("scale", &A::scale), integer("window_left", &A::window_left),
                    integer("window_right", &A::window_right), flag("top_left", &A::top_left),
                    real("softcap", &A::softcap), real("dropout", &A::dropout),
                    flag("deterministic", &A::deterministic));
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

// The arguments of the C++ function. `a` owns the bias's memory.
AttentionInputs inputs_of(SharedArguments& a, bool need_dbias) {
  AttentionInputs in = a;
  in.bias = view_of(kOp, "bias", a.bias_tensor);
  if (need_dbias && is_expanded(in.bias)) {
    a.bias_tensor = torch::stable::contiguous(*a.bias_tensor);
    in.bias = view_of(kOp, "bias", a.bias_tensor);
  }
  broadcast_scores("bias", in, in.bias);
  broadcast_scores("mask", in, in.mask);
  broadcast_slopes(in, in.alibi_slopes);
  in.diagonal = a.top_left ? Diagonal::kTopLeft : Diagonal::kBottomRight;
  return in;
}

// (batch, heads, queries), of packed sequences (heads, queries).
Tensor empty_lse(const TensorView& q) {
  const DType dtype = accumulate_dtype(q.dtype);
  if (q.rank == 3) return empty(q.device, std::array{q.sizes[1], q.sizes[0]}, dtype);
  return empty(q.device, std::array{q.sizes[0], q.sizes[2], q.sizes[1]}, dtype);
}

// Without lse_rest there is nothing to differentiate from.
template <bool kDifferentiated>
struct Forward {
  using Arguments = SharedArguments;
  static constexpr const char* kOp = torch_ops::kOp;
  static constexpr auto kLike = &Arguments::q;
  static constexpr auto kFields = shared_fields<Arguments>();
  static std::string name() {
    return kDifferentiated ? "attention_forward" : "attention_inference";
  }
  static std::string returns() {
    return kDifferentiated ? "(Tensor out, Tensor lse, Tensor lse_rest)"
                           : "(Tensor out, Tensor lse)";
  }
  static std::int64_t head_dim(const Arguments& a) {
    const auto last = [](const TensorView& x) { return x.rank > 0 ? x.sizes[x.rank - 1] : 0; };
    return std::max(last(a.q), last(a.v));
  }

  static auto run(const Context& context, Arguments& a) {
    AttentionForward call{.inputs = inputs_of(a, false), .out = {}};
    const AttentionInputs& in = call.inputs;
    const int rank = in.cu_seqlens_q.defined() ? 3 : 4;
    for (const auto& [name, view] : {std::pair{"q", &in.q}, std::pair{"v", &in.v}}) {
      check_value(view->rank == rank, kOp, ": ", name, " has ", view->rank,
                  " dimensions, expected ", rank,
                  rank == 3 ? " (time, heads, dim)" : " (batch, time, heads, dim)");
    }
    std::array<std::int64_t, TensorView::kMaxRank> sizes = in.q.sizes;
    sizes[rank - 1] = in.v.sizes[rank - 1];
    const Tensor out = empty_heads(in.q, {sizes.data(), static_cast<std::size_t>(rank)});
    call.out = view_of(kOp, "out", out);
    const auto lse = result(call.lse, empty_lse, in.q);
    if constexpr (kDifferentiated) {
      const auto rest = result(call.lse_rest, empty_lse, in.q);
      attention_forward(context, call);
      return std::tuple_cat(std::tuple(out), lse, rest);
    } else {
      attention_forward(context, call);
      return std::tuple_cat(std::tuple(out), lse);
    }
  }
};

struct BackwardArguments : SharedArguments {
  TensorView dout, dlse, out, lse, lse_rest;
  bool need_dbias, need_dsinks;
};

// (batch, heads, queries, keys), 1 where the bias is broadcast.
Tensor empty_bias_gradient(const AttentionInputs& in) {
  std::array<std::int64_t, 4> sizes{};
  for (int i = 0; i < 4; ++i) sizes[i] = in.bias.strides[i] == 0 ? 1 : in.bias.sizes[i];
  return empty(in.q.device, sizes, accumulate_dtype(in.q.dtype));
}

struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = torch_ops::kOp;
  static constexpr auto kLike = &Arguments::q;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(tensor("dout", &Arguments::dout, with_even_columns),
                                optional("dlse", &Arguments::dlse, contiguous),
                                tensor("out", &Arguments::out, with_even_columns),
                                tensor("lse", &Arguments::lse, contiguous),
                                tensor("lse_rest", &Arguments::lse_rest, contiguous)),
                     shared_fields<Arguments>(),
                     std::tuple(flag("need_dbias", &Arguments::need_dbias),
                                flag("need_dsinks", &Arguments::need_dsinks)));
  static std::string name() { return "attention_backward"; }
  static std::string returns() {
    return "(Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsinks)";
  }

  static auto run(const Context& context, Arguments& a) {
    AttentionBackward call{.inputs = inputs_of(a, a.need_dbias),
                           .out = a.out,
                           .lse = a.lse,
                           .lse_rest = a.lse_rest,
                           .dout = a.dout,
                           .dlse = a.dlse,
                           .dq = {},
                           .dk = {},
                           .dv = {},
                           .deterministic = a.deterministic};
    const AttentionInputs& in = call.inputs;
    auto results =
        std::tuple_cat(result(call.dq, new_heads_like, in.q), result(call.dk, new_heads_like, in.k),
                       result(call.dv, new_heads_like, in.v));
    const Tensor dbias = a.need_dbias ? empty_bias_gradient(in) : absent(in.q);
    if (a.need_dbias) call.dbias = view_of(kOp, "dbias", dbias);
    const std::int64_t heads[] = {in.sinks.sizes[0]};
    const Tensor dsinks =
        a.need_dsinks ? empty(in.q.device, heads, accumulate_dtype(in.q.dtype)) : absent(in.q);
    if (a.need_dsinks) call.dsinks = view_of(kOp, "dsinks", dsinks);
    attention_backward(context, call);
    return std::tuple_cat(results, std::tuple(dbias, dsinks));
  }
};

using Ops = RawOps<Forward<true>, Forward<false>, Backward>;
using ArrayOps = RawOps<OnArray<Forward<true>>>;

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) {
  Ops::define(m);
  ArrayOps::define(m);
}
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) {
  Ops::implement(m);
  ArrayOps::implement(m);
}
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) Ops::implement(m);
}

}  // namespace transformer_kernels::torch_ops
