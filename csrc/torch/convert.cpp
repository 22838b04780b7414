// SPDX-License-Identifier: MIT
#include "torch/convert.h"

#include <torch/csrc/stable/ops.h>

#include "core/check.h"
#include "core/cpu/huge_pages.h"
#include "core/dispatch.h"
#include "core/log.h"
#include "core/rows.h"

// Weak: it is null in a PyTorch without CUDA, where the library loads all the same.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t index,
                                                                                   void** stream);

namespace transformer_kernels::torch_ops {
namespace {

using torch::headeronly::ScalarType;

// torch's name and number of each DType, in its order.
struct TorchDType {
  ScalarType scalar;
  std::int32_t (*code)();
};
constexpr TorchDType kTorchDTypes[] = {
    {ScalarType::Double, aoti_torch_dtype_float64},
    {ScalarType::Float, aoti_torch_dtype_float32},
    {ScalarType::Half, aoti_torch_dtype_float16},
    {ScalarType::BFloat16, aoti_torch_dtype_bfloat16},
    {ScalarType::Bool, aoti_torch_dtype_bool},
    {ScalarType::Int, aoti_torch_dtype_int32},
    {ScalarType::Long, aoti_torch_dtype_int64},
    {ScalarType::Char, aoti_torch_dtype_int8},
    {ScalarType::Byte, aoti_torch_dtype_uint8},
    {ScalarType::Float8_e4m3fn, aoti_torch_dtype_float8_e4m3fn},
    {ScalarType::Float8_e5m2, aoti_torch_dtype_float8_e5m2},
};
static_assert(std::size(kTorchDTypes) == kDTypeCount);

std::optional<DType> dtype_of(ScalarType type) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kTorchDTypes[i].scalar == type) return static_cast<DType>(i);
  }
  return std::nullopt;
}

Device device_of(const Tensor& tensor) {
  if (tensor.is_cuda()) return {DeviceType::kCuda, static_cast<int>(tensor.get_device_index())};
  return {};
}

void run_in_torch_pool(void*, std::int64_t count, std::int64_t grain, RangeBody body,
                       void* argument) {
  struct Work {
    RangeBody body;
    void* argument;
  } work{body, argument};
  const auto call = [](std::int64_t begin, std::int64_t end, void* work) {
    const Work& w = *static_cast<Work*>(work);
    w.body(w.argument, begin, end);
  };
  TORCH_ERROR_CODE_CHECK(torch_parallel_for(0, count, grain, call, &work));
}

}  // namespace

std::string name_of_scalar(ScalarType type) {
  if (const auto dtype = dtype_of(type)) return transformer_kernels::name_of(*dtype);
  constexpr const char* kNames[] = {"uint8",     "int8",      "int16",     "int32",
                                    "int64",     "float16",   "float32",   "float64",
                                    "complex32", "complex64", "complex128"};
  const auto code = static_cast<std::size_t>(type);
  return code < std::size(kNames) ? kNames[code] : torch::headeronly::toString(type);
}

TensorView view_of(const char* op, const char* name, const Tensor& tensor) {
  const auto dtype = dtype_of(tensor.scalar_type());
  check_type(dtype.has_value(), op, ": ", name, " is ", name_of_scalar(tensor.scalar_type()),
             ", expected a floating-point dtype");
  check_value(tensor.is_cpu() || tensor.is_cuda(), op, ": ", name,
              " is on a device without kernels, expected cpu or cuda");
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  check_value(sizes.size() <= TensorView::kMaxRank, op, ": ", name, " has ", sizes.size(),
              " dimensions, expected at most ", TensorView::kMaxRank);
  TensorView view;
  view.data = tensor.data_ptr();
  view.dtype = *dtype;
  view.device = device_of(tensor);
  view.rank = static_cast<int>(sizes.size());
  for (int i = 0; i < view.rank; ++i) {
    view.sizes[i] = sizes[i];
    view.strides[i] = strides[i];
  }
  return view;
}

TensorView view_of(const char* op, const char* name, const std::optional<Tensor>& tensor) {
  return tensor ? view_of(op, name, *tensor) : TensorView{};
}

Tensor as_it_is(const char*, const char*, const Tensor& tensor) { return tensor; }

