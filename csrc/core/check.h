// SPDX-License-Identifier: MIT
// Argument checks. A message is put together only when its check fails.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "transformer_kernels/api.h"
#include "transformer_kernels/error.h"
#include "transformer_kernels/quantized.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

// Text is put together without streams: these take their facets from a locale of the process, which
// belongs to another copy of the C++ library where there are two.
TFK_API void append_number(std::string& text, std::int64_t number);
TFK_API void append_number(std::string& text, std::uint64_t number);
TFK_API void append_number(std::string& text, double number);  // as printf's %g

template <class Part>
void append(std::string& text, const Part& part) {
  if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    text += std::string_view(part);
  } else if constexpr (std::is_same_v<Part, char>) {
    text += part;
  } else if constexpr (std::is_floating_point_v<Part>) {
    append_number(text, static_cast<double>(part));
  } else if constexpr (std::is_unsigned_v<Part>) {
    append_number(text, static_cast<std::uint64_t>(part));
  } else {
    append_number(text, static_cast<std::int64_t>(part));
  }
}

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (append(text, parts), ...);
  return text;
}

template <class... Parts>
void check_value(bool ok, const Parts&... message) {
  if (!ok) [[unlikely]]
    throw Error(Error::Kind::kValue, concat(message...));
}

template <class... Parts>
void check_type(bool ok, const Parts&... message) {
  if (!ok) [[unlikely]]
    throw Error(Error::Kind::kType, concat(message...));
}

// "(2, 3, 768)"
TFK_API std::string shape_of(const TensorView& view);

// Checks that know their op's name, so that every message starts with it.
class ArgumentChecker {
 public:
  ArgumentChecker(const char* op, Device device) : op_(op), device_(device) {}

  // Present, on the context's device, of a floating-point dtype, and of rank >= 1.
  void floating(const char* argument, const TensorView& view) const;
  // Present, on the context's device and of this dtype.
  void typed(const char* argument, const TensorView& view, DType dtype, const char* reason) const;
  // Present, on the context's device, and of `dtype`, the dtype of argument `like_name`; float32 is
  // also taken where that dtype has 16 bits.
  void typed_or_float32(const char* argument, const TensorView& view, DType dtype,
                        const char* like_name) const;
  // Present, on the context's device, of int32 or int64.
  void indices(const char* argument, const TensorView& view) const;
  // Same sizes as `like`, which the message calls `like_name`.
  void same_shape(const char* argument, const TensorView& view, const char* like_name,
                  const TensorView& like) const;
  // One-dimensional or not, `count` elements without gaps.
  void packed(const char* argument, const TensorView& view, std::int64_t count,
              const char* reason) const;
  // Present, on the context's device and as quantized.h says.
  void quantized(const char* argument, const Quantized& matrix) const;

 private:
  const char* op_;
  Device device_;
};

}  // namespace transformer_kernels
