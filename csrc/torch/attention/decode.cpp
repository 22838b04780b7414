// SPDX-License-Identifier: MIT
#include "transformer_kernels/attention/decode.h"

#include <array>

#include "torch/fields.h"

namespace transformer_kernels::torch_ops {
namespace {

struct WithKvCache {
  using Arguments = AttentionWithKvCache;
  static constexpr const char* kOp = "attention_with_kv_cache";
  static constexpr const char* kPass = "";
  static constexpr auto* kCall = attention_with_kv_cache;
  static constexpr auto kLike = &Arguments::q;
  static constexpr auto kFields = std::tuple(
      tensor("q", &Arguments::q, with_even_columns), written("k_cache", &Arguments::k_cache),
      written<'b'>("v_cache", &Arguments::v_cache), optional("k", &Arguments::k, with_even_columns),
      optional("v", &Arguments::v, with_even_columns),
      optional("lengths", &Arguments::lengths, packed_indices),
      optional("page_table", &Arguments::page_table, with_even_columns),
      optional("cos", &Arguments::cos, with_even_columns),
      optional("sin", &Arguments::sin, with_even_columns),
      optional_written<'c'>("k_scale", &Arguments::k_scale),
      optional_written<'d'>("v_scale", &Arguments::v_scale),
      optional("alibi_slopes", &Arguments::alibi_slopes), parameter("sinks", &Arguments::sinks),
      flag("interleaved", &Arguments::interleaved), real("scale", &Arguments::scale),
      integer("window_left", &Arguments::window_left),
      integer("window_right", &Arguments::window_right), real("softcap", &Arguments::softcap));

  static TensorView layout_of_out(const Arguments& a) {
    TensorView like = a.q;
    like.sizes[like.rank - 1] = a.v_cache.sizes[like.rank - 1];
    return heads_like(like);
  }
  // (batch, heads, queries)
  static TensorView layout_of_lse(const TensorView& q) {
    return layout_of(q.device, std::array{q.sizes[0], q.sizes[2], q.sizes[1]}, DType::kFloat32);
  }
  static constexpr auto kResults = std::tuple(result("out", &Arguments::out, layout_of_out),
                                              result("lse", &Arguments::lse, layout_of_lse, kLike));

  // Results need a shape, before the checks have looked at it.
  static void prepare(Arguments& a) {
    for (const auto& [name, view] : {std::pair{"q", &a.q}, std::pair{"v_cache", &a.v_cache}}) {
      check_value(view->rank == 4, kOp, ": ", name, " has ", view->rank, " dimensions, expected 4");
    }
    if (!a.alibi_slopes.defined()) return;
    const TensorView heads =
        TensorView::contiguous(nullptr, a.q.dtype, a.q.device, {a.q.sizes[0], a.q.sizes[2]});
    a.alibi_slopes =
        broadcast_to(kOp, "alibi_slopes", a.alibi_slopes, heads, "batch and heads of q");
  }
};

using Ops = RawOps<WithKvCache>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
