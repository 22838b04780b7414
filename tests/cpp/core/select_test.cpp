// SPDX-License-Identifier: MIT
#include "core/select.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

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

TEST(Select, a_row_that_is_slower_runs_where_no_other_can) {
  const auto chosen = [](int widest) {
    return transformer_kernels::choose(
        "op", kTable, Problem{0},
        [&](const Row& row) { return row.widest <= widest ? nullptr : "too wide"; },
        [](const Row& row) { return row.widest < 100 ? "it was measured to be" : nullptr; });
  };
  EXPECT_EQ(chosen(1000), 1u);
  EXPECT_EQ(chosen(10), 0u);
}

class Times : public ::testing::Test {
 protected:
  void TearDown() override {
    transformer_kernels::read_times("", "", "");
    std::remove(path_.c_str());
  }

  std::string read(const std::string& lines, const std::string& versions = "",
                   const std::string& machine = "") {
    std::ofstream(path_) << transformer_kernels::kTimesHeader << '\n' << lines;
    return transformer_kernels::read_times(path_, versions, machine);
  }

  std::string path_ = ::testing::TempDir() + "tfk_select_times" + std::to_string(getpid());
};

TEST_F(Times, the_fastest_row_that_takes_the_problem_runs) {
  EXPECT_EQ(read("v1\tthis\top width 5\tnarrow=3\tany=2\tabsent=1\n"), "");
  EXPECT_EQ(choice(5), 2u);
  EXPECT_EQ(choice(6), 0u);  // of which no time is known
  EXPECT_EQ(read("v1\tthis\top width 50\tnarrow=1\tany=2\n"), "");
  EXPECT_EQ(choice(50), 2u);  // the narrow one refuses it
  EXPECT_EQ(choice(5), 0u);   // what was read before is forgotten
}

TEST_F(Times, those_of_other_versions_and_machines_do_not_apply) {
  const char* const lines = "v1\tthis\top width 5\tany=2\n";
  read(lines, "v1", "this");
  EXPECT_EQ(choice(5), 2u);
  read(lines, "v2", "this");
  EXPECT_EQ(choice(5), 0u);
  EXPECT_FALSE(transformer_kernels::has_times());
  read(lines, "v1", "another");
  EXPECT_EQ(choice(5), 0u);
  EXPECT_EQ(transformer_kernels::times_of("this", "op width 5").size(), 1u);
}

TEST_F(Times, those_of_a_device_apply_once_it_is_known) {
  read("v1\ta card\top width 5\tany=2\n", "v1", "this");
  EXPECT_EQ(choice(5), 0u);
  transformer_kernels::note_device("a card");
  EXPECT_EQ(choice(5), 2u);
}

TEST_F(Times, of_equal_times_the_first_is_the_fastest) {
  read("v1\tthis\top width 5\tmedium=2\tany=2\tnarrow=3\n");
  EXPECT_EQ(choice(5), 1u);
}

TEST_F(Times, a_file_with_a_fault_has_no_times) {
  const std::string good = "v1\tthis\top width 5\tany=2\n";
  for (const char* fault : {"a line", "v\tm\top\tany=0", "v\tm\top\tany=", "v\tm\top\tany=2x",
                            "v\tm\top\tany", "v\tm\top\tany=inf"}) {
    EXPECT_NE(read(good + fault + '\n'), "") << fault;
    EXPECT_EQ(choice(5), 0u) << fault;
  }
  std::ofstream(path_) << "{}\n";
  EXPECT_NE(transformer_kernels::read_times(path_, "", "").find("the first line"),
            std::string::npos);
  EXPECT_EQ(transformer_kernels::read_times(path_ + "/absent", "", ""), "");
}

TEST_F(Times, a_program_without_python_reads_the_file_that_the_environment_names) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        unsetenv("TFK_TUNE");
        setenv("TFK_TUNE_FILE", path_.c_str(), 1);
        std::ofstream(path_) << transformer_kernels::kTimesHeader
                             << "\nv1\tthis\top width 5\tany=2\n";
        _exit(static_cast<int>(choice(5)));
      },
      ::testing::ExitedWithCode(2), "");
}

}  // namespace select_test
