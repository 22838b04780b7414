// SPDX-License-Identifier: MIT
// Base of the tests that run once for each backend and dtype.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "backend.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels::testing {

class BackendTest : public ::testing::TestWithParam<std::tuple<Backend*, DType>> {
 protected:
  static Backend& backend() { return *std::get<0>(GetParam()); }
  static DType dtype() { return std::get<1>(GetParam()); }
};

inline auto all_backends_and_dtypes() {
  return ::testing::Combine(
      ::testing::ValuesIn(backends()),
      ::testing::Values(DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16));
}

inline std::string name_of_backend_test(
    const ::testing::TestParamInfo<BackendTest::ParamType>& info) {
  return std::string(std::get<0>(info.param)->name()) + "_" + name_of(std::get<1>(info.param));
}

}  // namespace transformer_kernels::testing
