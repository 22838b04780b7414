// SPDX-License-Identifier: MIT
#include "core/cuda/tensor_map.h"

#include <algorithm>

#include "core/cuda/launch.cuh"

namespace transformer_kernels::cuda {
namespace {

constexpr std::int64_t kStep = 16;

std::int64_t bytes(const TensorMapLayout& layout, std::int64_t elements) {
  return elements * static_cast<std::int64_t>(size_of(layout.dtype));
}

CUtensorMapDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
    case DType::kFloat32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::kFloat16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::kBFloat16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kInt32: return CU_TENSOR_MAP_DATA_TYPE_INT32;
    case DType::kInt64: return CU_TENSOR_MAP_DATA_TYPE_INT64;
    case DType::kBool:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2: break;
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

// A function of the driver, asked of the runtime, so that the library does not depend on the
// driver's. `Function` is the type of its declaration in cuda.h.
template <class Function>
Function* driver_function(const char* op, const char* name) {
  constexpr unsigned kSinceCuda = 12000;
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_cuda(op,
             cudaGetDriverEntryPointByVersion(name, &entry, kSinceCuda, cudaEnableDefault, &found));
  check_cuda(op, found == cudaDriverEntryPointSuccess ? cudaSuccess : cudaErrorInsufficientDriver);
  return reinterpret_cast<Function*>(entry);
}

// The driver asks for a context, which a thread that has only been handed memory, as one of
// autograd's may be, has not got yet: the runtime makes it with its first call that needs one.
void make_context_current(const char* op) {
  int device = 0;
  check_cuda(op, cudaGetDevice(&device));
  check_cuda(op, cudaSetDevice(device));
}

// Throws with the driver's own words where one of its functions fails.
void check_driver(const char* op, const char* function, CUresult status) {
  if (status == CUDA_SUCCESS) return;
  const char* name = nullptr;
  const char* text = nullptr;
  driver_function<decltype(cuGetErrorName)>(op, "cuGetErrorName")(status, &name);
  driver_function<decltype(cuGetErrorString)>(op, "cuGetErrorString")(status, &text);
  throw Error(Error::Kind::kRuntime,
              concat(op, ": ", function, " reports ", name ? name : "an unknown error", ", ",
                     text ? text : "which the driver does not explain"));
}

}  // namespace

bool fits_tensor_map(const TensorMapLayout& layout) {
  constexpr std::int64_t kMostSize = std::int64_t{1} << 32;
  constexpr std::int64_t kMostStride = std::int64_t{1} << 40;
  if (reinterpret_cast<std::uintptr_t>(layout.data) % kStep != 0) return false;
  for (std::size_t i = 0; i < layout.strides.size(); ++i) {
    const std::int64_t stride = bytes(layout, layout.strides[i]);
    if (layout.sizes[i + 1] > 1 && (stride % kStep != 0 || stride <= 0 || stride >= kMostStride)) {
      return false;
    }
  }
  return std::ranges::all_of(layout.sizes,
                             [](std::int64_t size) { return size > 0 && size < kMostSize; });
}

CUtensorMap encode_tensor_map(const char* op, const TensorMapLayout& layout) {
  std::array<cuuint64_t, 5> sizes{};
  std::array<cuuint64_t, 4> strides{};
  std::array<cuuint32_t, 5> box{};
  std::array<cuuint32_t, 5> every{};
  std::ranges::copy(layout.sizes, sizes.begin());
  std::ranges::copy(layout.box, box.begin());
  every.fill(1);
  // The stride of a dimension of size 1 means nothing, but has to be in steps as well.
  for (std::size_t i = 0; i < strides.size(); ++i) {
    strides[i] = layout.sizes[i + 1] > 1 ? bytes(layout, layout.strides[i]) : kStep;
  }
  constexpr const char* kEncode = "cuTensorMapEncodeTiled";
  const auto swizzle =
      bytes(layout, layout.box[0]) == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
  const auto promotion =
      layout.is_promoted ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  static const auto encode = driver_function<decltype(cuTensorMapEncodeTiled)>(op, kEncode);
  CUtensorMap map;
  const auto attempt = [&] {
    return encode(&map, type_of(layout.dtype), static_cast<cuuint32_t>(layout.rank), layout.data,
                  sizes.data(), strides.data(), box.data(), every.data(),
                  CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult status = attempt();
  if (status == CUDA_ERROR_INVALID_CONTEXT) {
    make_context_current(op);
    status = attempt();
  }
  check_driver(op, kEncode, status);
  return map;
}

}  // namespace transformer_kernels::cuda
