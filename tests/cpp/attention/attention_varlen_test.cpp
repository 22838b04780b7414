// SPDX-License-Identifier: MIT
// Sequences of different lengths against one call for each.
#include "attention/attention_cases.h"
#include "backend_test.h"

namespace transformer_kernels::testing {
namespace {

// Where sequences begin, and where the last one ends: at least two rows before the tensors do.
struct Offsets {
  std::vector<std::int32_t> q;
  std::vector<std::int32_t> k;
};

class AttentionVarlen : public BackendTest {
 protected:
  static void check_sequences(std::int64_t dim, std::int64_t value_dim, AttentionNumbers n,
                              const Offsets& at = {{0, 7, 7, 60, 61, 161},
                                                   {0, 70, 75, 75, 140, 141}});
};

INSTANTIATE_TEST_SUITE_P(on, AttentionVarlen, all_backends_and_dtypes(), name_of_backend_test);

// (batch = 1, time, heads, dim) as (time, heads, dim).
TensorView without_batch(TensorView view) {
  view.rank = 3;
  for (int i = 0; i < 3; ++i) {
    view.sizes[i] = view.sizes[i + 1];
    view.strides[i] = view.strides[i + 1];
  }
  return view;
}

// Rows [begin, begin + count) of (1, time, heads, dim).
TensorView rows_of(TensorView view, std::int64_t begin, std::int64_t count) {
  view.data = static_cast<char*>(view.data) + begin * view.strides[1] * size_of(view.dtype);
  view.sizes[1] = count;
  return view;
}

Values rows_of(const Values& values, std::int64_t begin, std::int64_t count,
               std::int64_t numbers_per_row) {
  const auto first = values.begin() + begin * numbers_per_row;
  return {first, first + count * numbers_per_row};
}

bool is_zero(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return value == 0; });
}

void AttentionVarlen::check_sequences(std::int64_t dim, std::int64_t value_dim, AttentionNumbers n,
                                      const Offsets& at) {
  constexpr std::int64_t kTail = 9;
  const auto& [q_at, k_at] = at;
  const AttentionShape all{1, q_at.back() + kTail, k_at.back() + kTail, 4, 2, dim, value_dim};
  AttentionBackwardRun whole(backend(), dtype(), all, {.numbers = n});
  AttentionBackward a = whole.arguments();
  for (TensorView* view :
       {&a.inputs.q, &a.inputs.k, &a.inputs.v, &a.out, &a.dout, &a.dq, &a.dk, &a.dv}) {
    *view = without_batch(*view);
  }
  const DeviceArray q_offsets(backend(), q_at.data(), q_at.size());
  const DeviceArray k_offsets(backend(), k_at.data(), k_at.size());
  a.inputs.cu_seqlens_q = {q_offsets.data(), std::ssize(q_at) - 1};
  a.inputs.cu_seqlens_k = {k_offsets.data(), std::ssize(k_at) - 1};
  attention_forward(backend().context(),
                    {a.inputs, without_batch(whole.run.arguments().out), whole.run.lse.vector()});
  a.out = without_batch(whole.run.arguments().out);
  a.lse = whole.run.lse.vector();
  attention_backward(backend().context(), a);

  for (std::size_t b = 0; b + 1 < q_at.size(); ++b) {
    SCOPED_TRACE(b);
    const AttentionShape s{1, q_at[b + 1] - q_at[b], k_at[b + 1] - k_at[b], 4, 2, dim, value_dim};
    AttentionBackwardRun one(backend(), dtype(), s, {.numbers = n});
    const AttentionInputs in = whole.run.inputs();
    AttentionBackward c = one.arguments();
    c.inputs.q = rows_of(in.q, q_at[b], s.queries);
    c.inputs.k = rows_of(in.k, k_at[b], s.keys);
    c.inputs.v = rows_of(in.v, k_at[b], s.keys);
    c.dout = rows_of(whole.arguments().dout, q_at[b], s.queries);
    attention_forward(backend().context(),
                      {c.inputs, one.run.arguments().out, one.run.lse.vector()});
    c.out = one.run.arguments().out;
    c.lse = one.run.lse.vector();
    attention_backward(backend().context(), c);
    EXPECT_EQ(rows_of(whole.run.out.values(), q_at[b], s.queries, 4 * value_dim),
              one.run.out.values());
    EXPECT_EQ(rows_of(whole.dk.values(), k_at[b], s.keys, 2 * dim), one.dk.values());
    EXPECT_EQ(rows_of(whole.dv.values(), k_at[b], s.keys, 2 * value_dim), one.dv.values());
    // The number of shares differs, and with it the order of the sums.
    const double size = largest_of(one.dq.values());
    EXPECT_TRUE(close(dtype(), rows_of(whole.dq.values(), q_at[b], s.queries, 4 * dim),
                      one.dq.values(), size));
  }
  EXPECT_TRUE(is_zero(rows_of(whole.run.out.values(), q_at.back(), kTail, 4 * value_dim)));
  EXPECT_TRUE(is_zero(rows_of(whole.dq.values(), q_at.back(), kTail, 4 * dim)));
  EXPECT_TRUE(is_zero(rows_of(whole.dk.values(), k_at.back(), kTail, 2 * dim)));
  EXPECT_TRUE(is_zero(rows_of(whole.dv.values(), k_at.back(), kTail, 2 * value_dim)));
  const Values lse = whole.run.lse.values();
  for (std::int64_t head = 0; head < 4; ++head) {
    EXPECT_EQ(rows_of(lse, head * all.queries + q_at.back(), kTail, 1), Values(kTail, -kInfinity));
  }
}

