// SPDX-License-Identifier: MIT
// Conversions between PyTorch's stable ABI and the library: tensors to views; torch's allocator,
// stream and thread pool to a Context; the library's errors to Python exceptions.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/own_kernels.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/error.h"
#include "transformer_kernels/index_error.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels::torch_ops {

using torch::stable::Tensor;

// Throws Error where the library has no such dtype, device or rank; `op` and `name` are for the
// message.
TensorView view_of(const char* op, const char* name, const Tensor& tensor);
TensorView view_of(const char* op, const char* name, const std::optional<Tensor>& tensor);

// "int64": torch's name, where the library has none as well.
std::string name_of_scalar(torch::headeronly::ScalarType type);

// Prepare a tensor for kernels: each returns the tensor itself or, where kernels cannot read it in
// place, a copy for the time of the call (logged). `op` and `name` are for the log.
Tensor as_it_is(const char* op, const char* name, const Tensor& tensor);
Tensor contiguous(const char* op, const char* name, const Tensor& tensor);
Tensor with_even_rows(const char* op, const char* name, const Tensor& tensor);
Tensor with_even_columns(const char* op, const char* name, const Tensor& tensor);
Tensor with_broadcast_columns(const char* op, const char* name, const Tensor& tensor);
// Prepares indices, without gaps. Refuses all other dtypes, also those that the library lacks.
Tensor packed_indices(const char* op, const char* name, const Tensor& tensor);

// `view` broadcast to `like`'s shape by strides of 0, as torch broadcasts: aligned at the last
// dimension. `reason` says in a message what that shape is.
TensorView broadcast_to(const char* op, const char* name, const TensorView& view,
                        const TensorView& like, const char* reason);

// A dimension of a tensor whose rank is checked later, with all else.
inline std::int64_t size_or_0(const TensorView& view, int dim) {
  return view.rank > dim ? view.sizes[dim] : 0;
}

// Layouts of tensors to be made: views without memory, in row-major order. Those of an undefined
// view are undefined.
TensorView layout_of(Device device, std::span<const std::int64_t> sizes, DType dtype);
TensorView rows_like(const TensorView& x);
// For (batch, time, heads, dim), in the order that `like` has its heads and rows in, as PyTorch's
// own attention does.
TensorView heads_like(const TensorView& like);
// One element a row; float32, float64 where x is.
TensorView statistics_of(const TensorView& x);

// Uninitialised memory.
Tensor empty(const TensorView& layout);
Tensor empty(Device device, std::span<const std::int64_t> sizes, DType dtype);
Tensor absent(const TensorView& x);  // 0 elements, for an unwanted output

// torch's current device, stream, allocator and thread pool for the time of one call.
class CallContext {
 public:
  // One that runs nothing, but makes the checks of a call, needs no more than the threads.
  explicit CallContext(Device device, bool checks_only = false);
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  operator const Context&() const { return context_; }

 private:
  static void* allocate(void* self, std::size_t bytes);
  static void release(void* self, void* memory);

  OwnKernels own_;  // Python has chosen
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
  std::vector<Tensor> scratch_;
  Context context_;
};

// Runs `call`; an Error leaves as a std::runtime_error whose text starts with the name of the
// Python exception it stands for, which the Python package raises.
template <class Call>
decltype(auto) translate_errors(Call&& call) {
  try {
    return call();
  } catch (const IndexError& error) {
    throw std::runtime_error(std::string("IndexError: ") + error.what());
  } catch (const Error& error) {
    constexpr const char* kPrefixes[] = {"ValueError: ", "TypeError: ", ""};
    throw std::runtime_error(kPrefixes[static_cast<int>(error.kind())] + std::string(error.what()));
  }
}

}  // namespace transformer_kernels::torch_ops
