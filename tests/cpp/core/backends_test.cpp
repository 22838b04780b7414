// SPDX-License-Identifier: MIT
#include "core/backends.h"

#include <gtest/gtest.h>

namespace transformer_kernels {
namespace {

struct Problem {
  std::string* ran_on;
};

void on_cpu(const Context&, const Problem& problem) { *problem.ran_on = "cpu"; }
void on_cuda(const Context& context, const Problem& problem) {
  *problem.ran_on = concat("cuda:", context.device.index);
}

constexpr Context kCuda{.device = {DeviceType::kCuda, 2}};

TEST(Backends, the_device_chooses) {
  constexpr Backends<Problem> kBoth{.cpu = on_cpu, .cuda = on_cuda};
  std::string ran_on;
  run_on("op", kBoth, {}, {&ran_on});
  EXPECT_EQ(ran_on, "cpu");
  run_on("op", kBoth, kCuda, {&ran_on});
  EXPECT_EQ(ran_on, "cuda:2");
}

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

}  // namespace
}  // namespace transformer_kernels
