// SPDX-License-Identifier: MIT
// Memory of the program's own, views of it for the library, and conversions between formats.
#pragma once

#include <transformer_kernels/tensor.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

namespace gpt2 {

namespace tfk = transformer_kernels;

using Shape = std::vector<std::int64_t>;

tfk::TensorView view_of(void* data, tfk::DType dtype, const Shape& shape);

// The matrix (columns, rows) in the memory of a matrix (rows, columns).
tfk::TensorView transposed(tfk::TensorView matrix);

// The rows of `length` from `first` of a contiguous tensor's first dimension.
tfk::TensorView part_of(tfk::TensorView tensor, std::int64_t first, std::int64_t length);

// Zeros, aligned for any kernel. Copies are refused, because views point into the memory.
class Tensor {
 public:
  Tensor() = default;
  Tensor(tfk::DType dtype, const Shape& shape);

  const tfk::TensorView& view() const { return view_; }
  template <class T>
  std::span<T> values() const {
    return {static_cast<T*>(view_.data), static_cast<std::size_t>(view_.numel())};
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  tfk::TensorView view_;
};

// Converts between float32, float16 and bfloat16; what does not fit rounds to the nearest, ties to
// even, as the library's kernels do. float16 is read alone.
void convert(const void* from, tfk::DType from_dtype, void* to, tfk::DType to_dtype,
             std::int64_t count);

}  // namespace gpt2
