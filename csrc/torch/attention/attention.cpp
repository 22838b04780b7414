// SPDX-License-Identifier: MIT
#include "transformer_kernels/attention/attention.h"

#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "core/backends.h"
#include "core/check.h"
#include "core/dispatch.h"
#include "core/log.h"
#include "torch/convert.h"

namespace transformer_kernels::torch_ops {
namespace {

constexpr const char* kOp = "attention";

using Optional = std::optional<Tensor>;

// Heads whose rows have a last stride of 1; others are copied (logged).
Tensor with_even_heads(const char* name, const Tensor& tensor) {
  const std::int64_t last = tensor.dim() - 1;
  if (last < 0 || tensor.size(last) <= 1 || tensor.stride(last) == 1) return tensor;
  if (log_dispatch()) log_line(concat(kOp, ": ", name, " has a last stride above 1: copied"));
  return torch::stable::contiguous(tensor);
}

// Memory for (batch, time, heads, dim), in the order that `like` has its heads and rows in, as
// PyTorch's own attention does.
Tensor empty_heads(const Tensor& like, std::span<const std::int64_t> sizes, DType dtype) {
  if (sizes.size() != 4 || like.stride(2) <= like.stride(1)) return empty(like, sizes, dtype);
  const std::int64_t swapped[] = {sizes[0], sizes[2], sizes[1], sizes[3]};
  return torch::stable::transpose(empty(like, swapped, dtype), 1, 2);
}

Tensor empty_heads_like(const Tensor& x, DType dtype) {
  const auto sizes = x.sizes();
  return empty_heads(x, {sizes.data(), sizes.size()}, dtype);
}

// An expanded bias is one of its full size to those who want its gradient.
bool is_expanded(const Tensor& tensor) {
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) == 0) return true;
  }
  return false;
}

SequenceOffsets offsets_of(const char* name, const Optional& tensor, const Tensor& q) {
  if (!tensor) return {};
  check_value(tensor->is_cpu() == q.is_cpu() && tensor->get_device_index() == q.get_device_index(),
              kOp, ": ", name, " is on another device than q");
  check_type(tensor->scalar_type() == torch::headeronly::ScalarType::Int, kOp, ": ", name, " is ",
             name_of_scalar(tensor->scalar_type()), ", expected int32");
  check_value(tensor->dim() == 1 && tensor->numel() > 0 && tensor->is_contiguous(), kOp, ": ", name,
              " has ", tensor->dim(), " dimensions and ", tensor->numel(),
              " elements, expected contiguous memory of one dimension, one more than sequences");
  return {static_cast<const std::int32_t*>(tensor->data_ptr()), tensor->numel() - 1};
}

// The arguments that the forward and the backward op share, in the order of the schema.
struct Arguments {
  Tensor q, k, v;
  Optional bias, mask, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seed;
  double scale;
  std::int64_t window_left, window_right;
  bool top_left;
  double softcap, dropout;

  AttentionInputs inputs() const;
};

TensorView scores_view(const char* name, const Optional& tensor, const AttentionInputs& in) {
  if (!tensor) return {};
  const TensorView view = view_of(kOp, name, *tensor);
  if (in.q.rank != 4 || in.k.rank != 4) return view;  // the checks of the op will say why not
  const TensorView scores =
      TensorView::contiguous(nullptr, view.dtype, view.device,
                             {in.q.sizes[0], in.q.sizes[2], in.q.sizes[1], in.k.sizes[1]});
  return broadcast_to(kOp, name, view, scores, "batch, heads, queries, keys");
}

TensorView slopes_view(const Optional& tensor, const AttentionInputs& in) {
  if (!tensor) return {};
  const TensorView view = view_of(kOp, "alibi_slopes", *tensor);
  const bool with_offsets = in.cu_seqlens_q.data != nullptr;
  const std::int64_t batch = with_offsets ? in.cu_seqlens_q.sequences : in.q.sizes[0];
  const TensorView wanted = TensorView::contiguous(nullptr, view.dtype, view.device,
                                                   {batch, in.q.sizes[with_offsets ? 1 : 2]});
  return broadcast_to(kOp, "alibi_slopes", view, wanted, "batch and heads of q");
}