TEST_P(AttentionVarlen, equals_one_call_for_each_sequence) {
  const AttentionNumbers capped{.scale = 0.25, .softcap = 5, .window_left = 40, .window_right = 0};
  unless_refused([&] { check_sequences(16, 24, capped); });
  for (std::int64_t dim : {64, 128}) {
    unless_refused([&] { check_sequences(dim, dim, {.scale = 0.25}); });
    unless_refused([&] { check_sequences(dim, dim, {.scale = 0.25, .window_right = 0}); });
    unless_refused([&] { check_sequences(dim, dim, capped); });
  }
}

// For pairs of CTAs on Hopper: sequences of several tiles, of one half of a tile and of none.
TEST_P(AttentionVarlen, wide_heads_over_several_tiles) {
  if (!is_on_cuda(backend())) GTEST_SKIP() << "for plans of CUDA";
  const Offsets at{{0, 130, 130, 131, 290}, {0, 210, 250, 250, 400}};
  const AttentionNumbers capped{.scale = 0.1, .softcap = 5, .window_left = 90, .window_right = 0};
  for (std::int64_t dim : {136, 192, 200, 256}) {
    unless_refused([&] { check_sequences(dim, dim, {.scale = 0.1}, at); });
    unless_refused([&] { check_sequences(dim, dim, {.scale = 0.1, .window_right = 0}, at); });
    unless_refused([&] { check_sequences(dim, dim, capped, at); });
    unless_refused([&] { check_sequences(dim, dim, capped); });
  }
}

// Nothing but a tail.
void check_without_a_sequence(Backend& backend, DType dtype) {
  AttentionBackwardRun run(backend, dtype, {1, 5, 7, 2, 2, 8, 8}, {});
  AttentionBackward a = run.arguments();
  for (TensorView* view :
       {&a.inputs.q, &a.inputs.k, &a.inputs.v, &a.out, &a.dout, &a.dq, &a.dk, &a.dv}) {
    *view = without_batch(*view);
  }
  const std::int32_t zero = 0;
  const DeviceArray offsets(backend, &zero, 1);
  a.inputs.cu_seqlens_q = a.inputs.cu_seqlens_k = {offsets.data(), 0};
  attention_backward(backend.context(), a);
  a.out = without_batch(run.run.arguments().out);
  attention_forward(backend.context(), {a.inputs, a.out, run.run.lse.vector()});
  EXPECT_TRUE(is_zero(run.run.out.values()));
  EXPECT_EQ(run.run.lse.values(), Values(10, -kInfinity));
  for (TestTensor* gradient : {&run.dq, &run.dk, &run.dv}) {
    EXPECT_TRUE(is_zero(gradient->values()));
  }
}

TEST_P(AttentionVarlen, without_a_sequence) {
  unless_refused([&] { check_without_a_sequence(backend(), dtype()); });
}

}  // namespace
}  // namespace transformer_kernels::testing
