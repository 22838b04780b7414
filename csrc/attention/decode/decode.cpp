// SPDX-License-Identifier: MIT
#include "transformer_kernels/attention/decode.h"

#include <array>
#include <cmath>
#include <span>

#include "attention/decode/problem.h"
#include "core/backends.h"
#include "core/overlap.h"
#include "core/softcap.h"
#include "core/strides.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "attention_with_kv_cache";
constexpr std::int64_t kPageStep = 16;

constexpr Backends<KvCacheProblem> kBackends{
    .cpu = cpu::attention_with_kv_cache,
    .cuda = kHasCuda ? cuda::attention_with_kv_cache : nullptr,
    .numbers = cpu::check_cache};

using Sizes = std::array<std::int64_t, 4>;

class Checker {
 public:
  explicit Checker(Device device) : check_(kOp, device) {}

  KvCacheProblem problem(const AttentionWithKvCache& a) const {
    KvCacheProblem p{};
    add_shape(a, p);
    add_new_tokens(a, p);
    add_pages(a, p);
    add_lengths(a, p);
    add_scales(a, p);
    add_angles(a, p);
    add_scores(a, p);
    const Sizes out = {p.batch, p.queries, p.heads, p.value_dim};
    p.out = rows("out", a.out, p.dtype, out, "q and the dim of v_cache");
    own_places("out", a.out);
    if (a.lse.defined()) {
      check_.typed("lse", a.lse, DType::kFloat32, "what sums are kept in");
      check_.packed("lse", a.lse, p.batch * p.heads * p.queries, "the rows of q in all heads");
      p.lse = static_cast<float*>(a.lse.data);
    }
    return p;
  }

 private:
  void rank(const char* name, const TensorView& view, int rank, const char* dims) const {
    check_value(view.rank == rank, kOp, ": ", name, " has ", view.rank, " dimensions, expected ",
                rank, " (", dims, ")");
  }

