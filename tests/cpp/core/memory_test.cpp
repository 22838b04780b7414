// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/cpu/cache.h"
#include "core/cpu/huge_pages.h"
#include "core/cpu/scratch.h"

namespace transformer_kernels::cpu {
namespace {

struct CountingWorkspace {
  int allocated = 0;
  int released = 0;

  static void* allocate(void* user, std::size_t bytes) {
    ++static_cast<CountingWorkspace*>(user)->allocated;
    return std::malloc(bytes);
  }
  static void* refuse(void*, std::size_t) { return nullptr; }
  static void release(void* user, void* memory) {
    ++static_cast<CountingWorkspace*>(user)->released;
    std::free(memory);
  }
};

TEST(Scratch, comes_from_the_workspace_and_goes_back) {
  CountingWorkspace counts;
  Context context;
  context.workspace = {CountingWorkspace::allocate, CountingWorkspace::release, &counts};
  {
    const Scratch scratch(context, 100);
    std::memset(scratch.data(), 1, 100);
    const Scratch nothing(context, 0);
    EXPECT_EQ(nothing.data(), nullptr);
    EXPECT_EQ(counts.allocated, 1);
    EXPECT_EQ(counts.released, 0);
  }
  EXPECT_EQ(counts.released, 1);
}

TEST(Scratch, says_when_there_is_no_memory) {
  Context context;
  context.workspace = {CountingWorkspace::refuse, CountingWorkspace::release, nullptr};
  EXPECT_THROW(Scratch(context, 8), std::bad_alloc);
}

TEST(RowScratch, is_as_long_as_asked_for) {
  for (std::size_t bytes : {0u, 100u, 32u * 1024, 32u * 1024 + 1, 1u << 20}) {
    RowScratch scratch(bytes);
    std::memset(scratch.data(), 1, bytes);
  }
}

TEST(Cache, only_large_outputs_exceed_it) {
  EXPECT_FALSE(exceeds_cache(0));
  EXPECT_FALSE(exceeds_cache(64 * 1024));
  EXPECT_TRUE(exceeds_cache(std::int64_t{1} << 40));
}

TEST(HugePages, advice_leaves_the_contents_alone) {
  std::vector<char> memory((9 << 20) + 123, 'a');
  advise_huge_pages(memory.data() + 5, memory.size() - 5);
  advise_huge_pages(memory.data(), 10);
  advise_huge_pages(nullptr, 0);
  for (char c : memory) ASSERT_EQ(c, 'a');
}

}  // namespace
}  // namespace transformer_kernels::cpu
