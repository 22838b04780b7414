// SPDX-License-Identifier: MIT
// Who multiplies in a layer: the rules, on devices that this machine need not have, and the times.
#include "linear/choice.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "core/check.h"
#include "core/own_kernels.h"
#include "core/times.h"
#include "device_limits.h"

namespace transformer_kernels {
namespace {

using cuda::kHopper;
constexpr Blas kSlowBlas{.is_fast = false, .fills_units = false};

LayerWeight weight_of(std::int64_t rows, std::int64_t cols, DType dtype) {
  return {.given = true,
          .dtype = dtype,
          .rank = 2,
          .rows = rows,
          .cols = cols,
          .row_step = cols,
          .col_step = 1};
}

LayerWeight by_columns(LayerWeight w) {
  w.row_step = 1;
  w.col_step = w.rows;
  return w;
}

Layer layer(DeviceType device, std::int64_t rows, std::int64_t terms, std::int64_t cols,
            DType dtype) {
  return {.device = {device, 0},
          .limits = device == DeviceType::kCuda ? kHopper : cuda::DeviceLimits{},
          .blas = kSlowBlas,
          .dtype = dtype,
          .rows = rows,
          .terms = terms,
          .weight = weight_of(cols, terms, dtype)};
}

Layer on_cpu(std::int64_t rows, std::int64_t terms, std::int64_t cols,
             DType dtype = DType::kFloat32) {
  return layer(DeviceType::kCpu, rows, terms, cols, dtype);
}
Layer on_hopper(std::int64_t rows, std::int64_t terms = 768, std::int64_t cols = 3072,
                DType dtype = DType::kBFloat16) {
  return layer(DeviceType::kCuda, rows, terms, cols, dtype);
}

testing::AssertionResult is_ours(const Layer& l) {
  const LayerChoice choice = choose_by_rules(l);
  return choice.ours ? testing::AssertionSuccess() : testing::AssertionFailure() << choice.reason;
}
testing::AssertionResult is_torchs(const Layer& l, const std::string& because) {
  const LayerChoice choice = choose_by_rules(l);
  if (choice.ours) return testing::AssertionFailure() << "ours runs";
  return choice.reason.find(because) != std::string::npos
             ? testing::AssertionSuccess()
             : testing::AssertionFailure() << choice.reason;
}

// ---- the CPU ------------------------------------------------------------------------------------

TEST(LayerChoice, many_rows_on_a_cpu_whose_blas_is_slow) {
  EXPECT_TRUE(is_ours(on_cpu(512, 128, 128)));
  EXPECT_TRUE(is_torchs(on_cpu(512, 128, 128, DType::kBFloat16), "16-bit numbers"));
  EXPECT_TRUE(is_torchs(on_cpu(17, 128, 128), "not many rows"));
  EXPECT_TRUE(is_torchs(on_cpu(33, 128, 128), "the product is small"));
  Layer l = on_cpu(512, 128, 128);
  l.blas.fills_units = true;
  EXPECT_TRUE(is_torchs(l, "as fast on this processor"));
  l = on_cpu(48, 512, 512);
  EXPECT_TRUE(is_ours(l));
  l.needs_dweight = true;
  EXPECT_TRUE(is_torchs(l, "not many rows"));
}

TEST(LayerChoice, few_rows_on_a_cpu) {
  EXPECT_TRUE(is_ours(on_cpu(1, 512, 1024)));
  EXPECT_TRUE(is_ours(on_cpu(16, 512, 1024)));
  EXPECT_TRUE(is_torchs(on_cpu(1, 512, 1023), "the weight is small"));
  EXPECT_TRUE(is_torchs(on_cpu(16, 128, 128), "the weight is small"));
  Layer l = on_cpu(1, 512, 1024);
  l.blas.is_fast = true;
  EXPECT_TRUE(is_torchs(l, "reads the weight as fast"));
  l.rows = 2;
  EXPECT_TRUE(is_ours(l));
  l.needs_dx = true;
  EXPECT_TRUE(is_torchs(l, "only the forward pass"));
  EXPECT_TRUE(is_ours(on_cpu(4, 512, 1024, DType::kBFloat16)));
  EXPECT_TRUE(is_torchs(on_cpu(5, 512, 1024, DType::kBFloat16), "own instructions"));
  l = on_cpu(8, 512, 1024, DType::kBFloat16);
  l.weight = by_columns(l.weight);
  EXPECT_TRUE(is_ours(l));
  l.rows = 9;
  EXPECT_TRUE(is_torchs(l, "own instructions"));
}

TEST(LayerChoice, little_products_are_pytorchs_by_every_rule) {
  for (const std::int64_t rows : {0, 1, 16, 17, 33, 200, 4000}) {
    for (const std::int64_t cols : {1, 100, 1000}) {
      const Layer l = on_cpu(rows, 250, cols);
      if (cols * 250 >= kFewestNumbersOfWeight || rows * cols * 250 >= kFewestProducts) continue;
      EXPECT_FALSE(choose_by_rules(l).ours) << rows << "x" << cols;
    }
  }
}

TEST(LayerChoice, products_of_256_bits_fill_zen_4_and_not_zen_5) {
  constexpr bool kMkl = true, kAvx512 = true;
  EXPECT_TRUE(blas_of(false, 25, kMkl, kAvx512).fills_units);
  EXPECT_FALSE(blas_of(false, 25, kMkl, kAvx512).is_fast);
  EXPECT_FALSE(blas_of(false, 26, kMkl, kAvx512).fills_units);
  EXPECT_TRUE(blas_of(false, 26, kMkl, false).fills_units);
  EXPECT_TRUE(blas_of(false, 26, false, kAvx512).fills_units);
  EXPECT_TRUE(blas_of(true, 6, kMkl, kAvx512).fills_units);
}

TEST(LayerChoice, onednn_multiplies_large_products_of_16_bits_on_tiles) {
  constexpr Blas kTiles{.has_tiles = true};
  constexpr std::int64_t kLarge = std::int64_t{1} << 28;
  EXPECT_EQ(slower_by_onednn(kLarge, DType::kBFloat16, kTiles), nullptr);
  EXPECT_STREQ(slower_by_onednn(kLarge - 1, DType::kBFloat16, kTiles),
               "calling it costs more than it gains");
  EXPECT_STREQ(slower_by_onednn(kLarge, DType::kFloat32, kTiles),
               "PyTorch's is as fast for this dtype");
  EXPECT_NE(slower_by_onednn(kLarge, DType::kBFloat16, Blas{}), nullptr);
}

// ---- Hopper -------------------------------------------------------------------------------------

TEST(LayerChoice, many_rows_on_hopper) {
  EXPECT_TRUE(is_ours(on_hopper(2048)));
  EXPECT_TRUE(is_torchs(on_hopper(511), "few rows"));
  EXPECT_TRUE(is_torchs(on_hopper(17), "few rows"));
  Layer l = on_hopper(2048);
  l.weight = by_columns(l.weight);
  EXPECT_TRUE(is_ours(l));
  EXPECT_TRUE(is_torchs(on_hopper(2048, 768, 768), "processors idle"));
  l = on_hopper(2048);
  l.needs_dx = true;  // of 768 columns, too
  EXPECT_TRUE(is_torchs(l, "processors idle"));
}

TEST(LayerChoice, what_hopper_cannot_multiply) {
  EXPECT_TRUE(is_torchs(on_hopper(2048, 768, 3072, DType::kFloat32), "16-bit numbers"));
  EXPECT_TRUE(is_torchs(on_hopper(2048, 767), "weight are not 16-byte aligned"));
  Layer l = on_hopper(2048);
  l.dtype.reset();
  EXPECT_TRUE(is_torchs(l, "16-bit numbers"));
  l = on_hopper(2048);
  l.weight.dtype = DType::kFloat16;
  EXPECT_TRUE(is_torchs(l, "another dtype"));
  l = on_hopper(2048);
  l.weight.address = 8;
  EXPECT_TRUE(is_torchs(l, "weight are not 16-byte aligned"));
  l = on_hopper(2048);
  l.down_weight = weight_of(768, 3071, DType::kBFloat16);
  EXPECT_TRUE(is_torchs(l, "rows of down_weight"));
  l = on_hopper(2048);
  l.up_weight = weight_of(3072, 767, DType::kBFloat16);
  EXPECT_TRUE(is_torchs(l, "rows of up_weight"));
  l = on_hopper(2048, 768, 3076);
  EXPECT_EQ(refusal_of_layer(l), nullptr);
  l.activated = true;
  EXPECT_TRUE(is_torchs(l, "features are no multiple of 8"));
  l = on_hopper(2048);
  l.weight.rank = 1;
  EXPECT_TRUE(is_torchs(l, "no matrix"));
  l.terms = -1;
  EXPECT_TRUE(is_torchs(l, "no dimensions"));
}

TEST(LayerChoice, other_cards_run_fused_layers) {
  for (const cuda::DeviceLimits& limits : {cuda::kAmpere, cuda::kAda, cuda::kBlackwellDesktop}) {
    Layer l = on_hopper(2048);
    l.limits = limits;
    EXPECT_TRUE(is_torchs(l, "faster without an activation"));
    l.activated = true;
    EXPECT_TRUE(is_ours(l));
    Layer wide = on_hopper(2048, 2056, 512);
    wide.limits = limits;
    wide.activated = true;
    EXPECT_TRUE(is_torchs(wide, "many terms"));
    l.rows = 127;
    EXPECT_TRUE(is_torchs(l, "few rows"));
    l.limits.architecture = 75;
    EXPECT_TRUE(is_torchs(l, "compute capability 8.0"));
  }
}

TEST(LayerChoice, few_rows_on_cuda) {
  EXPECT_TRUE(is_ours(on_hopper(8, 512, 512)));
  EXPECT_TRUE(is_torchs(on_hopper(8, 508, 512), "multiple of 8"));
  EXPECT_TRUE(is_torchs(on_hopper(8, 512, (1 << 15) + 1), "large weight"));
  Layer l = on_hopper(8, 512, 512);
  l.weight = by_columns(l.weight);
  EXPECT_TRUE(is_torchs(l, "kept by columns"));
  l.rows = 4;
  EXPECT_TRUE(is_ours(l));
  l.needs_dweight = true;
  EXPECT_TRUE(is_torchs(l, "forward pass"));
  l = on_hopper(8, 512, 512);
  l.limits.architecture = 80;
  EXPECT_TRUE(is_torchs(l, "measured on Hopper alone"));
  EXPECT_EQ(refusal_of_few_rows(l), nullptr);
  l.limits.architecture = 75;
  EXPECT_TRUE(is_torchs(l, "compute capability 8.0"));
  l.rows = 17;
  EXPECT_STREQ(refusal_of_few_rows(l), "there are more than 16 rows");
}

TEST(LayerChoice, gradients_of_few_tiles_are_pytorchs) {
  Layer l = on_hopper(4096);
  EXPECT_EQ(choose_by_rules(l).routes, Routes{});
  l.needs_dx = true;
  EXPECT_EQ(choose_by_rules(l).routes, Routes{});
  l.needs_dweight = true;
  EXPECT_TRUE(is_ours(l));
  EXPECT_EQ(choose_by_rules(l).routes, (Routes{.dweight = kTorch}));
  l.refuses_cublas = true;
  EXPECT_EQ(choose_by_rules(l).routes, Routes{});
  l = on_hopper(2048, 4096, 16384);
  l.needs_dweight = true;
  EXPECT_EQ(choose_by_rules(l).routes, Routes{});
}

TEST(Rules, tiles_that_keep_processors_busy) {
  EXPECT_TRUE(fills_processors(128 * 132, 128, 132));
  EXPECT_FALSE(fills_processors(128 * 133, 128, 132));  // of two rounds, one tile in the second
  EXPECT_TRUE(fills_processors(128 * 12, 192 * 11, 132));
  EXPECT_FALSE(fills_processors(0, 128, 132));
}

// ---- times --------------------------------------------------------------------------------------

class TimesOfLayers : public testing::Test {
 protected:
  void TearDown() override {
    read_times("", "", "");
    std::remove(path_.c_str());
  }
  LayerChoice chosen(const Layer& l, const std::string& times, const char* machine = "this") {
    std::ofstream(path_) << kTimesHeader << "\nv\tthis\t" << describe(l) << '\t' << times << '\n';
    EXPECT_EQ(read_times(path_, "v", ""), "");
    return choose_layer(l, machine);
  }
  std::string path_ = testing::TempDir() + "tfk_layer_times" + std::to_string(getpid());
};

TEST_F(TimesOfLayers, what_was_faster_runs) {
  const Layer l = on_cpu(40, 24, 16);
  LayerChoice choice = chosen(l, "ours=1\ttorch=2");
  EXPECT_TRUE(choice.ours && choice.by_times);
  EXPECT_EQ(choice.reason, "it took 1.0 us here, PyTorch's 2.0");
  EXPECT_FALSE(chosen(l, "ours=2\ttorch=1").ours);
  EXPECT_TRUE(chosen(l, "ours=1\ttorch=1").ours);
  choice = chosen(l, "ours=2\ttorch=3\ty 3, dx torch, dweight ours=1.5");
  EXPECT_TRUE(choice.ours);
  EXPECT_EQ(choice.routes, (Routes{3, kTorch, kOurs}));
  EXPECT_EQ(choice.reason, "it took 2.0 us here, PyTorch's 3.0, by routes 1.5");
  EXPECT_FALSE(chosen(l, "ours=1\ttorch=2", "another").by_times);
}

TEST_F(TimesOfLayers, routes_that_are_none_are_passed_over) {
  const Layer l = on_cpu(40, 24, 16);
  for (const char* fault : {"cat", "y 3, dx 4", "y -3, dx ours, dweight ours"}) {
    const LayerChoice choice = chosen(l, concat("ours=2\ttorch=3\t", fault, "=1"));
    EXPECT_TRUE(choice.ours) << fault;
    EXPECT_EQ(choice.routes, Routes{}) << fault;
  }
}

TEST_F(TimesOfLayers, only_pytorch_multiplies_what_only_it_can) {
  EXPECT_FALSE(chosen(on_hopper(2048, 768, 3072, DType::kFloat32), "ours=1\ttorch=2").ours);
}

TEST(LayerDescription, has_all_that_times_depend_on) {
  Layer l = on_cpu(40, 24, 16);
  EXPECT_EQ(describe(l), "linear float32 40x24x16");
  l.weight = by_columns(l.weight);
  l.activated = l.needs_dx = l.needs_dweight = true;
  EXPECT_EQ(describe(l), "linear_act float32 40x24x16 by columns dx dweight");
}

}  // namespace
}  // namespace transformer_kernels
