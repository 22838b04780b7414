// SPDX-License-Identifier: MIT
// Attention on an FPGA array: the problems that it refuses, and the division of tensors into the
// array's groups of heads.
#include <algorithm>

#include "attention/problem.h"
#include "core/check.h"
#include "core/dispatch.h"
#include "core/log.h"
#include "fpga/attention.h"
#include "fpga/quantize.h"

namespace transformer_kernels::fpga {
namespace {

constexpr const char* kOp = "attention";

struct Refusal {
  bool applies;
  const char* argument;
  const char* expected;
};

void check_served(const AttentionForwardProblem& p, const Array& array) {
  const Refusal refusals[] = {
      {p.q_offsets != nullptr, "cu_seqlens_q", "sequences of one length"},
      {p.bias.defined(), "bias", "none"},
      {p.mask.defined(), "mask", "none, or causal"},
      {p.slopes.data != nullptr, "alibi_slopes", "none"},
      {p.sinks.data != nullptr, "sinks", "none"},
      {p.softcap != 0, "softcap", "0"},
      {p.drop_below != 0, "dropout", "0"},
      {p.window_left >= 0, "window_left", "-1"},
  };
  for (const Refusal& refusal : refusals) {
    check_value(!refusal.applies, kOp, ": ", refusal.argument, " is given, expected ",
                refusal.expected, " (the array ", array.name(), " has no such scores)");
  }
  const std::int64_t largest = head_dim_of(array);
  for (const auto& [name, dim] : {std::pair{"q", p.dim}, std::pair{"v", p.value_dim}}) {
    check_value(dim <= largest, kOp, ": ", name, " has a head dim of ", dim, ", expected at most ",
                largest, " (the array ", array.name(), ")");
  }
}

std::vector<float> gather(DType dtype, const HeadRows& rows, std::int64_t batch, std::int64_t head,
                          std::int64_t count, std::int64_t dim) {
  std::vector<float> out(static_cast<std::size_t>(count * dim));
  const std::span all(out);
  for (std::int64_t row = 0; row < count; ++row) {
    widen(dtype, rows.address(dtype, batch, row, head), all.subspan(row * dim, dim));
  }
  return out;
}

AttentionGroup group_of(const AttentionForwardProblem& p, std::int64_t batch,
                        std::int64_t kv_head) {
  AttentionGroup group{};
  group.heads = p.group();
  group.queries = p.queries;
  group.keys = p.keys;
  group.dim = p.dim;
  group.value_dim = p.value_dim;
  group.scale = p.scale;
  group.offset = p.window_right < 0
                     ? p.keys
                     : std::min(p.diagonal(p.sequence(batch), 0) + p.window_right, p.keys);
  group.k = gather(p.dtype, p.k, batch, kv_head, p.keys, p.dim);
  group.v = gather(p.dtype, p.v, batch, kv_head, p.keys, p.value_dim);
  for (std::int64_t h = 0; h < p.group(); ++h) {
    const auto head = gather(p.dtype, p.q, batch, kv_head * p.group() + h, p.queries, p.dim);
    group.q.insert(group.q.end(), head.begin(), head.end());
  }
  return group;
}

// Results of all heads, which are written when all are there.
struct Results {
  std::vector<float> out;   // (batch, heads, queries, value_dim)
  std::vector<double> lse;  // (batch, heads, queries)
};

Results compute(Array& array, const AttentionForwardProblem& p) {
  Results results;
  results.out.resize(static_cast<std::size_t>(p.rows() * p.value_dim));
  if (p.lse != nullptr) results.lse.resize(static_cast<std::size_t>(p.rows()));
  const std::int64_t rows = p.group() * p.queries;
  for (std::int64_t group = 0; group < p.batch * p.kv_heads; ++group) {
    const std::span<float> out(results.out);
    const std::span<double> lse(results.lse);
    attention(array, group_of(p, group / p.kv_heads, group % p.kv_heads),
              {out.subspan(group * rows * p.value_dim, rows * p.value_dim),
               lse.empty() ? lse : lse.subspan(group * rows, rows)});
  }
  return results;
}

void write(const AttentionForwardProblem& p, const Results& results) {
  const std::span<const float> out(results.out);
  for (std::int64_t row = 0; row < p.rows(); ++row) {
    const std::int64_t head = row / p.queries;
    narrow(p.dtype, out.subspan(row * p.value_dim, p.value_dim),
           p.out.address(p.dtype, head / p.heads, row % p.queries, head % p.heads));
  }
  if (p.lse == nullptr) return;
  dispatch_float(accumulate_dtype(p.dtype), [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      std::copy(results.lse.begin(), results.lse.end(), static_cast<T*>(p.lse));
      if (p.lse_rest != nullptr) std::fill_n(static_cast<T*>(p.lse_rest), p.rows(), T{});
    }
  });
}

}  // namespace

void attention_forward(const Context& context, const AttentionForwardProblem& p) {
  Array& array = *context.array;
  check_served(p, array);
  if (log_dispatch()) log_line(concat(kOp, " ", describe(p), ": fpga ", array.name(), " runs"));
  write(p, compute(array, p));
}

}  // namespace transformer_kernels::fpga
