// SPDX-License-Identifier: MIT
#ifdef TFK_WITH_CUDA

#include "core/cuda/tensor_map.h"

#include <gtest/gtest.h>

#include <string>

#include "backend.h"
#include "transformer_kernels/error.h"

namespace transformer_kernels::cuda {
namespace {

TensorMapLayout layout_of(void* data) {
  return {.dtype = DType::kBFloat16,
          .data = data,
          .sizes = {64, 8, 1, 1, 1},
          .strides = {64, 512, 512, 512},
          .box = {64, 8, 1, 1, 1}};
}

TEST(TensorMap, says_what_fits) {
  EXPECT_TRUE(fits_tensor_map(layout_of(reinterpret_cast<void*>(0x1000))));
  EXPECT_FALSE(fits_tensor_map(layout_of(reinterpret_cast<void*>(0x1008))));
  TensorMapLayout uneven = layout_of(reinterpret_cast<void*>(0x1000));
  uneven.strides[0] = 60;
  EXPECT_FALSE(fits_tensor_map(uneven));
  TensorMapLayout empty = layout_of(reinterpret_cast<void*>(0x1000));
  empty.sizes[4] = 0;
  EXPECT_FALSE(fits_tensor_map(empty));
}

TEST(TensorMap, failures_have_the_names_of_the_driver) {
  if (testing::cuda_backend() == nullptr) GTEST_SKIP() << "no CUDA device";
  TensorMapLayout layout = layout_of(reinterpret_cast<void*>(0x1000));
  layout.box[1] = 4096;  // a box has at most 256 elements a dimension
  try {
    encode_tensor_map("probe", layout);
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("probe: cuTensorMapEncodeTiled reports CUDA_ERROR_INVALID_VALUE"),
              std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace transformer_kernels::cuda

#endif
