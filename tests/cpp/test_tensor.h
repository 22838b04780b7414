// SPDX-License-Identifier: MIT
// A matrix in a backend's memory, surrounded by guard elements that nobody may write.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend.h"
#include "numbers.h"

namespace transformer_kernels::testing {

// How rows lie in memory: `offset` elements after an aligned address, `gap` elements apart.
struct Layout {
  std::int64_t offset = 0;
  std::int64_t gap = 0;
};

class TestTensor {
 public:
  // Every byte, of the elements as well, starts as kPoison.
  TestTensor(Backend& backend, DType dtype, std::int64_t rows, std::int64_t cols,
             Layout layout = {})
      : backend_(backend),
        dtype_(dtype),
        rows_(rows),
        cols_(cols),
        stride_(cols + layout.gap),
        begin_(kGuardBytes + layout.offset * size_of(dtype)),
        host_(begin_ + rows * stride_ * size_of(dtype) + kGuardBytes, kPoison),
        device_(backend.allocate(host_.size())) {
    upload();
  }
  TestTensor(Backend& backend, DType dtype, std::int64_t rows, std::int64_t cols,
             const Values& values, Layout layout = {})
      : TestTensor(backend, dtype, rows, cols, layout) {
    for_each_element([&](std::int64_t i, std::uint8_t* at) { encode(dtype, values[i], at); });
    upload();
  }
  ~TestTensor() { backend_.release(device_); }
  TestTensor(const TestTensor&) = delete;
  TestTensor& operator=(const TestTensor&) = delete;

  TensorView view() const {
    TensorView view = TensorView::contiguous(data(), dtype_, device(), {rows_, cols_});
    view.strides[0] = stride_;
    return view;
  }
  // The elements of a tensor with one row, as a vector.
  TensorView vector() const { return TensorView::contiguous(data(), dtype_, device(), {cols_}); }

  Values values() {
    download();
    Values values(rows_ * cols_);
    for_each_element([&](std::int64_t i, std::uint8_t* at) { values[i] = decode(dtype_, at); });
    return values;
  }

  std::vector<std::uint8_t> bytes() {
    download();
    return host_;
  }

  // Whether all that is not an element is as it was.
  bool surroundings_intact() {
    download();
    std::vector<std::uint8_t> seen = host_;
    const std::int64_t row_bytes = cols_ * size_of(dtype_);
    for (std::int64_t r = 0; r < rows_; ++r) {
      const auto row = seen.begin() + begin_ + r * stride_ * size_of(dtype_);
      std::fill(row, row + row_bytes, kPoison);
    }
    return all_poison(seen);
  }
  bool untouched() { return all_poison(bytes()); }

 private:
  static constexpr std::int64_t kGuardBytes = 256;
  static constexpr std::uint8_t kPoison = 0xcb;

  static bool all_poison(const std::vector<std::uint8_t>& bytes) {
    return std::ranges::count(bytes, kPoison) == std::ssize(bytes);
  }

  Device device() const { return backend_.context().device; }
  void* data() const { return static_cast<char*>(device_) + begin_; }
  // visit(i, at): element i of the matrix, and where it lies in host_.
  template <class Visit>
  void for_each_element(Visit visit) {
    const std::int64_t size = size_of(dtype_);
    for (std::int64_t r = 0; r < rows_; ++r) {
      std::uint8_t* row = host_.data() + begin_ + r * stride_ * size;
      for (std::int64_t c = 0; c < cols_; ++c) visit(r * cols_ + c, row + c * size);
    }
  }
  void upload() { backend_.upload(device_, host_.data(), host_.size()); }
  void download() { backend_.download(host_.data(), device_, host_.size()); }

  Backend& backend_;
  DType dtype_;
  std::int64_t rows_;
  std::int64_t cols_;
  std::int64_t stride_;
  std::int64_t begin_;  // bytes before the first element
  std::vector<std::uint8_t> host_;
  void* device_;
};

// A copy of an array in a backend's memory.
template <class T>
class DeviceArray {
 public:
  DeviceArray(Backend& backend, const T* values, std::size_t count)
      : backend_(backend),
        count_(static_cast<std::int64_t>(count)),
        data_(static_cast<T*>(backend.allocate(count * sizeof(T)))) {
    backend.upload(data_, values, count * sizeof(T));
  }
  ~DeviceArray() { backend_.release(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  TensorView vector(DType dtype) const {
    return TensorView::contiguous(data_, dtype, backend_.context().device, {count_});
  }
  TensorView matrix(DType dtype, std::int64_t rows) const {
    return TensorView::contiguous(data_, dtype, backend_.context().device, {rows, count_ / rows});
  }
  std::vector<T> values() const {
    std::vector<T> values(count_);
    backend_.download(values.data(), data_, count_ * sizeof(T));
    return values;
  }

 private:
  Backend& backend_;
  std::int64_t count_;
  T* data_;
};

}  // namespace transformer_kernels::testing
