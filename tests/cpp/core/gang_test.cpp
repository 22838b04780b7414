// SPDX-License-Identifier: MIT
#include "core/cpu/gang.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "parallel_hooks.h"

namespace transformer_kernels::cpu {
namespace {

Context context_of(ThreadPool& pool) {
  Context context;
  context.parallel_for = {
      [](void* user, std::int64_t count, std::int64_t grain, RangeBody body, void* argument) {
        static_cast<ThreadPool*>(user)->run(count, grain, body, argument);
      },
      &pool};
  return context;
}

// Members write their own number, and read everyone's behind the barrier: plain memory, so that a
// checker of races sees whether the barrier orders it.
struct Board {
  static constexpr int kMost = 8;
  std::array<std::array<int, kMost>, 2> numbers{};
  std::array<int, kMost> sums{};
  int size = 0;

  void play(Gang& gang, int rank, int rounds) {
    if (rank == 0) size = gang.size();
    for (int round = 0; round < rounds; ++round) {
      numbers[round % 2][rank] = round + rank;
      gang.barrier();
      int sum = 0;
      for (int i = 0; i < gang.size(); ++i) sum += numbers[round % 2][i] - round;
      sums[rank] += sum;
    }
  }
  bool is_right(int rounds) const {
    for (int i = 0; i < size; ++i) {
      if (sums[i] != rounds * size * (size - 1) / 2) return false;
    }
    return size >= 1;
  }
};

TEST(Gang, members_wait_for_one_another) {
  constexpr int kRounds = 10;
  for (int threads : {1, 2, 3, 4}) {
    ThreadPool pool(threads);
    const Context context = context_of(pool);
    for (int run = 0; run < (threads == 2 ? 1000 : 100); ++run) {
      Board board;
      run_gang(context, threads, [&](Gang& gang, int rank) { board.play(gang, rank, kRounds); });
      ASSERT_TRUE(board.is_right(kRounds)) << "run " << run << " of " << board.size;
    }
  }
}

// A busy machine may keep a thread away for longer than a gang waits, but not every time.
TEST(Gang, becomes_complete) {
  ThreadPool pool(2);
  const Context context = context_of(pool);
  int size = 0;
  for (int run = 0; run < 20000 && size < 2; ++run) {
    run_gang(context, 2, [&](Gang& gang, int rank) {
      if (rank == 0) size = gang.size();
    });
  }
  EXPECT_EQ(size, 2);
}

TEST(Gang, is_of_those_who_come) {
  for (auto hook : {testing::run_alone, testing::run_backwards, testing::run_on_five_threads}) {
    Context context;
    context.parallel_for = {hook, nullptr};
    for (int run = 0; run < 5; ++run) {
      Board board;
      run_gang(context, 4, [&](Gang& gang, int rank) { board.play(gang, rank, 10); });
      ASSERT_TRUE(board.is_right(10));
      if (hook != testing::run_on_five_threads) {
        EXPECT_EQ(board.size, 1);
      }
    }
  }
}

TEST(Gang, does_the_work_alone_where_the_pool_is_busy) {
  ThreadPool pool(2);
  const Context context = context_of(pool);
  std::array<Board, 2> boards;
  parallel_for(context, 2, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      run_gang(context, 2, [&](Gang& gang, int rank) { boards[i].play(gang, rank, 10); });
    }
  });
  for (const Board& board : boards) {
    EXPECT_EQ(board.size, 1);
    EXPECT_TRUE(board.is_right(10));
  }
}

TEST(Gang, serves_several_callers) {
  ThreadPool pool(3);
  const Context context = context_of(pool);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int run = 0; run < 50; ++run) {
        Board board;
        run_gang(context, 3, [&](Gang& gang, int rank) { board.play(gang, rank, 5); });
        wrong += !board.is_right(5);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace transformer_kernels::cpu
