// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "core/dispatch.h"
#include "transformer_kernels/quantized.h"

namespace transformer_kernels {
namespace {

struct Row {
  DType dtype;
  const char* name;
  std::int64_t bytes;
  bool floating;
};
constexpr Row kRows[] = {
    {DType::kFloat64, "float64", 8, true},
    {DType::kFloat32, "float32", 4, true},
    {DType::kFloat16, "float16", 2, true},
    {DType::kBFloat16, "bfloat16", 2, true},
    {DType::kBool, "bool", 1, false},
    {DType::kInt32, "int32", 4, false},
    {DType::kInt64, "int64", 8, false},
    {DType::kInt8, "int8", 1, false},
    {DType::kUInt8, "uint8", 1, false},
    {DType::kFloat8E4M3, "float8_e4m3fn", 1, false},
    {DType::kFloat8E5M2, "float8_e5m2", 1, false},
};
static_assert(std::size(kRows) == kDTypeCount);

TEST(DTypes, have_names_and_sizes) {
  for (const auto& [dtype, name, bytes, floating] : kRows) {
    EXPECT_STREQ(name_of(dtype), name);
    EXPECT_EQ(size_of(dtype), bytes) << name;
    EXPECT_EQ(is_floating(dtype), floating) << name;
  }
}

TEST(DTypes, kernels_are_chosen_for_floating_ones_alone) {
  for (const auto& [dtype, name, bytes, floating] : kRows) {
    const auto size = [dtype] {
      return dispatch_float(dtype, []<class T>() { return sizeof(T); });
    };
    if (floating) {
      EXPECT_EQ(size(), static_cast<std::size_t>(bytes)) << name;
    } else {
      EXPECT_THROW(size(), Error) << name;
    }
  }
}

}  // namespace
}  // namespace transformer_kernels