  void shape(const char* name, const TensorView& view, std::span<const std::int64_t> sizes,
             const char* of) const {
    TensorView wanted;
    wanted.rank = static_cast<int>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), wanted.sizes.begin());
    const bool same =
        view.rank == wanted.rank && std::equal(sizes.begin(), sizes.end(), view.sizes.begin());
    check_value(same, kOp, ": ", name, " has shape ", shape_of(view), ", expected ",
                shape_of(wanted), " (", of, ")");
  }

  void last_stride(const char* name, const TensorView& view) const {
    const int last = view.rank - 1;
    check_value(view.numel() == 0 || view.sizes[last] <= 1 || view.strides[last] == 1, kOp, ": ",
                name, " has a last stride of ", view.strides[last], ", expected 1");
  }

  void own_places(const char* name, const TensorView& view) const {
    check_value(!overlaps_itself(view), kOp, ": ", name,
                " has rows that overlap, expected each element in a place of its own");
  }

  HeadRows rows(const char* name, const TensorView& view, DType dtype, const Sizes& sizes,
                const char* of) const {
    check_.typed(name, view, dtype, "the dtype of q");
    shape(name, view, sizes, of);
    last_stride(name, view);
    return {view.data, view.strides[0], view.strides[1], view.strides[2]};
  }

  CacheRows cache(const char* name, const TensorView& view) const {
    last_stride(name, view);
    return {view.data, view.dtype, view.strides[0], view.strides[1], view.strides[2]};
  }

  void add_shape(const AttentionWithKvCache& a, KvCacheProblem& p) const {
    check_.floating("q", a.q);
    check_type(a.q.dtype != DType::kFloat64, kOp,
               ": q is float64, expected float32, float16 or bfloat16");
    rank("q", a.q, 4, "batch, time, heads, dim");
    const DType stored = a.k_cache.dtype == DType::kInt8 ? DType::kInt8 : a.q.dtype;
    const char* const dims =
        a.page_table.defined() ? "pages, page, heads, dim" : "batch, capacity, heads, dim";
    for (const auto& [name, view] :
         {std::pair{"k_cache", &a.k_cache}, std::pair{"v_cache", &a.v_cache}}) {
      check_.typed(name, *view, stored,
                   stored == DType::kInt8 ? "the dtype of k_cache" : "the dtype of q, or int8");
      rank(name, *view, 4, dims);
    }
    p.dtype = a.q.dtype;
    p.batch = a.q.sizes[0];
    p.queries = a.q.sizes[1];
    p.heads = a.q.sizes[2];
    p.dim = a.q.sizes[3];
    p.pages = a.k_cache.sizes[0];
    p.page_size = a.k_cache.sizes[1];
    p.kv_heads = a.k_cache.sizes[2];
    p.value_dim = a.v_cache.sizes[3];
    for (const auto& [name, dim] : {std::pair{"q", p.dim}, std::pair{"v_cache", p.value_dim}}) {
      check_value(dim >= 1 && dim <= kMostDim, kOp, ": ", name, " has a head dim of ", dim,
                  ", expected 1 to ", kMostDim);
    }
    const bool even = p.kv_heads > 0 ? p.heads % p.kv_heads == 0 : p.heads == 0;
    check_value(even, kOp, ": q has ", p.heads, " heads, expected a multiple of ", p.kv_heads,
                " (the heads of k_cache)");
    const Sizes k = {p.pages, p.page_size, p.kv_heads, p.dim};
    const Sizes v = {p.pages, p.page_size, p.kv_heads, p.value_dim};
    shape("k_cache", a.k_cache, k, "its own, with the dim of q");
    shape("v_cache", a.v_cache, v, "that of k_cache but for the dim");
    p.q = rows("q", a.q, p.dtype, {p.batch, p.queries, p.heads, p.dim}, "its own");
    p.k_cache = cache("k_cache", a.k_cache);
    p.v_cache = cache("v_cache", a.v_cache);
  }

  void add_new_tokens(const AttentionWithKvCache& a, KvCacheProblem& p) const {
    check_value(a.k.defined() == a.v.defined(), kOp, ": ", a.k.defined() ? "v" : "k",
                " is missing, expected k and v, both or neither");
    if (!a.k.defined()) return;
    rank("k", a.k, 4, "batch, new tokens, heads, dim");
    p.added = a.k.sizes[1];
    p.k = rows("k", a.k, p.dtype, {p.batch, p.added, p.kv_heads, p.dim},
               "the batch of q, new tokens, heads and dim of k_cache");
    p.v = rows("v", a.v, p.dtype, {p.batch, p.added, p.kv_heads, p.value_dim},
               "that of k, and the dim of v_cache");
    own_places("k_cache", a.k_cache);
    own_places("v_cache", a.v_cache);
    check_apart(kOp, {{"k_cache", a.k_cache}, {"v_cache", a.v_cache}},
                {{"q", a.q}, {"k", a.k}, {"v", a.v}});
  }

  void add_pages(const AttentionWithKvCache& a, KvCacheProblem& p) const {
    if (!a.page_table.defined()) {
      check_value(p.pages == p.batch, kOp, ": k_cache has ", p.pages, " sequences, expected ",
                  p.batch, " (the batch of q), or pages and a page_table");
      p.table_columns = 1;
      return;
    }
    check_.typed("page_table", a.page_table, DType::kInt32, "the dtype of tables");
    rank("page_table", a.page_table, 2, "batch, pages of a sequence");
    shape("page_table", a.page_table, std::array{p.batch, a.page_table.sizes[1]},
          "the batch of q, and the most pages of a sequence");
    last_stride("page_table", a.page_table);
    check_value(p.page_size > 0 && p.page_size % kPageStep == 0, kOp, ": k_cache has pages of ",
                p.page_size, " tokens, expected a multiple of ", kPageStep);
    p.table = static_cast<const std::int32_t*>(a.page_table.data);
    p.table_stride = a.page_table.strides[0];
    p.table_columns = a.page_table.sizes[1];
  }

  void add_lengths(const AttentionWithKvCache& a, KvCacheProblem& p) const {
    if (!a.lengths.defined()) {
      check_value(!a.k.defined(), kOp,
                  ": lengths is missing, expected the tokens in the cache before k");
      return;
    }
    check_.indices("lengths", a.lengths);
    shape("lengths", a.lengths, std::array{p.batch}, "the batch of q");
    check_.packed("lengths", a.lengths, p.batch, "the batch of q");
    if (a.lengths.dtype == DType::kInt32) {
      p.lengths = static_cast<const std::int32_t*>(a.lengths.data);
    } else {
      p.long_lengths = static_cast<const std::int64_t*>(a.lengths.data);
    }
  }

  CacheRows scales(const char* name, const TensorView& view, const KvCacheProblem& p,
                   bool written) const {
    check_.typed(name, view, DType::kFloat32, "the scales of an int8 cache");
    shape(name, view, std::array{p.pages, p.page_size, p.kv_heads},
          "the shape of k_cache without its last dimension");
    if (written) own_places(name, view);
    return {view.data, view.dtype, view.strides[0], view.strides[1], view.strides[2]};
  }

  void add_scales(const AttentionWithKvCache& a, KvCacheProblem& p) const {
    const bool has = p.k_cache.dtype == DType::kInt8;
    for (const auto& [name, view] :
         {std::pair{"k_scale", &a.k_scale}, std::pair{"v_scale", &a.v_scale}}) {
      check_value(view->defined() == has, kOp, ": ", name, has ? " is missing" : " is given",
                  has ? ", expected one beside a cache of int8"
                      : ", expected none without a cache of int8");
    }
    if (!has) return;
    p.k_scale = scales("k_scale", a.k_scale, p, a.k.defined());
    p.v_scale = scales("v_scale", a.v_scale, p, a.k.defined());
    if (!a.k.defined()) return;
    check_apart(
        kOp, {{"k_scale", a.k_scale}, {"v_scale", a.v_scale}},
        {{"q", a.q}, {"k_cache", a.k_cache}, {"v_cache", a.v_cache}, {"k", a.k}, {"v", a.v}});
  }

  void add_angles(const AttentionWithKvCache& a, KvCacheProblem& p) const {
    check_value(a.cos.defined() == a.sin.defined(), kOp, ": ", a.cos.defined() ? "sin" : "cos",
                " is missing, expected cos and sin, both or neither");
    if (!a.cos.defined()) return;
    check_.floating("cos", a.cos);
    check_.typed_or_float32("cos", a.cos, p.dtype, "q");
    rank("cos", a.cos, 2, "positions, frequencies");
    check_value(a.cos.sizes[1] >= 1 && a.cos.sizes[1] <= p.dim / 2, kOp, ": cos has ",
                a.cos.sizes[1], " columns, expected 1 to ", p.dim / 2, " (pairs in a head of q)");
    check_.typed("sin", a.sin, a.cos.dtype, "the dtype of cos");
    check_.same_shape("sin", a.sin, "cos", a.cos);
    last_stride("cos", a.cos);
    last_stride("sin", a.sin);
    p.cos = {a.cos.data, a.cos.dtype, a.cos.strides[0]};
    p.sin = {a.sin.data, a.sin.dtype, a.sin.strides[0]};
    p.positions = a.cos.sizes[0];
    p.frequencies = a.cos.sizes[1];
    p.interleaved = a.interleaved;
  }

  void add_scores(const AttentionWithKvCache& a, KvCacheProblem& p) const {
    if (a.alibi_slopes.defined()) {
      check_.typed("alibi_slopes", a.alibi_slopes, DType::kFloat32, "what sums are kept in");
      shape("alibi_slopes", a.alibi_slopes, std::array{p.batch, p.heads}, "batch and heads of q");
      p.slopes = {a.alibi_slopes.data, a.alibi_slopes.strides[0], a.alibi_slopes.strides[1]};
    }
    if (a.sinks.defined()) {
      check_.typed("sinks", a.sinks, DType::kFloat32, "what sums are kept in");
      shape("sinks", a.sinks, std::array{p.heads}, "the heads of q");
      check_.packed("sinks", a.sinks, p.heads, "the heads of q");
      p.sinks = {a.sinks.data, 0, 1};
    }
    check_value(!a.scale || std::isfinite(*a.scale), kOp, ": scale is ", a.scale.value_or(0),
                ", expected a finite number");
    check_softcap(kOp, "softcap", a.softcap);
    for (const auto& [name, size] :
         {std::pair{"window_left", a.window_left}, std::pair{"window_right", a.window_right}}) {
      check_value(size >= -1, kOp, ": ", name, " is ", size, ", expected -1 (no bound) or above");
    }
    // A bound that hides nothing is none, so that no sum of it and a place overflows.
    const std::int64_t most = std::max(p.capacity(), p.queries);
    const auto bound = [&](std::int64_t window) { return window < most ? window : -1; };
    p.scale = a.scale.value_or(1 / std::sqrt(static_cast<double>(p.dim)));
    p.softcap = a.softcap;
    p.window_left = bound(a.window_left);
    p.window_right = bound(a.causal ? 0 : a.window_right);
    p.bottom_right = true;
  }

  ArgumentChecker check_;
};

