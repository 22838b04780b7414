// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace transformer_kernels::cpu {

// Asks for 2 MB pages inside memory that is about to be written for the first time: a big fresh
// output otherwise costs a page fault every 4 KB, which takes longer than the kernel itself. Only
// advice: small blocks, and systems without it, are left as they are.
inline void advise_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  if (bytes < 2 * kHugePage) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::size_t skip = (kHugePage - begin % kHugePage) % kHugePage;
  const std::size_t inside = (bytes - skip) / kHugePage * kHugePage;
  madvise(static_cast<char*>(data) + skip, inside, MADV_HUGEPAGE);
#endif
}

}  // namespace transformer_kernels::cpu
