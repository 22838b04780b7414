// SPDX-License-Identifier: MIT
#include "core/plans.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "core/times.h"

namespace plans_test {

struct Problem {
  int width;
};
struct Plan {
  const char* name;
};

std::string describe(const Problem& p) { return "width " + std::to_string(p.width); }

constexpr Plan kPlans[] = {{"low"}, {"high"}, {"odd"}};

class Plans : public ::testing::Test {
 protected:
  void SetUp() override { transformer_kernels::read_times("", "", ""); }
  void TearDown() override {
    transformer_kernels::record_plans(false);
    transformer_kernels::read_times("", "", "");
    std::remove(path_.c_str());
  }

  void read(const std::string& lines) {
    std::ofstream(path_) << transformer_kernels::kTimesHeader << '\n' << lines;
    ASSERT_EQ(transformer_kernels::read_times(path_, "", "here"), "");
  }
  static std::string chosen(int width) {
    return transformer_kernels::plan_of("op", kPlans, Problem{width}, 1).name;
  }

 private:
  // Tests run in processes of their own, side by side.
  std::string path_ = ::testing::TempDir() + "tfk_plans" + std::to_string(getpid());
};

TEST_F(Plans, run_by_rule_without_times) {
  EXPECT_FALSE(transformer_kernels::asks_for_plans());
  EXPECT_EQ(chosen(1), "high");
}

TEST_F(Plans, run_by_the_times_of_their_problem) {
  read("v\there\tplan op width 1\tlow=3\todd=2\thigh=4\nv\there\tplan op width 2\tlow=1\n");
  EXPECT_TRUE(transformer_kernels::asks_for_plans());
  EXPECT_EQ(chosen(1), "odd");
  EXPECT_EQ(chosen(2), "low");
  EXPECT_EQ(chosen(3), "high");
}

TEST_F(Plans, of_names_that_no_plan_has_are_passed_over) {
  read("v\there\tplan op width 1\tnone=1\tlow=2\nv\there\tplan op width 2\tnone=1\n");
  EXPECT_EQ(chosen(1), "low");
  EXPECT_EQ(chosen(2), "high");
}

TEST_F(Plans, of_other_machines_and_times_of_other_things_ask_nothing) {
  read("v\tthere\tplan op width 1\tlow=1\nv\there\top width 1\tlow=1\n");
  EXPECT_TRUE(transformer_kernels::has_times());
  EXPECT_FALSE(transformer_kernels::asks_for_plans());
  EXPECT_EQ(chosen(1), "high");
}

TEST_F(Plans, are_recorded_once_with_the_rules_first) {
  transformer_kernels::record_plans(true);
  EXPECT_TRUE(transformer_kernels::asks_for_plans());
  chosen(2);
  chosen(2);
  chosen(1);
  transformer_kernels::record_plans(false);
  chosen(3);
  EXPECT_EQ(transformer_kernels::recorded_plans(),
            "plan op width 1\thigh\tlow\todd\nplan op width 2\thigh\tlow\todd\n");
  transformer_kernels::record_plans(true);
  EXPECT_EQ(transformer_kernels::recorded_plans(), "");
}

}  // namespace plans_test
