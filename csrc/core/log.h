// SPDX-License-Identifier: MIT
// TFK_LOG=dispatch writes to stderr which kernel ran and why the others did not.
#pragma once

#include <string>

#include "transformer_kernels/api.h"

namespace transformer_kernels {

// Reads the environment once.
TFK_API bool log_dispatch();

TFK_API void log_line(const std::string& line);

// The text of TFK_KERNEL, read at each call where it was set when the library was loaded; else
// null, at no cost.
const char* forced_kernel();

template <class Name>
bool kernel_is_wanted(Name&& name) {
  const char* forced = forced_kernel();
  return forced == nullptr || std::string(name()).find(forced) != std::string::npos;
}

}  // namespace transformer_kernels
