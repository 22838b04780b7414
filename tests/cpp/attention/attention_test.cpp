// SPDX-License-Identifier: MIT
#include "attention/attention_cases.h"
#include "backend_test.h"
#include "parallel_hooks.h"
#include "transformer_kernels/error.h"

namespace transformer_kernels::testing {
namespace {

class AttentionOp : public BackendTest {
 protected:
  static void check(AttentionShape s, AttentionOptions o) {
    if (o.numbers.scale == 1) o.numbers.scale = 1 / std::sqrt(static_cast<double>(s.dim));
    check_attention(backend(), dtype(), s, o);
  }
};

INSTANTIATE_TEST_SUITE_P(on, AttentionOp, all_backends_and_dtypes(), name_of_backend_test);

constexpr AttentionNumbers kEveryNumber{
    .softcap = 3, .window_left = 90, .window_right = 0, .dropout = 0.2, .seed = 7, .offset = 9};

TEST_P(AttentionOp, lengths_at_the_edges_of_tiles) {
  for (std::int64_t queries : {1, 47, 49, 97}) {
    for (std::int64_t keys : {1, 16, 63, 65, 193, 257}) {
      check({1, queries, keys, 2, 2, 16, 16}, {});
      check({1, queries, keys, 1, 1, 16, 16}, {.numbers = {.window_right = 0}});
    }
  }
}

TEST_P(AttentionOp, head_dims) {
  for (std::int64_t dim : {1, 2, 7, 8, 31, 33, 64, 96, 128, 200, 256}) {
    check({1, 13, 70, 1, 1, dim, dim}, {.numbers = {.window_right = 0}});
  }
  check({1, 13, 70, 2, 1, 64, 24}, {});
  check({1, 13, 70, 2, 1, 5, 129}, {});
}

// For Hopper, which up to 64 columns has a warpgroup for dq, and above 128 pairs of CTAs.
TEST_P(AttentionOp, heads_over_several_tiles) {
  if (!is_on_cuda(backend())) GTEST_SKIP() << "for plans of CUDA";
  for (std::int64_t dim : {8, 40, 64, 136, 192, 256}) {
    check({1, 150, 300, 2, 1, dim, dim}, {.numbers = {.window_right = 0}});
    check({1, 201, 277, 2, 1, dim, dim}, {.numbers = {.window_left = 70, .window_right = 30}});
    check({2, 130, 70, 1, 1, dim, dim}, {});
    check({1, 70, 130, 2, 1, dim, dim}, {.sinks = true, .dlse = true});
  }
}

// Plans for tiles of many queries want one for each multiprocessor.
TEST_P(AttentionOp, many_tiles) {
  if (!is_on_cuda(backend())) GTEST_SKIP() << "for plans of CUDA";
  for (std::int64_t dim : {64, 128}) {
    check({12, 140, 9, 8, 4, dim, dim}, {});
    check({12, 140, 70, 8, 8, dim, dim}, {.numbers = {.window_left = 7, .window_right = 0}});
  }
}

TEST_P(AttentionOp, wide_heads_with_features) {
  if (!is_on_cuda(backend())) GTEST_SKIP() << "for plans of CUDA";
  const AttentionNumbers capped{.softcap = 3, .window_left = 90, .window_right = 0};
  const AttentionNumbers dropout{.dropout = 0.3, .seed = 7, .offset = 9};
  AttentionNumbers both = capped;
  both.dropout = 0.2;
  both.seed = 5;
  for (std::int64_t dim : {136, 192, 200, 256}) {
    const AttentionShape s{1, 70, 200, 2, 1, dim, dim};
    check(s, {.numbers = {.softcap = 3}});
    check(s, {.numbers = capped, .slopes = true, .sinks = true, .dlse = true});
    check(s, {.numbers = {.scale = -0.1, .window_right = 0}});
    check(s, {.numbers = dropout});
    check(s, {.mask = true, .slopes = true});
    check({2, 70, 144, 1, 1, dim, dim}, {.numbers = both, .mask = true});
  }
}

TEST_P(AttentionOp, query_heads_share_key_heads) {
  check({2, 50, 33, 6, 2, 16, 16}, {});
  check({2, 50, 33, 4, 1, 16, 16}, {.numbers = {.window_right = 0}});
}

TEST_P(AttentionOp, windows_on_either_diagonal) {
  for (bool bottom_right : {true, false}) {
    for (auto [left, right] : {std::pair{-1, 0}, {0, 0}, {5, -1}, {70, 3}, {3, 70}, {-1, 9}}) {
      const AttentionNumbers n{
          .window_left = left, .window_right = right, .bottom_right = bottom_right};
      check({1, 60, 210, 1, 1, 8, 8}, {.numbers = n});
      check({1, 210, 60, 1, 1, 8, 8}, {.numbers = n});
    }
  }
}

TEST_P(AttentionOp, bias_and_mask_broadcast_in_every_way) {
  for (int bits = 0; bits < 16; ++bits) {
    const std::array<bool, 4> varies = {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0,
                                        (bits & 8) != 0};
    check({2, 9, 21, 4, 2, 8, 8}, {.bias = true, .varies = varies});
    check({2, 9, 21, 4, 2, 8, 8}, {.mask = true, .varies = varies});
  }
  check({2, 50, 200, 2, 1, 8, 8}, {.bias = true, .mask = true, .layout = {3, 5}});
}

// Rows that TMA can load, several blocks of keys, and a dim for each of Hopper's plans.
TEST_P(AttentionOp, bias_and_mask_in_aligned_rows) {
  if (!is_on_cuda(backend())) GTEST_SKIP() << "for plans of CUDA";
  for (std::int64_t dim : {16, 128, 256}) {
    const AttentionShape s{2, 70, 208, 2, 1, dim, dim};
    check(s, {.bias = true, .varies = {false, true, true, true}});
    check(s, {.numbers = {.dropout = 0.2, .seed = 7, .offset = 9},
              .mask = true,
              .varies = {true, false, true, true}});
    check(
        s,
        {.numbers = {.softcap = 3, .window_right = 0}, .bias = true, .mask = true, .slopes = true});
  }
}

// The features run over several blocks of queries and tiles of keys.
TEST_P(AttentionOp, features_in_aligned_rows) {
  if (!is_on_cuda(backend())) GTEST_SKIP() << "for plans of CUDA";
  for (std::int64_t dim : {64, 128}) {
    const AttentionShape s{1, 100, 208, 2, 1, dim, dim};
    check(s, {.slopes = true});
    check(s, {.sinks = true, .dlse = true});
    check(s, {.numbers = {.softcap = 3}});
    check(s, {.numbers = {.scale = -0.1, .window_right = 0}});
    check(s, {.numbers = {.dropout = 0.3, .seed = 7, .offset = 9}});
    check(s, {.mask = true});
    check(s, {.bias = true, .dbias = false});
    check(s, {.bias = true, .dbias = false, .wide_bias = true, .mask = true});
    check(s, {.numbers = kEveryNumber,
              .bias = true,
              .dbias = false,
              .mask = true,
              .slopes = true,
              .sinks = true});
  }
}

// Several tiles for each CTA, tiles of one block and of none, and next to none, half and all of it.
TEST_P(AttentionOp, dropout_alone) {
  if (!is_on_cuda(backend())) GTEST_SKIP() << "for plans of CUDA";
  AttentionNumbers n{.window_right = 0, .dropout = 0.3, .seed = 7, .offset = 9};
  for (std::int64_t dim : {64, 128}) {
    check({1, 200, 330, 2, 1, dim, dim}, {.numbers = n});
    check({10, 40, 140, 20, 10, dim, dim}, {.numbers = n});
    for (double dropout : {1.0 / 65536, 0.5, 1.0}) {
      AttentionNumbers other = n;
      other.dropout = dropout;
      check({1, 70, 130, 1, 1, dim, dim}, {.numbers = other});
    }
    n.window_left = 20;
    check({1, 50, 500, 2, 2, dim, dim}, {.numbers = n});
    check({1, 300, 100, 2, 2, dim, dim}, {.numbers = n, .sinks = true});
    n.window_left = -1;
  }
}

// The rows are such that TMA can load neither bias nor mask.
TEST_P(AttentionOp, biases_and_masks_in_any_rows) {
  if (!is_on_cuda(backend())) GTEST_SKIP() << "for plans of CUDA";
  constexpr std::array<bool, 4> kOneQuery = {true, true, false, true};
  constexpr std::array<bool, 4> kOneKey = {true, false, true, false};
  const AttentionNumbers dropout{.dropout = 0.3, .seed = 7, .offset = 9};
  for (std::int64_t dim : {64, 128}) {
    const AttentionShape odd{1, 100, 203, 2, 1, dim, dim};
    check(odd, {.bias = true, .dbias = false});
    check(odd, {.numbers = dropout, .bias = true, .dbias = false});
    check(odd, {.bias = true, .dbias = false, .wide_bias = true});
    check(odd, {.bias = true, .dbias = false, .varies = kOneKey});
    check(odd, {.bias = true, .dbias = false, .wide_bias = true, .varies = kOneQuery});
    const AttentionShape eights{1, 100, 200, 2, 1, dim, dim};
    check(eights, {.mask = true});
    check(eights, {.mask = true, .varies = kOneQuery});
    check(eights, {.numbers = dropout, .bias = true, .dbias = false, .mask = true});
  }
}

// Gradients of biases: parts of tiles and several tiles, one term and many, and each way of sharing
// a sum.
class AttentionBias : public AttentionOp {
 protected:
  static constexpr std::array<bool, 4> kLearned = {false, true, true, true};

