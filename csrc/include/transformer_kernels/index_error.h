// SPDX-License-Identifier: MIT
#pragma once

#include "transformer_kernels/error.h"

namespace transformer_kernels {

// Thrown where a number that indexes another argument is out of range, as an index beyond the rows
// of a table. Its kind is kValue.
class TFK_API IndexError : public Error {
 public:
  explicit IndexError(const std::string& message) : Error(Kind::kValue, message) {}
};

}  // namespace transformer_kernels
