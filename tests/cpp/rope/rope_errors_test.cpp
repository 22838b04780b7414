// SPDX-License-Identifier: MIT
// Bad arguments: the words of each error, and that nothing was written before it.
#include "error_of.h"
#include "rope/rope_cases.h"

namespace transformer_kernels::testing {
namespace {

// `spoil` changes one argument of a call that is right otherwise.
template <class Spoil>
void expect_error(const RopeOptions& options, const RopePlaces& places, Spoil&& spoil,
                  const std::string& expected) {
  const RopeShape shape{.batch = options.flat ? 1 : 2, .dim = 16, .rotary_dim = 8};
  RopeRun run(*cpu_backend(), DType::kFloat32, shape, options, places);
  RopeForward a = run.forward();
  spoil(a);
  EXPECT_EQ(error_of([&] { rope_forward({}, a); }), expected);
  EXPECT_TRUE(run.q_rotated.memory().untouched() && run.k_rotated.memory().untouched());
}

template <class Spoil>
void expect_error(Spoil&& spoil, const std::string& expected) {
  expect_error({}, {}, spoil, expected);
}

TEST(RopeErrors, of_tensors) {
  expect_error([](auto& a) { a.q = {}; }, "rope: q is missing");
  expect_error([](auto& a) { a.q.data = nullptr; }, "rope: q is a null pointer");
  expect_error([](auto& a) { a.q.dtype = DType::kInt8; },
               "rope: q is int8, expected a floating-point dtype");
  expect_error([](auto& a) { a.q.rank = 2; },
               "rope: q has 2 dimensions, expected 3 (time, heads, dim) or 4 (batch, time, heads,"
               " dim)");
  expect_error([](auto& a) { a.q.strides[3] = 2; }, "rope: q has a last stride of 2, expected 1");
  expect_error([](auto& a) { a.k.dtype = DType::kFloat16; },
               "rope: k is float16, expected float32 (the dtype of q)");
  expect_error([](auto& a) { a.k.sizes[1] = 4; },
               "rope: k has shape (2, 4, 1, 16), expected (2, 5, 1, 16) (that of q but for the"
               " heads)");
  expect_error([](auto& a) { a.k_rotated = {}; }, "rope: k_rotated is missing");
  expect_error([](auto& a) { a.k = {}; }, "rope: k_rotated is given, expected none without k");
  expect_error([](auto& a) { a.q_rotated.sizes[2] = 2; },
               "rope: q_rotated has shape (2, 5, 2, 16), expected (2, 5, 3, 16) (the shape of q)");
  expect_error([](auto& a) { a.q_rotated.strides[1] = 16; },
               "rope: q_rotated has rows that overlap, expected each element in a place of its"
               " own");
  expect_error([](auto& a) { a.q_rotated.data = static_cast<float*>(a.q.data) + 16; },
               "rope: q_rotated overlaps q, expected memory of its own");
  expect_error([](auto& a) { a.k_rotated.data = a.q.data; },
               "rope: k_rotated overlaps q, expected memory of its own");
}

TEST(RopeErrors, of_tables) {
  const auto with = [](auto&& spoil, const char* expected) {
    expect_error([&](RopeForward& a) { spoil(a.angles); }, expected);
  };
  with([](auto& a) { a.cos = {}; }, "rope: cos is missing");
  with([](auto& a) { a.sin = {}; }, "rope: sin is missing");
  with([](auto& a) { a.cos.dtype = DType::kFloat64; },
       "rope: cos is float64, expected float32 (the dtype of q)");
  with([](auto& a) { a.cos.rank = 1; },
       "rope: cos has 1 dimensions, expected 2 (positions, frequencies)");
  with([](auto& a) { a.cos.sizes[1] = 9; },
       "rope: cos has 9 columns, expected 1 to 8 (pairs in a head of q)");
  with([](auto& a) { a.cos.sizes[1] = 0; },
       "rope: cos has 0 columns, expected 1 to 8 (pairs in a head of q)");
  with([](auto& a) { a.sin.sizes[0] = 3; },
       "rope: sin has shape (3, 4), expected (11, 4) (the shape of cos)");
  with([](auto& a) { a.sin.strides[1] = 2; }, "rope: sin has a last stride of 2, expected 1");
}

TEST(RopeErrors, of_counted_positions) {
  const auto with = [](const RopePlaces& places, const char* expected) {
    expect_error(
        {}, places, [](RopeForward&) {}, expected);
  };
  with({.offset = -1}, "rope: offset is -1, expected 0 or more");
  with({.offset = 7}, "rope: q has position 11, expected 0 to 10 (the rows of cos)");
  with({.offset = 70}, "rope: q has position 70, expected 0 to 10 (the rows of cos)");
  with({.offsets = {0, -1}}, "rope: offsets has position -1, expected 0 to 10 (the rows of cos)");
  with({.offsets = {0}}, "rope: offsets has 1 elements, expected 2 (sequences)");
  with({.section_time = 1}, "rope: section_time is 1, expected 0 to 0 (position_ids has no axes)");
  with({.cu_seqlens = {0, 5}}, "rope: cu_seqlens is given, expected none with q of 4 dimensions");
}

TEST(RopeErrors, of_sequences) {
  const auto with = [](const std::vector<std::int32_t>& at, const char* expected) {
    expect_error(
        {.flat = true}, {.cu_seqlens = at}, [](RopeForward&) {}, expected);
  };
  with({1, 5}, "rope: cu_seqlens starts with 1, expected 0");
  with({0, 3, 2}, "rope: cu_seqlens falls from 3 to 2, expected ascending numbers");
  with({0, 6}, "rope: cu_seqlens ends with 6, expected at most 5 (the rows of q)");
  expect_error(
      {.flat = true}, {.cu_seqlens = {0, 5}},
      [](RopeForward& a) { a.angles.cu_seqlens.dtype = DType::kInt64; },
      "rope: cu_seqlens is int64, expected int32 (rows of sequences)");
}

TEST(RopeErrors, of_position_ids) {
  const std::vector<std::int64_t> ids = {3, 1, 4, 1, 5, 9, 2, 6, 10, 0};
  const auto with = [&](auto&& spoil, const char* expected) {
    expect_error(
        {}, {.ids = ids}, [&](RopeForward& a) { spoil(a.angles); }, expected);
  };
  with([](auto& a) { a.position_ids.dtype = DType::kUInt8; },
       "rope: position_ids is uint8, expected int32 or int64");
  with([](auto& a) { a.position_ids.sizes[1] = 4; },
       "rope: position_ids has shape (2, 4), expected (2, 5) (the shape of tokens of q)");
  with([](auto& a) { a.offset = 1; }, "rope: offset is 1, expected 0 with position_ids");
  with([](auto& a) { a.offsets = a.position_ids; },
       "rope: offsets is given, expected none with position_ids");
  with([](auto& a) { a.section_height = 1; },
       "rope: section_height is 1, expected 0 to 0 (position_ids has no axes)");
  std::vector<std::int64_t> far = ids;
  far[7] = 11;
  expect_error(
      {}, {.ids = far}, [](RopeForward&) {},
      "rope: position_ids has position 11, expected 0 to 10 (the rows of cos)");
  std::vector<std::int64_t> axes;
  for (int i = 0; i < 3; ++i) axes.insert(axes.end(), ids.begin(), ids.end());
  expect_error(
      {}, {.ids = axes, .axes = true, .section_time = 3, .section_height = 2}, [](RopeForward&) {},
      "rope: section_height is 2, expected 0 to 1 (frequencies that are left)");
}

TEST(RopeErrors, of_the_backward_pass) {
  RopeRun run(*cpu_backend(), DType::kFloat32, {}, {});
  RopeBackward a = run.backward();
  a.dk = {};
  EXPECT_EQ(error_of([&] { rope_backward({}, a); }), "rope: dk is missing");
  a = run.backward();
  a.dq.dtype = DType::kFloat16;
  EXPECT_EQ(error_of([&] { rope_backward({}, a); }),
            "rope: dq is float16, expected float32 (the dtype of what it is of)");
}

}  // namespace
}  // namespace transformer_kernels::testing
