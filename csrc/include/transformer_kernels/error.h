// SPDX-License-Identifier: MIT
#pragma once

#include <stdexcept>
#include <string>

#include "transformer_kernels/api.h"

namespace transformer_kernels {

// Thrown before anything is written when an argument cannot be used, and when the CUDA runtime
// reports a failure. what() reads "<op>: <argument> is <got>, expected <wanted>".
class TFK_API Error : public std::runtime_error {
 public:
  enum class Kind { kValue, kType, kRuntime };

  Error(Kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

}  // namespace transformer_kernels
