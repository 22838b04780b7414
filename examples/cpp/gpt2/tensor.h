// SPDX-License-Identifier: MIT
// Memory of the program's own, views of it for the library, and conversions between formats.
#pragma once

#include <transformer_kernels/tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device.h"

namespace gpt2 {

using Shape = std::vector<std::int64_t>;

tfk::TensorView view_of(void* data, tfk::DType dtype, const Shape& shape);
Shape shape_of(const tfk::TensorView& view);
std::size_t bytes_of(const tfk::TensorView& view);

// The matrix (columns, rows) in the memory of a matrix (rows, columns).
tfk::TensorView transposed(tfk::TensorView matrix);

// The rows of `length` from `first` of a contiguous tensor's first dimension.
tfk::TensorView part_of(tfk::TensorView tensor, std::int64_t first, std::int64_t length);

// The number or tensor at a place of a contiguous tensor's first dimension.
tfk::TensorView entry_of(tfk::TensorView tensor, std::int64_t place);

// Copies contiguous numbers from the host's memory to where a view is, or back.
void write(const tfk::TensorView& to, const void* from);
void read(const tfk::TensorView& from, void* to);

// Zeros, aligned for any kernel. Copies are refused, because views point into the memory.
class Tensor {
 public:
  Tensor() = default;
  Tensor(tfk::DType dtype, const Shape& shape, Device& device = Device::of(tfk::DeviceType::kCpu));

  const tfk::TensorView& view() const { return view_; }
  // The memory has to be the CPU's.
  template <class T>
  std::span<T> values() const {
    return {static_cast<T*>(view_.data), static_cast<std::size_t>(view_.numel())};
  }

 private:
  struct Free {
    Device* device;
    void operator()(void* memory) const { device->release(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  tfk::TensorView view_;
};

// The numbers of a contiguous tensor in the host's memory: where they are, or a copy of them.
class OnHost {
 public:
  explicit OnHost(const tfk::TensorView& view);

  const tfk::TensorView& view() const { return view_; }

 private:
  Tensor copy_;
  tfk::TensorView view_;
};

// Converts between float32, float16 and bfloat16; what does not fit rounds to the nearest, ties to
// even, as the library's kernels do. float16 is read alone.
void convert(const void* from, tfk::DType from_dtype, void* to, tfk::DType to_dtype,
             std::int64_t count);

}  // namespace gpt2
