// SPDX-License-Identifier: MIT
#include "core/log.h"

#include <cstdio>
#include <cstdlib>

namespace transformer_kernels {

bool log_dispatch() {
  static const bool enabled = [] {
    const char* value = std::getenv("TFK_LOG");
    return value != nullptr && std::string(value).find("dispatch") != std::string::npos;
  }();
  return enabled;
}

void log_line(const std::string& line) { std::fprintf(stderr, "[tfk] %s\n", line.c_str()); }

const char* forced_kernel() {
  static const bool set = std::getenv("TFK_KERNEL") != nullptr;
  return set ? std::getenv("TFK_KERNEL") : nullptr;
}

}  // namespace transformer_kernels
