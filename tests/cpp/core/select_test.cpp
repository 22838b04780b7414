// SPDX-License-Identifier: MIT
#include "core/select.h"

#include <gtest/gtest.h>

namespace select_test {

struct Problem {
  int width;
};
struct Row {
  const char* name;
  int widest;
};

std::string describe(const Problem& p) { return "width " + std::to_string(p.width); }
const char* name_of(const Row& row) { return row.name; }

constexpr Row kTable[] = {{"narrow", 10}, {"medium", 100}, {"any", 1 << 30}};

std::size_t choice(int width) {
  return transformer_kernels::choose("op", kTable, Problem{width}, [&](const Row& row) {
    return width <= row.widest ? nullptr : "too wide";
  });
}

TEST(Select, takes_the_first_row_that_does_not_refuse) {
  EXPECT_EQ(choice(10), 0u);
  EXPECT_EQ(choice(11), 1u);
  EXPECT_EQ(choice(101), 2u);
}

TEST(Select, says_when_nothing_takes_the_problem) {
  try {
    transformer_kernels::choose("op", kTable, Problem{7}, [](const Row&) { return "never"; });
    FAIL() << "something took it";
  } catch (const transformer_kernels::Error& error) {
    EXPECT_STREQ(error.what(), "op: no kernel takes width 7");
  }
}

// The test needs a process of its own, because the environment is read once.
TEST(Select, the_log_says_who_ran_and_who_did_not) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("TFK_LOG", "dispatch", 1);
        choice(50);
        _exit(0);
      },
      ::testing::ExitedWithCode(0),
      "op width 50: narrow refused: too wide\n.*op width 50: medium runs");
}

TEST(Select, a_row_can_be_forced) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("TFK_KERNEL", "any", 1);
        _exit(static_cast<int>(choice(5)));
      },
      ::testing::ExitedWithCode(2), "");
}

}  // namespace select_test
