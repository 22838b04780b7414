// SPDX-License-Identifier: MIT
// Non-owning view of a strided tensor: the only way data enters or leaves the library.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>

namespace transformer_kernels {

enum class DType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kBool,  // a byte, 0 or 1
  kInt32,
  kInt64,
  kInt8,
  kUInt8,
  kFloat8E4M3,  // without infinities: float8_e4m3fn
  kFloat8E5M2,
};
inline constexpr int kDTypeCount = 11;

constexpr std::int64_t size_of(DType dtype) {
  constexpr std::int64_t kBytes[kDTypeCount] = {8, 4, 2, 2, 1, 4, 8, 1, 1, 1, 1};
  return kBytes[static_cast<int>(dtype)];
}

constexpr const char* name_of(DType dtype) {
  constexpr const char* kNames[kDTypeCount] = {"float64", "float32",       "float16",    "bfloat16",
                                               "bool",    "int32",         "int64",      "int8",
                                               "uint8",   "float8_e4m3fn", "float8_e5m2"};
  return kNames[static_cast<int>(dtype)];
}

// Whether kernels compute in this dtype, or in a wider format that holds each of its numbers:
// float64, float32, float16, bfloat16. The 8-bit formats are not: a number stored in them has a
// scale beside it (quantized.h), and means little without it.
constexpr bool is_floating(DType dtype) { return dtype <= DType::kBFloat16; }

// Whether labels, positions and indices of rows may have this dtype.
constexpr bool is_index(DType dtype) { return dtype == DType::kInt32 || dtype == DType::kInt64; }

enum class DeviceType : std::uint8_t { kCpu, kCuda };

constexpr const char* name_of(DeviceType type) { return type == DeviceType::kCpu ? "cpu" : "cuda"; }

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;  // ordinal of the CUDA device; 0 on the CPU

  friend constexpr bool operator==(const Device&, const Device&) = default;
};

// A pointer, its dtype and device, sizes and strides (in elements). A default-constructed view
// stands for an absent optional argument. The caller keeps the memory alive.
struct TensorView {
  static constexpr int kMaxRank = 8;

  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Device device{};
  int rank = -1;
  std::array<std::int64_t, kMaxRank> sizes{};
  std::array<std::int64_t, kMaxRank> strides{};

  constexpr bool defined() const { return rank >= 0; }

  constexpr std::int64_t numel() const {
    std::int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= sizes[i];
    return count;
  }

  // View of row-major memory without gaps. `shape` has at most kMaxRank entries.
  static constexpr TensorView contiguous(void* data, DType dtype, Device device,
                                         std::initializer_list<std::int64_t> shape) {
    TensorView view;
    view.data = data;
    view.dtype = dtype;
    view.device = device;
    view.rank = static_cast<int>(shape.size());
    // A loop would do, but GCC 12.4 to 14 lose entries that it reads, at -O1 and wherever they are
    // told -fno-strict-aliasing.
    std::copy(shape.begin(), shape.end(), view.sizes.begin());
    std::int64_t stride = 1;
    for (int i = view.rank - 1; i >= 0; --i) {
      view.strides[i] = stride;
      stride *= view.sizes[i];
    }
    return view;
  }
};

}  // namespace transformer_kernels