// Numbers on the CPU go by value. Those of a device stay there: a CUDA graph that draws new ones
// drops other elements at each replay.
void set_seed(const Tensor& seed, AttentionInputs& in) {
  const bool near = seed.is_cpu() || (seed.is_cuda() && in.q.device.type == DeviceType::kCuda &&
                                      seed.get_device_index() == in.q.device.index);
  check_value(near && seed.scalar_type() == torch::headeronly::ScalarType::Long &&
                  seed.numel() == 2 && seed.is_contiguous(),
              kOp, ": seed is not a seed and an offset, expected 2 int64 on the CPU or beside q");
  const auto* const numbers = static_cast<const std::uint64_t*>(seed.data_ptr());
  if (!seed.is_cpu()) {
    in.seed_data = numbers;
    return;
  }
  in.seed = numbers[0];
  in.offset = numbers[1];
}

AttentionInputs Arguments::inputs() const {
  AttentionInputs in;
  in.q = view_of(kOp, "q", q);
  in.k = view_of(kOp, "k", k);
  in.v = view_of(kOp, "v", v);
  in.cu_seqlens_q = offsets_of("cu_seqlens_q", cu_seqlens_q, q);
  in.cu_seqlens_k = offsets_of("cu_seqlens_k", cu_seqlens_k, q);
  in.bias = scores_view("bias", bias, in);
  in.mask = scores_view("mask", mask, in);
  in.alibi_slopes = slopes_view(alibi_slopes, in);
  in.sinks = view_of(kOp, "sinks", sinks);
  in.scale = scale;
  in.window_left = window_left;
  in.window_right = window_right;
  in.diagonal = top_left ? Diagonal::kTopLeft : Diagonal::kBottomRight;
  in.softcap = softcap;
  in.dropout = dropout;
  if (seed) set_seed(*seed, in);
  check_value(seed.has_value() || dropout == 0, kOp, ": seed is missing, expected one for dropout");
  return in;
}

Arguments arguments_of(const Tensor& q, const Tensor& k, const Tensor& v, const Optional& bias,
                       const Optional& mask, const Optional& alibi_slopes, const Optional& sinks,
                       const Optional& cu_seqlens_q, const Optional& cu_seqlens_k,
                       const Optional& seed, double scale, std::int64_t window_left,
                       std::int64_t window_right, bool top_left, double softcap, double dropout) {
  return {with_even_heads("q", q),
          with_even_heads("k", k),
          with_even_heads("v", v),
          with_even_columns(bias),
          with_even_columns(mask),
          alibi_slopes,
          sinks ? Optional(torch::stable::contiguous(*sinks)) : sinks,
          cu_seqlens_q,
          cu_seqlens_k,
          seed,
          scale,
          window_left,
          window_right,
          top_left,
          softcap,
          dropout};
}

std::tuple<Tensor, Tensor> attention_forward_op(const Tensor& q, const Tensor& k, const Tensor& v,
                                                Optional bias, Optional mask, Optional alibi_slopes,
                                                Optional sinks, Optional cu_seqlens_q,
                                                Optional cu_seqlens_k, Optional seed, double scale,
                                                std::int64_t window_left, std::int64_t window_right,
                                                bool top_left, double softcap, double dropout) {
  return translate_errors([&] {
    const Arguments a =
        arguments_of(q, k, v, bias, mask, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seed,
                     scale, window_left, window_right, top_left, softcap, dropout);
    const CallContext context(a.q);
    const AttentionInputs in = a.inputs();
    const int rank = in.cu_seqlens_q.data ? 3 : 4;
    for (const auto& [name, view] : {std::pair{"q", &in.q}, std::pair{"v", &in.v}}) {
      check_value(view->rank == rank, kOp, ": ", name, " has ", view->rank,
                  " dimensions, expected ", rank,
                  rank == 3 ? " (time, heads, dim)" : " (batch, time, heads, dim)");
    }
    std::array<std::int64_t, 4> sizes{};
    for (int i = 0; i < rank - 1; ++i) sizes[i] = in.q.sizes[i];
    sizes[rank - 1] = in.v.sizes[rank - 1];
    Tensor out = empty_heads(q, {sizes.data(), static_cast<std::size_t>(rank)}, in.q.dtype);
    const std::array<std::int64_t, 3> rows = {in.q.sizes[0], in.q.sizes[2], in.q.sizes[1]};
    const std::array<std::int64_t, 2> joined_rows = {in.q.sizes[1], in.q.sizes[0]};
    using Sizes = std::span<const std::int64_t>;
    Tensor lse =
        empty(a.q, rank == 3 ? Sizes(joined_rows) : Sizes(rows), accumulate_dtype(in.q.dtype));
    attention_forward(context, {in, view_of(kOp, "out", out), view_of(kOp, "lse", lse)});
    return std::tuple(out, lse);
  });
}

