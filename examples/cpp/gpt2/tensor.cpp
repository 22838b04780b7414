// SPDX-License-Identifier: MIT
#include "tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace gpt2 {
namespace {

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t to_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_float16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const float magnitude = exponent == 0    ? std::ldexp(static_cast<float>(fraction), -24)
                          : exponent == 31 ? (fraction ? NAN : INFINITY)
                                           : std::ldexp(1024.0f + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

template <class From, class To, class Function>
void each(const void* from, void* to, std::int64_t count, Function function) {
  // Bytes of a file have any alignment.
  const auto* source = static_cast<const std::byte*>(from);
  for (std::int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, source + i * sizeof(From), sizeof(From));
    static_cast<To*>(to)[i] = function(value);
  }
}

}  // namespace

tfk::TensorView view_of(void* data, tfk::DType dtype, const Shape& shape) {
  tfk::TensorView view = tfk::TensorView::contiguous(data, dtype, {}, {});
  view.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.sizes[i] = shape[i];
    view.strides[i] = stride;
    stride *= shape[i];
  }
  return view;
}

Shape shape_of(const tfk::TensorView& view) {
  return {view.sizes.begin(), view.sizes.begin() + view.rank};
}

std::size_t bytes_of(const tfk::TensorView& view) {
  return static_cast<std::size_t>(view.numel() * tfk::size_of(view.dtype));
}

tfk::TensorView transposed(tfk::TensorView matrix) {
  std::swap(matrix.sizes[0], matrix.sizes[1]);
  std::swap(matrix.strides[0], matrix.strides[1]);
  return matrix;
}

tfk::TensorView part_of(tfk::TensorView tensor, std::int64_t first, std::int64_t length) {
  tensor.data =
      static_cast<std::byte*>(tensor.data) + first * tensor.strides[0] * tfk::size_of(tensor.dtype);
  tensor.sizes[0] = length;
  return tensor;
}

tfk::TensorView entry_of(tfk::TensorView tensor, std::int64_t place) {
  tensor = part_of(tensor, place, 1);
  --tensor.rank;
  std::shift_left(tensor.sizes.begin(), tensor.sizes.end(), 1);
  std::shift_left(tensor.strides.begin(), tensor.strides.end(), 1);
  return tensor;
}

void write(const tfk::TensorView& to, const void* from) {
  Device::of(to.device.type).write(to.data, from, bytes_of(to));
}

void read(const tfk::TensorView& from, void* to) {
  Device::of(from.device.type).read(to, from.data, bytes_of(from));
}

Tensor::Tensor(tfk::DType dtype, const Shape& shape, Device& device)
    : memory_(nullptr, Free{&device}),
      view_(view_of(nullptr, dtype, shape)) {
  memory_.reset(device.allocate(bytes_of(view_)));
  view_.data = memory_.get();
  view_.device = device.context().device;
}

OnHost::OnHost(const tfk::TensorView& view) : view_(view) {
  if (view.device.type == tfk::DeviceType::kCpu) return;
  copy_ = Tensor(view.dtype, shape_of(view));
  read(view, copy_.view().data);
  view_ = copy_.view();
}

void convert(const void* from, tfk::DType from_dtype, void* to, tfk::DType to_dtype,
             std::int64_t count) {
  using tfk::DType;
  using Half = std::uint16_t;
  const bool widens = to_dtype == DType::kFloat32;
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, count * tfk::size_of(to_dtype));
  } else if (from_dtype == DType::kFloat32 && to_dtype == DType::kBFloat16) {
    each<float, Half>(from, to, count, to_bfloat16);
  } else if (from_dtype == DType::kBFloat16 && widens) {
    each<Half, float>(from, to, count, from_bfloat16);
  } else if (from_dtype == DType::kFloat16 && widens) {
    each<Half, float>(from, to, count, from_float16);
  } else if (from_dtype == DType::kFloat16 && to_dtype == DType::kBFloat16) {
    each<Half, Half>(from, to, count, [](Half bits) { return to_bfloat16(from_float16(bits)); });
  } else {
    throw std::invalid_argument("no conversion between these formats");
  }
}

}  // namespace gpt2
