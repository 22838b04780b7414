// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "transformer_kernels/error.h"

namespace transformer_kernels::testing {

// The message of the error that `call` throws.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace transformer_kernels::testing