// A gradient for bias, of 4 dimensions.
Tensor bias_gradient(const Tensor& q, const AttentionInputs& in) {
  std::array<std::int64_t, 4> sizes{};
  for (int i = 0; i < 4; ++i) sizes[i] = in.bias.strides[i] == 0 ? 1 : in.bias.sizes[i];
  return empty(q, sizes, accumulate_dtype(in.q.dtype));
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> attention_backward_op(
    const Tensor& dout, Optional dlse, const Tensor& out, const Tensor& lse, const Tensor& q,
    const Tensor& k, const Tensor& v, Optional bias, Optional mask, Optional alibi_slopes,
    Optional sinks, Optional cu_seqlens_q, Optional cu_seqlens_k, Optional seed, double scale,
    std::int64_t window_left, std::int64_t window_right, bool top_left, double softcap,
    double dropout, bool with_bias, bool with_sinks, bool deterministic) {
  return translate_errors([&] {
    if (with_bias && bias && is_expanded(*bias)) bias = torch::stable::contiguous(*bias);
    const Arguments a =
        arguments_of(q, k, v, bias, mask, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seed,
                     scale, window_left, window_right, top_left, softcap, dropout);
    const CallContext context(a.q);
    const Tensor even_out = with_even_heads("out", out);
    const Tensor even_dout = with_even_heads("dout", dout);
    const Optional even_dlse = dlse ? Optional(torch::stable::contiguous(*dlse)) : dlse;
    const Tensor even_lse = torch::stable::contiguous(lse);
    AttentionBackward b;
    b.inputs = a.inputs();
    Tensor dq = empty_heads_like(q, b.inputs.q.dtype);
    Tensor dk = empty_heads_like(k, b.inputs.q.dtype);
    Tensor dv = empty_heads_like(v, b.inputs.q.dtype);
    Tensor dbias = with_bias ? bias_gradient(a.q, b.inputs) : absent(a.q);
    Tensor dsinks = absent(a.q);
    if (with_sinks) {
      const std::int64_t heads[] = {b.inputs.sinks.sizes[0]};
      dsinks = empty(a.q, heads, accumulate_dtype(b.inputs.q.dtype));
      b.dsinks = view_of(kOp, "dsinks", dsinks);
    }
    b.out = view_of(kOp, "out", even_out);
    b.lse = view_of(kOp, "lse", even_lse);
    b.dout = view_of(kOp, "dout", even_dout);
    b.dlse = view_of(kOp, "dlse", even_dlse);
    b.dq = view_of(kOp, "dq", dq);
    b.dk = view_of(kOp, "dk", dk);
    b.dv = view_of(kOp, "dv", dv);
    if (with_bias) b.dbias = view_of(kOp, "dbias", dbias);
    b.deterministic = deterministic;
    attention_backward(context, b);
    return std::tuple(dq, dk, dv, dbias, dsinks);
  });
}

template <class Library>
void implement(Library& m) {
  m.impl("attention_forward", TORCH_BOX(&attention_forward_op));
  m.impl("attention_backward", TORCH_BOX(&attention_backward_op));
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) {
  m.def(
      "attention_forward(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask, "
      "Tensor? alibi_slopes, Tensor? sinks, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
      "Tensor? seed, float scale, int window_left, int window_right, bool top_left, "
      "float softcap, float dropout) -> (Tensor, Tensor)");
  m.def(
      "attention_backward(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, "
      "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask, "
      "Tensor? alibi_slopes, Tensor? sinks, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
      "Tensor? seed, float scale, int window_left, int window_right, bool top_left, "
      "float softcap, float dropout, bool with_bias, bool with_sinks, bool deterministic) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) implement(m);
}

}  // namespace transformer_kernels::torch_ops
