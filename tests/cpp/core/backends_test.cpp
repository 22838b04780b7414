// SPDX-License-Identifier: MIT
#include "core/backends.h"

#include <gtest/gtest.h>

#include "backend.h"
#include "transformer_kernels/fpga/array.h"

namespace transformer_kernels {
namespace {

struct Problem {
  std::string* ran_on;
};

void on_cpu(const Context&, const Problem& problem) { *problem.ran_on = "cpu"; }
void on_cuda(const Context& context, const Problem& problem) {
  *problem.ran_on = concat("cuda:", context.device.index);
}

constexpr Context kCuda{.device = {DeviceType::kCuda, 0}};
constexpr Backends<Problem> kBoth{.cpu = on_cpu, .cuda = on_cuda};

TEST(Backends, the_device_chooses) {
  for (testing::Backend* backend : testing::backends()) {
    const bool on_cuda = testing::is_on_cuda(*backend);
    std::string ran_on;
    run_on("op", kBoth, backend->context(), {&ran_on});
    EXPECT_EQ(ran_on, on_cuda ? "cuda:0" : "cpu");
  }
}

#ifdef TFK_WITH_CUDA
TEST(Backends, the_device_is_current_meanwhile) {
  if (testing::cuda_backend() == nullptr) GTEST_SKIP() << "no CUDA device";
  std::string ran_on;
  constexpr Context kNoSuchDevice{.device = {DeviceType::kCuda, 99}};
  EXPECT_THROW(run_on("op", kBoth, kNoSuchDevice, {&ran_on}), Error);
  EXPECT_EQ(ran_on, "");
}
#endif

TEST(Backends, a_build_without_one_says_so) {
  constexpr Backends<Problem> kCpuAlone{.cpu = on_cpu};
  std::string ran_on;
  try {
    run_on("op", kCpuAlone, kCuda, {&ran_on});
    FAIL() << "ran on " << ran_on;
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "op: device is cuda, expected cpu (this build has no CUDA kernels)");
    EXPECT_EQ(error.kind(), Error::Kind::kValue);
  }
  EXPECT_EQ(ran_on, "");
}

TEST(Backends, a_context_of_checks_runs_nothing) {
  std::string ran_on;
  run_on("op", kBoth, {.checks_only = true}, {&ran_on});
  EXPECT_EQ(ran_on, "");
}

TEST(Backends, numbers_are_checked_before_the_cpu_runs_and_not_on_a_device) {
  constexpr auto kRefuse = [](const Context&, const Problem&) {
    check_value(false, "op: numbers are bad");
  };
  constexpr Backends<Problem> kRefusing{.cpu = on_cpu, .cuda = on_cuda, .numbers = kRefuse};
  std::string ran_on;
  for (const bool checks_only : {true, false}) {
    EXPECT_THROW(run_on("op", kRefusing, {.checks_only = checks_only}, {&ran_on}), Error);
  }
  run_on("op", kRefusing, {.device = kCuda.device, .checks_only = true}, {&ran_on});
  EXPECT_EQ(ran_on, "");
}

// An array stands in the place of the CPU, and of nothing else.
TEST(Backends, an_array_runs_what_has_a_kernel_for_it) {
  constexpr Backends<Problem> kWithArray{
      .cpu = on_cpu, .cuda = on_cuda, .fpga = [](const Context&, const Problem& problem) {
        *problem.ran_on = "fpga";
      }};
  fpga::Array array("r2c4d64n256");
  std::string ran_on;
  run_on("op", kWithArray, {.array = &array}, {&ran_on});
  EXPECT_EQ(ran_on, "fpga");
  const auto message_of = [&](const Backends<Problem>& backends, const Context& context) {
    try {
      run_on("op", backends, context, {&ran_on});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message_of(kBoth, {.array = &array}),
            "op: array is given, expected none (this pass has no kernel for an FPGA)");
  EXPECT_EQ(message_of(kWithArray, {.device = kCuda.device, .array = &array}),
            "op: device is cuda, expected cpu (an FPGA array reads memory of the CPU)");
}

}  // namespace
}  // namespace transformer_kernels
