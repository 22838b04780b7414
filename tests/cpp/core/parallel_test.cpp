// SPDX-License-Identifier: MIT
#include "core/cpu/parallel.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace transformer_kernels::cpu {
namespace {

// How often each index was visited.
struct Visits {
  std::vector<std::atomic<int>> counts;
  std::int64_t grain;
  std::atomic<bool> too_small{false};

  Visits(std::int64_t count, std::int64_t smallest) : counts(count), grain(smallest) {}

  static void body(void* argument, std::int64_t begin, std::int64_t end) {
    auto& self = *static_cast<Visits*>(argument);
    const auto count = static_cast<std::int64_t>(self.counts.size());
    if (end - begin < self.grain && end != count) self.too_small = true;
    for (std::int64_t i = begin; i < end; ++i) ++self.counts[i];
  }
  bool each_once() const {
    for (const auto& n : counts) {
      if (n != 1) return false;
    }
    return true;
  }
};

TEST(ThreadPool, covers_every_index_once) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (std::int64_t count : {0, 1, 2, 7, 64, 1000, 4097}) {
      for (std::int64_t grain : {1, 3, 100, 5000}) {
        Visits visits(count, grain);
        pool.run(count, grain, Visits::body, &visits);
        EXPECT_TRUE(visits.each_once()) << threads << " threads, " << count << ", " << grain;
        EXPECT_FALSE(visits.too_small) << threads << " threads, " << count << ", " << grain;
      }
    }
  }
}

// Many short loops one after the other: late wakers of one must not touch the next.
TEST(ThreadPool, loops_do_not_mix) {
  ThreadPool pool(4);
  for (int round = 0; round < 3000; ++round) {
    Visits visits(1 + round % 17, 1);
    pool.run(static_cast<std::int64_t>(visits.counts.size()), 1, Visits::body, &visits);
    ASSERT_TRUE(visits.each_once()) << round;
  }
}

TEST(ThreadPool, serves_several_callers) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        Visits visits(100, 1);
        pool.run(100, 1, Visits::body, &visits);
        wrong += !visits.each_once();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ThreadPool, wakes_after_a_pause) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    Visits visits(50, 1);
    pool.run(50, 1, Visits::body, &visits);
    EXPECT_TRUE(visits.each_once());
  }
}

TEST(ParallelFor, nests) {
  std::vector<std::atomic<int>> counts(64 * 64);
  parallel_for({}, 64, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      parallel_for({}, 64, 1, [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t j = from; j < to; ++j) ++counts[i * 64 + j];
      });
    }
  });
  for (const auto& n : counts) ASSERT_EQ(n, 1);
}

TEST(ParallelFor, small_loops_stay_on_the_calling_thread) {
  std::thread::id ran_on;
  parallel_for({}, 10, 10,
               [&](std::int64_t, std::int64_t) { ran_on = std::this_thread::get_id(); });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  parallel_for({}, 0, 1, [&](std::int64_t, std::int64_t) { FAIL() << "called for nothing"; });
}

TEST(ParallelFor, exceptions_reach_the_caller) {
  const auto throws = [](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (i == 700) throw std::runtime_error("at 700");
    }
  };
  for (int round = 0; round < 3; ++round) {
    try {
      parallel_for({}, 1000, 1, throws);
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "at 700");
    }
  }
}

TEST(ParallelFor, uses_the_hook_of_the_context) {
  struct Hook {
    int calls = 0;
    static void run(void* user, std::int64_t count, std::int64_t grain, RangeBody body,
                    void* argument) {
      auto& self = *static_cast<Hook*>(user);
      for (std::int64_t i = 0; i < count; i += grain, ++self.calls) {
        body(argument, i, std::min(i + grain, count));
      }
    }
  } hook;
  Context context;
  context.parallel_for = {&Hook::run, &hook};
  std::int64_t sum = 0;
  parallel_for(context, 100, 30, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum, 100);
  EXPECT_EQ(hook.calls, 4);
}

#if !defined(__SANITIZE_THREAD__)  // which follows no child
TEST(ParallelFor, works_in_a_forked_child) {
  std::atomic<int> before{0};
  parallel_for({}, 100, 1, [&](std::int64_t begin, std::int64_t end) {
    before += static_cast<int>(end - begin);
  });
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int> sum{0};
    parallel_for({}, 100, 1, [&](std::int64_t begin, std::int64_t end) {
      sum += static_cast<int>(end - begin);
    });
    _exit(sum == 100 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}
#endif

TEST(ThreadCount, is_at_least_one) { EXPECT_GE(thread_count(), 1); }

TEST(ThreadCount, bad_value_is_refused_in_words) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("TFK_NUM_THREADS", "two", 1);
        try {
          thread_count();
        } catch (const std::exception& error) {
          fprintf(stderr, "%s\n", error.what());
          _exit(3);
        }
        _exit(0);
      },
      ::testing::ExitedWithCode(3),
      "TFK_NUM_THREADS is two, expected a whole number from 1 to 4096");
}

}  // namespace
}  // namespace transformer_kernels::cpu
