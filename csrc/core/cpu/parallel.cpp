// SPDX-License-Identifier: MIT
#include "core/cpu/parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/cpu/wait.h"
#include "core/rounding.h"

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace transformer_kernels::cpu {
namespace {

int available_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

constexpr int kRangeBits = 32;
constexpr std::uint64_t kNoRange = 0xffffffff;

}  // namespace

// One loop runs at a time. A loop is a row of ranges; any thread that is awake takes the next one,
// so a thread that the system has descheduled delays only the range that it holds.
//
// `ticket` is (number of the loop, next range). The thread that raises the range with a
// compare-exchange owns it, and knows that the loop was still running then: the fields that it read
// between seeing the ticket and raising it belong to that loop. A thread that comes late fails and
// goes to sleep: while the fields change, the ticket is beyond the last range of any loop.
struct ThreadPool::State {
  std::vector<std::thread> workers;
  int spins = 0;
  std::atomic_flag busy;
  std::atomic<std::uint32_t> loop_number{0};  // what idle workers watch
  std::atomic<std::uint64_t> ticket{0};
  std::atomic<std::uint32_t> ranges{0};
  std::atomic<std::uint32_t> finished{0};  // ranges done; the caller watches it
  std::atomic<std::int64_t> count{0};
  std::atomic<std::int64_t> range{0};  // its length
  std::atomic<RangeBody> body{nullptr};
  std::atomic<void*> argument{nullptr};
  std::atomic<bool> stopping{false};

  void help() {
    std::uint64_t seen = ticket.load(std::memory_order_acquire);
    for (;;) {
      const std::uint32_t total = ranges.load(std::memory_order_acquire);
      const auto index = static_cast<std::uint32_t>(seen);
      const std::int64_t length = range.load(std::memory_order_relaxed);
      const std::int64_t end_of_all = count.load(std::memory_order_relaxed);
      const RangeBody call = body.load(std::memory_order_relaxed);
      void* const with = argument.load(std::memory_order_relaxed);
      if (index >= total) return;
      if (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
        continue;
      }
      ++seen;
      const std::int64_t begin = index * length;
      call(with, begin, std::min(begin + length, end_of_all));
      if (finished.fetch_add(1, std::memory_order_seq_cst) + 1 == total) finished.notify_one();
    }
  }

  void work() {
    std::uint32_t seen = 0;
    for (;;) {
      await_change(loop_number, seen, spins);
      seen = loop_number.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_relaxed)) return;
      help();
    }
  }

  void announce() {
    loop_number.fetch_add(1, std::memory_order_seq_cst);
    loop_number.notify_all();
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  constexpr int kSpins = 1000;  // 10 to 50 microseconds, by CPU
  state_->spins = threads <= available_cpus() ? kSpins : 0;
  state_->workers.reserve(threads - 1);
  try {
    for (int i = 1; i < threads; ++i) {
      state_->workers.emplace_back([s = state_.get()] { s->work(); });
    }
  } catch (const std::system_error&) {
    // The system gives no more threads: make do with those that there are.
  }
}

ThreadPool::~ThreadPool() {
  state_->stopping.store(true, std::memory_order_relaxed);
  state_->announce();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::run(std::int64_t count, std::int64_t grain, RangeBody body, void* argument) {
  constexpr std::int64_t kRangesPerThread = 4;  // so that a slow thread gets fewer
  State& s = *state_;
  const std::int64_t most = threads() * kRangesPerThread;
  const std::int64_t length = std::max<std::int64_t>({grain, divide_up(count, most), 1});
  const std::int64_t ranges = divide_up(count, length);
  if (ranges <= 1 || threads() == 1 || s.busy.test_and_set(std::memory_order_acquire)) {
    if (count > 0) body(argument, 0, count);
    return;
  }
  const std::uint64_t loop = (s.ticket.load(std::memory_order_relaxed) >> kRangeBits) + 1;
  s.ticket.store(loop << kRangeBits | kNoRange, std::memory_order_relaxed);
  s.ranges.store(static_cast<std::uint32_t>(ranges), std::memory_order_release);
  s.finished.store(0, std::memory_order_relaxed);
  s.count.store(count, std::memory_order_relaxed);
  s.range.store(length, std::memory_order_relaxed);
  s.body.store(body, std::memory_order_relaxed);
  s.argument.store(argument, std::memory_order_relaxed);
  s.ticket.store(loop << kRangeBits, std::memory_order_release);
  s.announce();
  s.help();
  for (;;) {
    const std::uint32_t done = s.finished.load(std::memory_order_acquire);
    if (done == ranges) break;
    await_change(s.finished, done, s.spins);
  }
  s.busy.clear(std::memory_order_release);
}

int thread_count() {
  static const int threads = [] {
    const char* value = std::getenv("TFK_NUM_THREADS");
    if (value == nullptr || *value == '\0') return available_cpus();
    char* end = nullptr;
    const long number = std::strtol(value, &end, 10);
    check_value(*end == '\0' && number >= 1 && number <= 4096, "TFK_NUM_THREADS is ", value,
                ", expected a whole number from 1 to 4096");
    return static_cast<int>(number);
  }();
  return threads;
}

namespace {

// Never destroyed: its threads may be asleep when the process ends. A forked child has none of
// them, and makes a pool of its own.
std::atomic<ThreadPool*> own_pool{nullptr};
std::mutex* own_pool_mutex = new std::mutex;

void forget_own_pool() {
  own_pool.store(nullptr);
  own_pool_mutex = new std::mutex;
}

ThreadPool& make_own_pool() {
  const std::lock_guard lock(*own_pool_mutex);
  if (ThreadPool* pool = own_pool.load()) return *pool;
#if defined(__unix__) || defined(__APPLE__)
  static const int registered = pthread_atfork(nullptr, nullptr, forget_own_pool);
  static_cast<void>(registered);
#endif
  auto* pool = new ThreadPool(thread_count());
  own_pool.store(pool);
  return *pool;
}

}  // namespace

void run_on_own_threads(std::int64_t count, std::int64_t grain, RangeBody body, void* argument) {
  ThreadPool* pool = own_pool.load(std::memory_order_acquire);
  (pool != nullptr ? *pool : make_own_pool()).run(count, grain, body, argument);
}

}  // namespace transformer_kernels::cpu