KvCacheProblem check(Device device, const AttentionWithKvCache& a) {
  const KvCacheProblem p = Checker(device).problem(a);
  check_apart(kOp, {{"out", a.out}, {"lse", a.lse}},
              {{"q", a.q},
               {"k_cache", a.k_cache},
               {"v_cache", a.v_cache},
               {"k", a.k},
               {"v", a.v},
               {"lengths", a.lengths},
               {"page_table", a.page_table},
               {"cos", a.cos},
               {"sin", a.sin},
               {"k_scale", a.k_scale},
               {"v_scale", a.v_scale},
               {"alibi_slopes", a.alibi_slopes},
               {"sinks", a.sinks}});
  return p;
}

}  // namespace

std::string describe(const KvCacheProblem& p) {
  return concat(name_of(p.dtype), " cache ", name_of(p.k_cache.dtype), " B", p.batch, " H", p.heads,
                "/", p.kv_heads, " T", p.queries, " + ", p.added, " D", p.dim,
                p.table == nullptr ? " capacity " : " pages of ", p.page_size,
                p.frequencies != 0 ? " rope" : "", p.window_right == 0 ? " causal" : "",
                p.window_left >= 0 ? " window" : "", p.slopes.data ? " + alibi" : "",
                p.softcap != 0 ? " softcap" : "", p.sinks.data ? " + sinks" : "");
}

void attention_with_kv_cache(const Context& context, const AttentionWithKvCache& arguments) {
  run_on(kOp, kBackends, context, check(context.device, arguments));
}

}  // namespace transformer_kernels
