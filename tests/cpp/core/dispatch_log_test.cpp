// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "core/cpu/isa.h"
#include "transformer_kernels/attention/attention.h"
#include "transformer_kernels/softmax/softmax.h"

namespace transformer_kernels {
namespace {

void run_softmax_with_the_log_on() {
  setenv("TFK_LOG", "dispatch", 1);
  float x[6] = {};
  float y[6];
  SoftmaxForward arguments;
  arguments.x = TensorView::contiguous(x, DType::kFloat32, {}, {2, 3});
  arguments.y = TensorView::contiguous(y, DType::kFloat32, {}, {2, 3});
  softmax_forward({}, arguments);
  _exit(0);
}

void run_attention_with_the_log_on() {
  setenv("TFK_LOG", "dispatch", 1);
  float x[16] = {};
  float out[16];
  const auto view = [](float* data) {
    return TensorView::contiguous(data, DType::kFloat32, {}, {1, 2, 1, 8});
  };
  AttentionForward arguments;
  arguments.inputs.q = arguments.inputs.k = arguments.inputs.v = view(x);
  arguments.out = view(out);
  attention_forward({}, arguments);
  _exit(0);
}

TEST(DispatchLog, says_the_block_sizes_of_attention) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::string line = std::string("cpu_") + name_of(cpu::isa()) + " 48x256 runs";
  EXPECT_EXIT(run_attention_with_the_log_on(), ::testing::ExitedWithCode(0), line);
}

TEST(DispatchLog, names_the_instruction_set_of_the_cpu_kernel) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::string line =
      std::string("softmax forward float32 2x3: cpu_") + name_of(cpu::isa()) + " runs";
  EXPECT_EXIT(run_softmax_with_the_log_on(), ::testing::ExitedWithCode(0), line);
}

}  // namespace
}  // namespace transformer_kernels
