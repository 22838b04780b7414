// SPDX-License-Identifier: MIT
// Base of the tests that run on the CPU alone, once for each dtype.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "backend.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels::testing {

class CpuTest : public ::testing::TestWithParam<DType> {
 protected:
  static DType dtype() { return GetParam(); }
  static Backend& cpu() { return *backends().front(); }
};

inline auto floating_dtypes() {
  return ::testing::Values(DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16);
}

inline std::string name_of_cpu_test(const ::testing::TestParamInfo<DType>& info) {
  return name_of(info.param);
}

}  // namespace transformer_kernels::testing
