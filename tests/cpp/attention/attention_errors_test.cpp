// SPDX-License-Identifier: MIT
// The arguments that attention refuses, in exact words, with its outputs untouched.
#include <functional>

#include "attention/attention_cases.h"
#include "transformer_kernels/error.h"

namespace transformer_kernels::testing {
namespace {

void expect_error(const std::function<void(AttentionForward&)>& spoil,
                  const std::string& expected) {
  AttentionRun run(*cpu_backend(), DType::kFloat32, {2, 3, 5, 4, 2, 8, 8},
                   {.bias = true, .mask = true, .slopes = true, .sinks = true});
  AttentionForward a = run.arguments();
  spoil(a);
  try {
    attention_forward({}, a);
    ADD_FAILURE() << "accepted, expected: " << expected;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), expected);
  }
  EXPECT_TRUE(run.out.untouched());
  EXPECT_TRUE(run.lse.untouched());
}

using Forward = AttentionForward;

TEST(AttentionErrors, of_shapes_and_dtypes) {
  expect_error([](Forward& a) { a.inputs.q = {}; }, "attention: q is missing");
  expect_error([](Forward& a) { a.inputs.q.dtype = DType::kBool; },
               "attention: q is bool, expected a floating-point dtype");
  expect_error([](Forward& a) { a.inputs.k.dtype = DType::kFloat16; },
               "attention: k is float16, expected float32 (the dtype of q)");
  expect_error([](Forward& a) { a.inputs.v.rank = 3; },
               "attention: v has 3 dimensions, expected 4 (batch, time, heads, dim)");
  expect_error([](Forward& a) { a.inputs.k.sizes[3] = 7; },
               "attention: k has shape (2, 5, 2, 7), expected (2, 5, 2, 8) (q and the heads of k)");
  expect_error([](Forward& a) { a.inputs.v.sizes[1] = 4; },
               "attention: v has shape (2, 4, 2, 8), expected (2, 5, 2, 8) (k and the dim of v)");
  expect_error([](Forward& a) { a.inputs.k.sizes[2] = 3; },
               "attention: q has 4 heads, expected a multiple of 3 (the heads of k)");
  expect_error([](Forward& a) { a.inputs.q.sizes[3] = 257; },
               "attention: q has a head dim of 257, expected 1 to 256");
  expect_error([](Forward& a) { a.inputs.q.strides[3] = 2; },
               "attention: q has a last stride of 2, expected 1");
  expect_error([](Forward& a) { a.out.dtype = DType::kFloat64; },
               "attention: out is float64, expected float32 (the dtype of q)");
  expect_error([](Forward& a) { a.out.strides[1] = 4; },
               "attention: out has rows that overlap, expected each element in a place of its own");
  expect_error([](Forward& a) { a.inputs.q.data = a.out.data; },
               "attention: out overlaps q, expected memory of its own");
  expect_error([](Forward& a) { a.inputs.mask.data = a.lse.data; },
               "attention: lse overlaps mask, expected memory of its own");
  expect_error([](Forward& a) { a.lse.sizes[0] = 23; },
               "attention: lse has 23 elements, expected 24 (the rows of q in all heads)");
  expect_error(
      [](Forward& a) {
        a.inputs.k.device = {DeviceType::kCuda, 0};
      },
      "attention: k is on cuda:0, expected cpu:0");
}

