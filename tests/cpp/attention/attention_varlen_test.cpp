// SPDX-License-Identifier: MIT
// Sequences of different lengths, against exact results and against one call for each.
#include "attention/attention_cases.h"
#include "backend_test.h"

namespace transformer_kernels::testing {
namespace {

// Where sequences begin, and where the last one ends: at least two rows before the tensors do.
struct Offsets {
  std::vector<std::int32_t> q;
  std::vector<std::int32_t> k;
};

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

// A sequence's rows among those of all.
struct SequenceRows {
  AttentionShape s;
  std::int64_t q_begin, k_begin;

  Values of_queries(const Values& all, std::int64_t columns) const {
    return rows_of(all, q_begin, s.queries, s.heads * columns);
  }
  Values of_keys(const Values& all, std::int64_t columns) const {
    return rows_of(all, k_begin, s.keys, s.kv_heads * columns);
  }
  // This sequence's part of all log-sum-exps, (heads, time).
  Values statistics(const Values& all) const {
    Values own;
    const std::int64_t time = std::ssize(all) / s.heads;
    for (std::int64_t head = 0; head < s.heads; ++head) {
      const Values of_head = rows_of(all, head * time + q_begin, s.queries, 1);
      own.insert(own.end(), of_head.begin(), of_head.end());
    }
    return own;
  }
  AttentionOperands operands(const AttentionOperands& all) const {
    AttentionOperands own;
    own.s = s;
    own.n = all.n;
    own.q = of_queries(all.q, s.dim);
    own.k = of_keys(all.k, s.dim);
    own.v = of_keys(all.v, s.value_dim);
    return own;
  }
};

struct Gradients {
  Values dq, dk, dv;
};

class AttentionVarlen : public BackendTest {
 protected:
  static void check_sequences(std::int64_t dim, std::int64_t value_dim, AttentionNumbers n,
                              const Offsets& at = {{0, 7, 7, 60, 61, 161},
                                                   {0, 70, 75, 75, 140, 141}});

 private:
  static Gradients gradients_alone(AttentionBackwardRun& whole, const SequenceRows& rows);
  static void check_results(AttentionBackwardRun& whole, const SequenceRows& rows);
};

INSTANTIATE_TEST_SUITE_P(on, AttentionVarlen, all_backends_and_dtypes(), name_of_backend_test);

bool is_zero(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return value == 0; });
}

