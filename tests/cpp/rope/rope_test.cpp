// SPDX-License-Identifier: MIT
#include "backend_test.h"
#include "rope/rope_cases.h"

namespace transformer_kernels::testing {
namespace {

class Rope : public BackendTest {
 protected:
  // Checks both styles and both directions.
  static void check(const RopeShape& s, RopeOptions o = {}, const RopePlaces& places = {}) {
    for (bool interleaved : {false, true}) {
      for (bool backward : {false, true}) {
        o.interleaved = interleaved;
        o.backward = backward;
        RopeRun(backend(), dtype(), s, o, places).check();
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(on, Rope, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(Rope, head_dims) {
  for (std::int64_t dim : {2, 6, 8, 16, 24, 34, 64, 80, 96, 128, 160, 256}) {
    check({.dim = dim, .rotary_dim = dim});
  }
}

TEST_P(Rope, partial_rotary_dims) {
  for (std::int64_t rotary : {2, 6, 16, 24, 32, 48, 64, 72, 78, 80}) {
    check({.dim = 80, .rotary_dim = rotary});
    check({.dim = 81, .rotary_dim = rotary});
  }
}

TEST_P(Rope, numbers_of_heads) {
  for (const auto& [q, k] : {std::pair{1, 0}, {0, 2}, {1, 1}, {7, 1}, {32, 8}, {33, 33}, {5, 64}}) {
    check({.q_heads = q, .k_heads = k, .dim = 64, .rotary_dim = 64});
  }
}

TEST_P(Rope, numbers_of_tokens) {
  for (const auto& [batch, time] : {std::pair{0, 5}, {2, 0}, {1, 1}, {3, 1}, {1, 33}, {40, 7}}) {
    check({.batch = batch, .time = time, .dim = 32, .rotary_dim = 32, .positions = 33});
  }
}

TEST_P(Rope, layouts) {
  for (bool heads_first : {false, true}) {
    for (Layout layout : {Layout{0, 0}, Layout{0, 16}, Layout{1, 0}, Layout{3, 5}}) {
      const RopeShape s{.dim = 80, .rotary_dim = 64};
      check(s, {.heads_first = heads_first, .layout = layout});
      check(s, {.heads_first = heads_first, .in_place = true, .layout = layout});
    }
  }
}

TEST_P(Rope, tables) {
  for (std::int64_t dim : {6, 48, 64}) {
    for (Layout layout : {Layout{0, 0}, Layout{0, 8}, Layout{1, 0}, Layout{1, 3}}) {
      for (bool wide : {false, true}) {
        check({.dim = dim, .rotary_dim = dim}, {.wide_tables = wide, .table_layout = layout});
      }
    }
  }
}

TEST_P(Rope, offsets) {
  check({}, {}, {.offset = 6});
  for (DType integer : {DType::kInt32, DType::kInt64}) {
    check({}, {}, {.offsets = {6, 0}, .dtype = integer});
    check({}, {}, {.offsets = {1, 3}, .offset = 2, .dtype = integer});
  }
}

TEST_P(Rope, position_ids) {
  const std::vector<std::int64_t> ids = {3, 1, 4, 1, 5, 9, 2, 6, 10, 0};
  for (DType integer : {DType::kInt32, DType::kInt64}) {
    check({.dim = 64, .rotary_dim = 48}, {.heads_first = true}, {.ids = ids, .dtype = integer});
  }
  check({.batch = 1}, {.flat = true}, {.ids = {3, 1, 4, 1, 5}});
}

TEST_P(Rope, positions_of_three_axes) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 30; ++i) ids.push_back(i * 7 % 11);
  for (const auto& [time, height] : {std::pair{16, 24}, {5, 7}, {0, 3}, {64, 0}, {0, 0}}) {
    const RopePlaces places{
        .ids = ids, .axes = true, .section_time = time, .section_height = height};
    check({.dim = 128, .rotary_dim = 128}, {.wide_tables = true}, places);
  }
  const RopePlaces flat{.ids = {ids.begin(), ids.begin() + 15},
                        .axes = true,
                        .section_time = 2,
                        .section_height = 3,
                        .dtype = DType::kInt32};
  check({.batch = 1}, {.flat = true}, flat);
}

TEST_P(Rope, ragged_sequences) {
  const RopeShape s{.batch = 1, .time = 23, .dim = 32, .rotary_dim = 16};
  for (const std::vector<std::int32_t>& at :
       {std::vector<std::int32_t>{0, 5, 5, 12, 23}, {0, 11}, {0}, {0, 0, 3}}) {
    check(s, {.flat = true}, {.cu_seqlens = at});
    check(s, {.in_place = true, .flat = true}, {.cu_seqlens = at});
  }
  check(s, {.flat = true}, {.offsets = {4, 9, 0}, .cu_seqlens = {0, 5, 6, 17}});
}

TEST_P(Rope, many_sequences) {
  std::vector<std::int32_t> at = {0};
  while (at.back() < 300) at.push_back(at.back() + static_cast<std::int32_t>(at.size() % 4));
  check({.batch = 1, .time = 310, .q_heads = 2, .dim = 16, .rotary_dim = 16}, {.flat = true},
        {.cu_seqlens = at});
}

// Rows of one tensor that hold q, k and something else.
TEST_P(Rope, in_place_in_a_packed_tensor) {
  const std::int64_t time = 9, heads = 4, dim = 16;
  const Values values = random_normal(time * 3 * heads * dim, dtype());
  TestTensor packed(backend(), dtype(), time, 3 * heads * dim, values);
  const auto part = [&](int which) {
    TensorView v = packed.view();
    v.rank = 3;
    v.sizes = {time, heads, dim};
    v.strides = {3 * heads * dim, dim, 1};
    v.data = static_cast<char*>(v.data) + which * heads * dim * size_of(dtype());
    return v;
  };
  const RopeRun tables(backend(), dtype(), {.dim = dim, .rotary_dim = dim}, {});
  rope_forward(backend().context(), {.q = part(0),
                                     .k = part(1),
                                     .angles = tables.angles(),
                                     .q_rotated = part(0),
                                     .k_rotated = part(1)});
  const Values got = packed.values();
  for (std::int64_t t = 0; t < time; ++t) {
    for (std::int64_t i = 0; i < 3 * heads * dim; ++i) {
      const std::int64_t at = t * 3 * heads * dim + i;
      if (i >= 2 * heads * dim) {
        ASSERT_EQ(got[at], values[at]);
      }
    }
  }
  const double c = tables.cos_values[3 * dim / 2], s = tables.sin_values[3 * dim / 2];
  const std::int64_t k = (3 * 3 + 1) * heads * dim;
  EXPECT_NEAR(got[k], values[k] * c - values[k + dim / 2] * s, 0.1);
}

TEST_P(Rope, rotations_by_a_table_of_angles_undo_themselves) {
  const RopeShape s{.dim = 64, .rotary_dim = 64};
  RopeRun there(backend(), dtype(), s, {.in_place = true});
  Values cos, sin;
  for (std::size_t i = 0; i < there.cos_values.size(); ++i) {
    const double angle = 0.37 * static_cast<double>(i);
    cos.push_back(rounded_to(dtype(), std::cos(angle)));
    sin.push_back(rounded_to(dtype(), std::sin(angle)));
  }
  TestTensor cos_memory(backend(), dtype(), s.positions, 32, cos);
  TestTensor sin_memory(backend(), dtype(), s.positions, 32, sin);
  RopeForward forward = there.forward();
  forward.angles.cos = cos_memory.view();
  forward.angles.sin = sin_memory.view();
  RopeBackward backward = there.backward();
  backward.angles = forward.angles;
  rope_forward(there.backend.context(), forward);
  rope_backward(there.backend.context(), backward);
  const Values got = there.q.memory().values();
  const double allowed = 8 * unit_roundoff(dtype());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], there.q_values[i], allowed * 5);
  }
}

TEST_P(Rope, what_is_not_finite_stays_in_its_pair) {
  RopeRun run(backend(), dtype(), {.q_heads = 1, .k_heads = 0, .dim = 24, .rotary_dim = 16}, {});
  Values x = run.q_values;
  x[3] = kNan;
  x[17] = kInfinity;  // passes through
  HeadTensor q(backend(), dtype(), run.s, 1, run.o, x);
  RopeForward a = run.forward();
  a.q = q.view();
  rope_forward(backend().context(), a);
  const Values got = run.q_rotated.memory().values();
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (i == 3 || i == 11) {
      EXPECT_TRUE(std::isnan(got[i])) << i;
    } else if (i == 17) {
      EXPECT_EQ(got[i], kInfinity);
    } else {
      EXPECT_TRUE(std::isfinite(got[i])) << i;
    }
  }
}

// A position that the host cannot know and that is out of range gives NaN; the part that passes
// through stays.
TEST_P(Rope, positions_outside_of_the_tables_on_a_device) {
  if (!is_on_cuda(backend())) GTEST_SKIP() << "the host refuses them";
  const RopeShape s{.dim = 48, .rotary_dim = 32};
  check(s, {}, {.ids = {3, 11, 4, -7, 5, 9, 1 << 30, 6, 10, 0}});
  check(s, {}, {.ids = {3, 11, 4, 1, 5, 9, 2, 6, 10, 0}, .dtype = DType::kInt32});
  check(s, {}, {.offsets = {6, 9}});
  check({.batch = 1, .time = 14, .dim = 32, .rotary_dim = 32}, {.flat = true},
        {.cu_seqlens = {0, 2, 14}});
}

TEST_P(Rope, large) {
  check({.batch = 3,
         .time = 150,
         .q_heads = 12,
         .k_heads = 4,
         .dim = 128,
         .rotary_dim = 128,
         .positions = 150},
        {.wide_tables = true});
}

}  // namespace
}  // namespace transformer_kernels::testing
