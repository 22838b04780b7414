// SPDX-License-Identifier: MIT
#include "core/cpu/cache.h"

#if defined(__linux__)
#include <unistd.h>
#endif

namespace transformer_kernels::cpu {
namespace {

std::int64_t last_level_cache_bytes() {
  constexpr std::int64_t kUsual = 32 << 20;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? bytes : kUsual;
#else
  return kUsual;
#endif
}

}  // namespace

bool exceeds_cache(std::int64_t bytes) {
  static const std::int64_t limit = last_level_cache_bytes() / 2;
  return bytes > limit;
}

}  // namespace transformer_kernels::cpu