// How many elements are others, and by how much.
::testing::AssertionResult equal(const Values& got, const Values& expected) {
  if (got == expected) return ::testing::AssertionSuccess();
  if (got.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  std::size_t others = 0;
  for (std::size_t i = 0; i < got.size(); ++i) others += got[i] == expected[i] ? 0 : 1;
  const Errors errors(got, expected);
  return ::testing::AssertionFailure()
         << others << " of " << got.size() << " elements differ, by up to " << errors.largest
         << " (typical " << errors.typical << ", largest " << largest_of(expected) << ")";
}

// The gradients of a call with the sequence alone, with the same out and lse. Those of a forward
// call for it alone may differ in the last bits: a forward kernel may decide for several rows at
// once, and rows after the sequence are then among them.
Gradients AttentionVarlen::gradients_alone(AttentionBackwardRun& whole, const SequenceRows& rows) {
  const AttentionShape& s = rows.s;
  const TestTensor lse(backend(), whole.run.statistics(), 1, s.queries * s.heads,
                       rows.statistics(whole.run.lse.values()));
  TestTensor dq(backend(), dtype(), s.rows(), s.dim);
  TestTensor dk(backend(), dtype(), s.kv_rows(), s.dim);
  TestTensor dv(backend(), dtype(), s.kv_rows(), s.value_dim);
  AttentionBackward one = whole.arguments();
  one.out = whole.run.arguments().out;
  for (TensorView* view : {&one.inputs.q, &one.out, &one.dout}) {
    *view = rows_of(*view, rows.q_begin, s.queries);
  }
  for (TensorView* view : {&one.inputs.k, &one.inputs.v}) {
    *view = rows_of(*view, rows.k_begin, s.keys);
  }
  one.lse = lse.vector();
  one.dq = whole.run.heads_of(dq, s.queries, s.heads);
  one.dk = whole.run.heads_of(dk, s.keys, s.kv_heads);
  one.dv = whole.run.heads_of(dv, s.keys, s.kv_heads);
  attention_backward(backend().context(), one);
  return {dq.values(), dk.values(), dv.values()};
}

// Against the exact ones. The gradient of values is to the last bit that of the sequence alone;
// those of queries and keys may be rounded in another way, since sums of dP may begin with -delta.
void AttentionVarlen::check_results(AttentionBackwardRun& whole, const SequenceRows& rows) {
  const AttentionShape& s = rows.s;
  const AttentionOperands operands = rows.operands(whole.run.operands());
  const Values out = rows.of_queries(whole.run.out.values(), s.value_dim);
  const Values lse = rows.statistics(whole.run.lse.values());
  const Values dout = rows.of_queries(whole.dout(), s.value_dim);
  const auto gradients = [&](const AttentionOperands& of) {
    return attention_gradients(of, out, lse, dout, {});
  };
  const AttentionRule rule(backend(), dtype());
  const AttentionReference f = attention_reference(operands);
  const AttentionReference eager_f = rule.eager(operands, attention_reference);
  const AttentionReference b = gradients(operands);
  const AttentionReference eager_b = rule.eager(operands, gradients);
  const double extent = 1 + f.extent;
  EXPECT_TRUE(rule(out, f.out, eager_f.out, largest_of(operands.v) * extent)) << "out";
  EXPECT_TRUE(rule.statistics(operands, lse, f.lse, eager_f.lse, extent)) << "lse";
  const Gradients packed{rows.of_queries(whole.dq.values(), s.dim),
                         rows.of_keys(whole.dk.values(), s.dim),
                         rows.of_keys(whole.dv.values(), s.value_dim)};
  const Gradients alone = gradients_alone(whole, rows);
  for (const Gradients* got : {&packed, &alone}) {
    SCOPED_TRACE(got == &packed ? "packed" : "alone");
    EXPECT_TRUE(rule(got->dq, b.dq, eager_b.dq, b.dq_size * extent)) << "dq";
    EXPECT_TRUE(rule(got->dk, b.dk, eager_b.dk, b.dk_size * extent)) << "dk";
    EXPECT_TRUE(rule(got->dv, b.dv, eager_b.dv, b.dv_size * extent)) << "dv";
  }
  EXPECT_TRUE(equal(packed.dv, alone.dv)) << "dv";
}

void AttentionVarlen::check_sequences(std::int64_t dim, std::int64_t value_dim, AttentionNumbers n,
                                      const Offsets& at) {
  constexpr std::int64_t kTail = 9;
  const auto& [q_at, k_at] = at;
  const AttentionShape all{1, q_at.back() + kTail, k_at.back() + kTail, 4, 2, dim, value_dim};
  SCOPED_TRACE(describe_attention(dtype(), all, {.numbers = n}));
  AttentionBackwardRun whole(backend(), dtype(), all, {.numbers = n});
  AttentionBackward a = whole.arguments();
  a.out = whole.run.arguments().out;
  for (TensorView* view :
       {&a.inputs.q, &a.inputs.k, &a.inputs.v, &a.out, &a.dout, &a.dq, &a.dk, &a.dv}) {
    *view = without_batch(*view);
  }
  const DeviceArray q_offsets(backend(), q_at.data(), q_at.size());
  const DeviceArray k_offsets(backend(), k_at.data(), k_at.size());
  a.inputs.cu_seqlens_q = q_offsets.vector(DType::kInt32);
  a.inputs.cu_seqlens_k = k_offsets.vector(DType::kInt32);
  a.lse = whole.run.lse.vector();
  attention_forward(backend().context(), {a.inputs, a.out, a.lse});
  attention_backward(backend().context(), a);

  for (std::size_t b = 0; b + 1 < q_at.size(); ++b) {
    SCOPED_TRACE(b);
    const SequenceRows rows{
        {1, q_at[b + 1] - q_at[b], k_at[b + 1] - k_at[b], 4, 2, dim, value_dim}, q_at[b], k_at[b]};
    check_results(whole, rows);
  }
  const Values out = whole.run.out.values(), lse = whole.run.lse.values();
  EXPECT_TRUE(is_zero(rows_of(out, q_at.back(), kTail, 4 * value_dim)));
  EXPECT_TRUE(is_zero(rows_of(whole.dq.values(), q_at.back(), kTail, 4 * dim)));
  EXPECT_TRUE(is_zero(rows_of(whole.dk.values(), k_at.back(), kTail, 2 * dim)));
  EXPECT_TRUE(is_zero(rows_of(whole.dv.values(), k_at.back(), kTail, 2 * value_dim)));
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
  const Offsets at{{0, 130, 130, 131, 200}, {0, 210, 250, 250, 400}};
  const AttentionNumbers capped{.scale = 0.1, .softcap = 5, .window_left = 90, .window_right = 0};
  for (std::int64_t dim : {136, 192, 200, 256}) {
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
  a.inputs.cu_seqlens_q = a.inputs.cu_seqlens_k = offsets.vector(DType::kInt32);
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
