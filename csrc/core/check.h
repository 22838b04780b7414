// SPDX-License-Identifier: MIT
// Argument checks. A message is put together only when its check fails.
#pragma once

#include <sstream>
#include <string>

#include "transformer_kernels/api.h"
#include "transformer_kernels/error.h"
#include "transformer_kernels/quantized.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
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
