// SPDX-License-Identifier: MIT
// The rules of engines on CUDA, as calls of C++ meet them.
#ifdef TFK_WITH_CUDA

#include <gtest/gtest.h>

#include <thread>

#include "backend_test.h"
#include "core/cuda/device.h"
#include "core/own_kernels.h"
#include "test_tensor.h"
#include "transformer_kernels/linear/linear.h"

namespace transformer_kernels::testing {
namespace {

void multiply(Backend& backend, std::int64_t rows, bool own) {
  constexpr std::int64_t kSize = 512;
  const auto make = [&](std::int64_t n) {
    return TestTensor(backend, DType::kBFloat16, n, kSize, Values(n * kSize, 0.5));
  };
  const TestTensor x = make(rows), weight = make(kSize), y = make(rows);
  // A thread of its own follows the rules, as a program does; that of the tests does not.
  std::thread([&] {
    std::optional<OwnKernels> wanted;
    if (own) wanted.emplace();
    linear_forward(backend.context(), {.x = x.view(), .weight = weight.view(), .y = y.view()});
  }).join();
}

void expect_line(std::int64_t rows, bool own, const char* line) {
  Backend* const backend = cuda_backend();
  if (backend == nullptr || cuda::device_limits(0).architecture != 90) {
    GTEST_SKIP() << "the rules are of Hopper";
  }
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("TFK_LOG", "dispatch", 1);
        multiply(*backend, rows, own);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), line);
}

TEST(CudaRules, products_of_few_hundred_rows_are_another_librarys) {
  expect_line(100, false, "hopper is slower: there are few rows\n.*cublaslt runs");
}

TEST(CudaRules, who_has_chosen_gets_our_kernels) { expect_line(100, true, "hopper runs"); }

TEST(CudaRules, few_rows_are_ours) { expect_line(8, false, "few_rows runs"); }

}  // namespace
}  // namespace transformer_kernels::testing

#endif