TEST(AttentionErrors, of_features) {
  expect_error([](Forward& a) { a.inputs.bias.dtype = DType::kFloat16; },
               "attention: bias is float16, expected float32");
  expect_error(
      [](Forward& a) { a.inputs.bias.sizes[3] = 6; },
      "attention: bias has shape (2, 4, 3, 6), expected (2, 4, 3, 5) (scores, broadcast by "
      "strides of 0)");
  expect_error([](Forward& a) { a.inputs.bias.strides[3] = 2; },
               "attention: bias has a last stride of 2, expected 1 or 0");
  expect_error([](Forward& a) { a.inputs.mask.dtype = DType::kFloat32; },
               "attention: mask is float32, expected bool");
  expect_error([](Forward& a) { a.inputs.alibi_slopes.sizes[1] = 3; },
               "attention: alibi_slopes has shape (2, 3), expected (2, 4) (batch and heads of q), "
               "broadcast by strides of 0");
  expect_error([](Forward& a) { a.inputs.sinks.sizes[0] = 3; },
               "attention: sinks has 3 elements, expected 4 (the heads of q)");
  expect_error([](Forward& a) { a.inputs.sinks.rank = 2; },
               "attention: sinks has 2 dimensions, expected 1");
  expect_error([](Forward& a) { a.inputs.scale = kInfinity; },
               "attention: scale is inf, expected a finite number");
  expect_error([](Forward& a) { a.inputs.softcap = -1; },
               "attention: softcap is -1, expected a finite number, 0 or above");
  expect_error([](Forward& a) { a.inputs.softcap = kInfinity; },
               "attention: softcap is inf, expected a finite number, 0 or above");
  expect_error([](Forward& a) { a.inputs.softcap = 1e39; },  // infinite in float32
               "attention: softcap is 1e+39, expected a finite number, 0 or above");
  expect_error([](Forward& a) { a.inputs.dropout = 1.5; },
               "attention: dropout is 1.5, expected a number from 0 to 1");
  expect_error([](Forward& a) { a.inputs.window_left = -2; },
               "attention: window_left is -2, expected -1 (no bound) or above");
}

TEST(AttentionErrors, of_seeds) {
  const auto refuses = [](auto&& spoil, const std::string& expected) {
    std::int64_t numbers[] = {1, 2};
    expect_error(
        [&](Forward& a) {
          a.inputs.dropout = 0.5;
          a.inputs.seed = TensorView::contiguous(numbers, DType::kInt64, {}, {2});
          spoil(a.inputs.seed);
        },
        expected);
  };
  refuses([](TensorView& seed) { seed = {}; },
          "attention: seed is missing, expected one for dropout");
  const std::string other =
      "attention: seed is not a seed and an offset, expected 2 int64 on the CPU or beside q";
  refuses([](TensorView& seed) { seed.dtype = DType::kInt32; }, other);
  refuses([](TensorView& seed) { seed.sizes[0] = 1; }, other);
  refuses([](TensorView& seed) { seed.strides[0] = 2; }, other);
  refuses([](TensorView& seed) { seed.device = {DeviceType::kCuda, 0}; }, other);
}

class AttentionOffsets {
 public:
  AttentionOffsets() : run_(*cpu_backend(), DType::kFloat32, {1, 6, 9, 2, 2, 8, 8}, {}) {}

  template <class Spoil>
  void expect(Spoil&& spoil, const std::string& expected) {
    std::vector<std::int32_t> q_at = {0, 2, 6};
    std::vector<std::int32_t> k_at = {0, 5, 9};
    AttentionForward a = run_.arguments();
    for (TensorView* view : {&a.inputs.q, &a.inputs.k, &a.inputs.v, &a.out}) {
      view->rank = 3;
      view->sizes = {view->sizes[1], view->sizes[2], view->sizes[3]};
      view->strides = {view->strides[1], view->strides[2], view->strides[3]};
    }
    a.inputs.cu_seqlens_q = TensorView::contiguous(q_at.data(), DType::kInt32, {}, {3});
    a.inputs.cu_seqlens_k = TensorView::contiguous(k_at.data(), DType::kInt32, {}, {3});
    spoil(a.inputs, q_at, k_at);
    try {
      attention_forward({}, a);
      ADD_FAILURE() << "accepted, expected: " << expected;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), expected);
    }
    EXPECT_TRUE(run_.out.untouched());
  }

 private:
  AttentionRun run_;
};