  static void check(AttentionShape s, AttentionOptions o) {
    o.bias = true;
    o.numbers.scale = 1 / std::sqrt(static_cast<double>(s.dim));
    unless_refused([&] { check_attention_backward(backend(), dtype(), s, o); });
  }
};

INSTANTIATE_TEST_SUITE_P(on, AttentionBias, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(AttentionBias, is_shared_in_every_way) {
  for (int bits = 0; bits < 16; ++bits) {
    const std::array<bool, 4> varies = {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0,
                                        (bits & 8) != 0};
    check({2, 50, 70, 4, 2, 8, 8}, {.varies = varies});
    check({2, 70, 130, 2, 1, 8, 8}, {.numbers = {.window_right = 0}, .varies = varies});
  }
}

TEST_P(AttentionBias, tiles) {
  for (std::int64_t queries : {1, 33, 64, 65, 129}) {
    for (std::int64_t keys : {1, 63, 64, 65, 130}) {
      check({2, queries, keys, 2, 2, 8, 8}, {.varies = kLearned});
    }
  }
}

TEST_P(AttentionBias, head_dims) {
  for (std::int64_t dim : {8, 40, 64, 72, 128, 200, 256}) {
    check({2, 66, 70, 2, 1, dim, dim}, {.varies = kLearned});
  }
  check({2, 70, 66, 2, 1, 40, 136}, {.varies = kLearned});
  check({2, 70, 66, 2, 1, 96, 24}, {.varies = kLearned});
}

TEST_P(AttentionBias, windows) {
  for (bool bottom_right : {true, false}) {
    for (auto [left, right] : {std::pair{-1, 0}, {0, 0}, {5, -1}, {70, 3}, {3, 70}}) {
      const AttentionNumbers n{
          .window_left = left, .window_right = right, .bottom_right = bottom_right};
      for (const std::array<bool, 4>& varies :
           {kLearned, {true, true, false, true}, {true, true, true, false}}) {
        check({1, 60, 330, 1, 1, 8, 8}, {.numbers = n, .varies = varies});
        check({1, 330, 60, 1, 1, 8, 8}, {.numbers = n, .varies = varies});
      }
    }
  }
}

TEST_P(AttentionBias, features) {
  const AttentionShape s{2, 70, 136, 2, 1, 64, 64};
  check(s, {.wide_bias = true, .varies = kLearned});
  check(s, {.mask = true, .varies = kLearned});
  check(s, {.varies = kLearned, .slopes = true, .sinks = true, .dlse = true});
  check(s, {.numbers = {.softcap = 3}, .varies = kLearned});
  check(s, {.numbers = {.dropout = 0.3, .seed = 7, .offset = 9}, .varies = kLearned});
  check(s, {.numbers = kEveryNumber,
            .mask = true,
            .varies = {true, false, true, true},
            .slopes = true,
            .sinks = true,
            .dlse = true,
            .layout = {3, 5}});
}

TEST_P(AttentionBias, many_terms) {
  check({3, 5, 6, 200, 200, 8, 8}, {.varies = kLearned});
  check({300, 5, 7, 2, 2, 8, 8}, {.varies = kLearned});
  check({60, 20, 30, 8, 8, 8, 8}, {.numbers = {.window_right = 0}, .varies = {}});
}

TEST_P(AttentionBias, queries_without_a_key_add_nothing) {
  check({2, 140, 40, 2, 1, 8, 8}, {.numbers = {.window_right = 0}, .varies = kLearned});
  check({2, 30, 5, 2, 2, 8, 8}, {.mask = true, .varies = kLearned, .share_visible = 0.1});
  check({2, 5, 9, 1, 1, 8, 8}, {.mask = true, .varies = kLearned, .share_visible = 0});
}

TEST_P(AttentionBias, is_repeatable) {
  for (const std::array<bool, 4>& varies : {kLearned, {false, false, false, true}}) {
    AttentionBackwardRun run(backend(), dtype(), {6, 70, 130, 2, 1, 8, 8},
                             {.bias = true, .varies = varies});
    std::vector<std::uint8_t> first;
    for (const Context& context : contexts_with_different_threads(backend())) {
      unless_refused([&] { attention_backward(context, run.arguments()); });
      if (first.empty()) first = run.dbias.bytes();
      EXPECT_EQ(run.dbias.bytes(), first);
    }
  }
}

TEST_P(AttentionOp, features_alone_and_together) {
  const AttentionShape s{2, 50, 70, 4, 2, 16, 16};
  check(s, {.slopes = true});
  check(s, {.sinks = true, .dlse = true});
  check(s, {.dlse = true});
  check(s, {.numbers = {.softcap = 1.5}});
  check(s, {.numbers = {.softcap = 30}});
  check(s, {.numbers = {.scale = -0.3}});
  check(s, {.numbers = {.dropout = 0.3, .seed = 7, .offset = 9}});
  check(s, {.numbers = {.softcap = 3,
                        .window_left = 20,
                        .window_right = 0,
                        .dropout = 0.2,
                        .seed = ~std::uint64_t{0},
                        .offset = std::uint64_t{1} << 40},
            .bias = true,
            .mask = true,
            .slopes = true,
            .sinks = true,
            .dlse = true});
}

// Enough heads for a thread of the CPU to copy those that it works on for itself.
TEST_P(AttentionOp, heads_of_several_blocks_and_tiles) {
  check({4, 110, 300, 4, 2, 24, 40}, {});
  check({2, 110, 300, 8, 4, 40, 24}, {.numbers = {.window_right = 0}});
}

// More heads than a GPU has room for: kernels that stay and walk over tiles take several each.
TEST_P(AttentionOp, many_heads) {
  for (std::int64_t window_right : {-1, 0}) {
    check({10, 3, 20, 40, 20, 8, 8}, {.numbers = {.window_right = window_right}});
  }
}

TEST_P(AttentionOp, layouts) {
  for (Layout layout : {Layout{1, 0}, Layout{0, 8}, Layout{3, 5}}) {
    check({2, 20, 30, 2, 2, 24, 40}, {.layout = layout});
  }
}

TEST_P(AttentionOp, queries_without_a_key_give_zero) {
  check({1, 40, 10, 2, 1, 8, 8}, {.numbers = {.window_right = 0}});
  check({2, 30, 5, 2, 2, 8, 8}, {.mask = true, .share_visible = 0.1});
  check({1, 5, 9, 1, 1, 8, 8}, {.mask = true, .sinks = true, .share_visible = 0});
  check({1, 5, 0, 2, 2, 8, 8}, {});
  check({1, 0, 5, 2, 2, 8, 8}, {});
}

// 1000 keys with scores in the hundreds: every tile raises the maximum by more than exp can hold.
TEST_P(AttentionOp, large_scores) {
  for (double scale : {60.0, -60.0}) {
    unless_refused([&] {
      check_attention_forward(backend(), dtype(), {1, 7, 1000, 1, 1, 64, 8},
                              {.numbers = {.scale = scale}});
    });
  }
}

TEST_P(AttentionOp, repeatable) {
  const AttentionOptions o{.numbers = {.window_right = 0, .dropout = 0.1, .seed = 3}, .bias = true};
  AttentionRun forward(backend(), dtype(), {2, 150, 400, 4, 2, 16, 16}, o);
  AttentionBackwardRun backward(backend(), dtype(), {1, 100, 400, 2, 1, 16, 16}, o);
  AttentionBackward wanted = backward.arguments();
  wanted.deterministic = true;
  std::vector<std::vector<std::uint8_t>> first;
  for (const Context& context : contexts_with_different_threads(backend())) {
    unless_refused([&] { attention_forward(context, forward.arguments()); });
    unless_refused([&] { attention_backward(context, wanted); });
    const std::vector<std::vector<std::uint8_t>> bytes = {
        forward.out.bytes(), forward.lse.bytes(), backward.dq.bytes(),
        backward.dk.bytes(), backward.dv.bytes(), backward.dbias.bytes()};
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
  }
}

// With dims up to 64 gradients repeat without being asked: tiles of keys add to one gradient.
TEST_P(AttentionOp, repeatable_sums_of_tiles) {
  constexpr int kRuns = 20;
  if (backend().context().device.type == DeviceType::kCpu) GTEST_SKIP() << "CUDA alone has tiles";
  for (const std::int64_t window_right : {-1, 0}) {
    AttentionBackwardRun run(backend(), dtype(), {1, 200, 700, 4, 2, 64, 64},
                             {.numbers = {.window_right = window_right}});
    std::vector<std::uint8_t> first;
    for (int i = 0; i < kRuns; ++i) {
      unless_refused([&] { attention_backward(backend().context(), run.arguments()); });
      if (first.empty()) first = run.dq.bytes();
      EXPECT_EQ(run.dq.bytes(), first);
    }
  }
}

// A seed in device memory stands for the numbers that it holds.
TEST_P(AttentionOp, seed_of_the_device) {
  if (backend().context().device.type == DeviceType::kCpu) GTEST_SKIP() << "CUDA alone has one";
  const std::uint64_t numbers[] = {77, std::uint64_t{5} << 33};
  const DeviceArray seed(backend(), numbers, 2);
  AttentionRun run(backend(), dtype(), {1, 40, 70, 2, 2, 16, 16},
                   {.numbers = {.dropout = 0.4, .seed = numbers[0], .offset = numbers[1]}});
  AttentionForward a = run.arguments();
  unless_refused([&] {
    attention_forward(backend().context(), a);
    const Values from_the_cpu = run.out.values();
    a.inputs.seed = seed.vector(DType::kInt64);
    attention_forward(backend().context(), a);
    EXPECT_EQ(run.out.values(), from_the_cpu);
  });
}

}  // namespace
}  // namespace transformer_kernels::testing