Tensor contiguous(const char*, const char*, const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

Tensor with_even_rows(const char* op, const char* name, const Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor;
  const TensorView view = view_of(op, name, tensor);
  if (view.rank == 0 || row_stride(view) >= 0) return tensor;
  if (log_dispatch()) log_line(concat(op, ": ", name, " has uneven strides: copied"));
  return torch::stable::contiguous(tensor);
}

Tensor with_even_columns(const char* op, const char* name, const Tensor& tensor) {
  const std::int64_t last = tensor.dim() - 1;
  if (last < 0 || tensor.size(last) <= 1 || tensor.stride(last) == 1) return tensor;
  if (log_dispatch()) log_line(concat(op, ": ", name, " has a last stride above 1: copied"));
  return torch::stable::contiguous(tensor);
}

Tensor with_broadcast_columns(const char* op, const char* name, const Tensor& tensor) {
  const std::int64_t last = tensor.dim() - 1;
  return last >= 0 && tensor.stride(last) == 0 ? tensor : with_even_columns(op, name, tensor);
}

Tensor packed_indices(const char* op, const char* name, const Tensor& tensor) {
  const auto dtype = dtype_of(tensor.scalar_type());
  check_type(dtype && is_index(*dtype), op, ": ", name, " is ",
             dtype ? name_of(*dtype) : name_of_scalar(tensor.scalar_type()),
             ", expected int32 or int64");
  if (tensor.is_contiguous()) return tensor;
  if (log_dispatch()) log_line(concat(op, ": ", name, " has gaps: copied"));
  return torch::stable::contiguous(tensor);
}

TensorView broadcast_to(const char* op, const char* name, const TensorView& view,
                        const TensorView& like, const char* reason) {
  TensorView wide = view;
  wide.rank = like.rank;
  bool fits = view.rank <= like.rank;
  for (int i = like.rank - 1, j = view.rank - 1; fits && i >= 0; --i, --j) {
    const std::int64_t size = j >= 0 ? view.sizes[j] : 1;
    wide.sizes[i] = like.sizes[i];
    wide.strides[i] = size == 1 ? 0 : view.strides[j];
    fits = size == 1 || size == like.sizes[i];
  }
  if (!fits) {
    check_value(false, op, ": ", name, " has shape ", shape_of(view),
                ", expected one that broadcasts to ", shape_of(like), " (", reason, ")");
  }
  return wide;
}

TensorView layout_of(Device device, std::span<const std::int64_t> sizes, DType dtype) {
  check_value(sizes.size() <= TensorView::kMaxRank, "an output has ", sizes.size(),
              " dimensions, expected at most ", TensorView::kMaxRank);
  TensorView layout;
  layout.dtype = dtype;
  layout.device = device;
  layout.rank = static_cast<int>(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    layout.sizes[i] = sizes[i];
    layout.strides[i] = stride;
    stride *= std::max<std::int64_t>(sizes[i], 1);
  }
  return layout;
}

TensorView rows_like(const TensorView& x) {
  if (!x.defined()) return {};
  return layout_of(x.device, {x.sizes.data(), static_cast<std::size_t>(x.rank)}, x.dtype);
}

TensorView heads_like(const TensorView& like) {
  if (like.rank != 4 || like.strides[2] <= like.strides[1]) return rows_like(like);
  TensorView swapped = like;
  std::swap(swapped.sizes[1], swapped.sizes[2]);
  TensorView layout = rows_like(swapped);
  std::swap(layout.sizes[1], layout.sizes[2]);
  std::swap(layout.strides[1], layout.strides[2]);
  return layout;
}

TensorView statistics_of(const TensorView& x) {
  const int rank = std::max(x.rank - 1, 0);
  return layout_of(x.device, {x.sizes.data(), static_cast<std::size_t>(rank)},
                   accumulate_dtype(x.dtype));
}

Tensor empty(const TensorView& layout) {
  const bool on_cpu = layout.device.type == DeviceType::kCpu;
  const std::int32_t type = on_cpu ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda();
  AtenTensorHandle handle = nullptr;
  const std::int32_t code = kTorchDTypes[static_cast<int>(layout.dtype)].code();
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(layout.rank, layout.sizes.data(),
                                                  layout.strides.data(), code, type,
                                                  on_cpu ? -1 : layout.device.index, &handle));
  Tensor tensor(handle);
  if (on_cpu) cpu::advise_huge_pages(tensor.data_ptr(), layout.numel() * size_of(layout.dtype));
  return tensor;
}

Tensor empty(Device device, std::span<const std::int64_t> sizes, DType dtype) {
  return empty(layout_of(device, sizes, dtype));
}

Tensor absent(const TensorView& x) {
  constexpr std::int64_t kNoElements[] = {0};
  return empty(x.device, kNoElements, x.dtype);
}

CallContext::CallContext(Device device, bool checks_only) {
  context_.device = device;
  context_.checks_only = checks_only;
  context_.workspace = {&CallContext::allocate, &CallContext::release, this};
  if (context_.device.type == DeviceType::kCpu) {
    context_.parallel_for = {&run_in_torch_pool, nullptr};
    return;
  }
  if (checks_only) return;
  guard_.emplace(context_.device.index);
  check_value(aoti_torch_get_current_cuda_stream != nullptr, "this PyTorch has no CUDA");
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_get_current_cuda_stream(context_.device.index, &context_.stream));
}

void* CallContext::allocate(void* self, std::size_t bytes) {
  CallContext& call = *static_cast<CallContext*>(self);
  const std::int64_t sizes[] = {static_cast<std::int64_t>((bytes + 3) / 4)};
  call.scratch_.push_back(empty(call.context_.device, sizes, DType::kFloat32));
  return call.scratch_.back().data_ptr();
}

void CallContext::release(void* self, void* memory) {
  std::vector<Tensor>& scratch = static_cast<CallContext*>(self)->scratch_;
  const auto found = std::ranges::find_if(
      scratch, [&](const Tensor& tensor) { return tensor.data_ptr() == memory; });
  if (found != scratch.end()) scratch.erase(found);
}

}  // namespace transformer_kernels::torch_ops