TEST(AttentionErrors, of_offsets) {
  using Offsets = std::vector<std::int32_t>;
  AttentionOffsets test;
  test.expect([](auto& in, Offsets&, Offsets&) { in.cu_seqlens_k = {}; },
              "attention: one of cu_seqlens_q and cu_seqlens_k is missing, expected both or "
              "neither");
  test.expect([](auto& in, Offsets&, Offsets&) { in.cu_seqlens_k.sizes[0] = 2; },
              "attention: cu_seqlens_k has 1 sequences, expected 2 (those of cu_seqlens_q)");
  test.expect([](auto& in, Offsets&, Offsets&) { in.cu_seqlens_q.dtype = DType::kInt64; },
              "attention: cu_seqlens_q is int64, expected int32 (rows of sequences)");
  test.expect(
      [](auto& in, Offsets&, Offsets&) {
        in.cu_seqlens_q.device = {DeviceType::kCuda, 0};
      },
      "attention: cu_seqlens_q is on cuda:0, expected cpu:0");
  const std::string wanted =
      "elements, expected contiguous memory of one dimension, one more than sequences";
  test.expect([](auto& in, Offsets&, Offsets&) { in.cu_seqlens_k.strides[0] = 2; },
              "attention: cu_seqlens_k has 1 dimensions and 3 " + wanted);
  test.expect([](auto& in, Offsets&, Offsets&) { in.cu_seqlens_k.rank = 0; },
              "attention: cu_seqlens_k has 0 dimensions and 1 " + wanted);
  test.expect([](auto&, Offsets& q_at, Offsets&) { q_at[0] = 1; },
              "attention: cu_seqlens_q starts with 1, expected 0");
  test.expect([](auto&, Offsets& q_at, Offsets&) { q_at[2] = 1; },
              "attention: cu_seqlens_q falls from 2 to 1, expected ascending numbers");
  test.expect([](auto&, Offsets&, Offsets& k_at) { k_at[2] = 10; },
              "attention: cu_seqlens_k ends with 10, expected at most 9 (the rows of k)");
  test.expect(
      [](auto& in, Offsets&, Offsets&) {
        in.mask = TensorView::contiguous(nullptr, DType::kBool, {}, {1, 1, 1, 1});
      },
      "attention: mask is given, expected none with cu_seqlens (sequences share no scores)");
}

TEST(AttentionErrors, of_the_backward_pass) {
  AttentionBackwardRun run(*cpu_backend(), DType::kFloat32, {1, 3, 5, 2, 2, 8, 8}, {});
  const auto expect = [&](auto spoil, const std::string& expected) {
    AttentionBackward a = run.arguments();
    spoil(a);
    try {
      attention_backward({}, a);
      ADD_FAILURE() << "accepted, expected: " << expected;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), expected);
    }
    EXPECT_TRUE(run.dq.untouched() && run.dk.untouched() && run.dv.untouched());
  };
  expect([](AttentionBackward& a) { a.lse = {}; }, "attention: lse is missing");
  expect([](AttentionBackward& a) { a.dout.sizes[1] = 2; },
         "attention: dout has shape (1, 2, 2, 8), expected (1, 3, 2, 8) (the shape of out)");
  expect([](AttentionBackward& a) { a.dv.dtype = DType::kFloat16; },
         "attention: dv is float16, expected float32 (the dtype of q)");
  expect([](AttentionBackward& a) { a.dbias = a.dq; },
         "attention: dbias is given, expected none without bias");
  expect([](AttentionBackward& a) { a.dsinks = a.lse; },
         "attention: dsinks is given, expected none without sinks");
}

#ifndef TFK_WITH_CUDA
TEST(AttentionErrors, of_a_build_without_cuda) {
  AttentionRun run(*cpu_backend(), DType::kFloat32, {1, 3, 5, 2, 2, 8, 8}, {});
  AttentionForward a = run.arguments();
  const Device cuda{DeviceType::kCuda, 0};
  for (TensorView* view : {&a.inputs.q, &a.inputs.k, &a.inputs.v, &a.out, &a.lse}) {
    view->device = cuda;
  }
  try {
    attention_forward({.device = cuda}, a);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "attention: device is cuda, expected cpu (this build has no CUDA kernels)");
  }
  EXPECT_TRUE(run.out.untouched());
}
#endif

}  // namespace
}  // namespace transformer_kernels::testing
