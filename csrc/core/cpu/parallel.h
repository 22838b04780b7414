// SPDX-License-Identifier: MIT
// Parallel loops on the CPU: they run on the context's ParallelFor, or on the library's own threads
// where it has none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <type_traits>

#include "transformer_kernels/context.h"

namespace transformer_kernels::cpu {

// Threads that share loops. run() may be called from several threads at once: a call that finds the
// pool busy, for instance one from inside a loop, does its work alone.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the caller of run() is one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Runs as ParallelFor::run does; `body` must not throw.
  void run(std::int64_t count, std::int64_t grain, RangeBody body, void* argument);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Threads of the library's own pool: TFK_NUM_THREADS, else the CPUs that the process may use.
int thread_count();

// Runs on the library's own pool, made at the first call and again in a forked child.
void run_on_own_threads(std::int64_t count, std::int64_t grain, RangeBody body, void* argument);

// A body that throws loses the rest of its range; the first exception reaches the caller when all
// ranges have ended, so it never crosses a hook written in another language.
template <class Body>
struct GuardedBody {
  Body& body;
  std::mutex mutex{};
  std::exception_ptr error{};

  static void call(void* argument, std::int64_t begin, std::int64_t end) {
    auto& self = *static_cast<GuardedBody*>(argument);
    try {
      self.body(begin, end);
    } catch (...) {
      const std::lock_guard lock(self.mutex);
      if (!self.error) self.error = std::current_exception();
    }
  }
};

// Calls body(begin, end) over [0, count) in ranges of at least `grain`.
template <class Body>
void parallel_for(const Context& context, std::int64_t count, std::int64_t grain, Body&& body) {
  if (count <= 0) return;
  if (count <= grain) return body(std::int64_t{0}, count);
  using Guarded = GuardedBody<std::remove_reference_t<Body>>;
  Guarded guarded{body};
  const ParallelFor& hook = context.parallel_for;
  if (hook.run != nullptr) {
    hook.run(hook.user, count, grain, &Guarded::call, &guarded);
  } else {
    run_on_own_threads(count, grain, &Guarded::call, &guarded);
  }
  if (guarded.error) std::rethrow_exception(guarded.error);
}

// Rows that make a range worth a thread: waking one costs as much as a few thousand elements.
constexpr std::int64_t rows_per_range(std::int64_t elements_per_row) {
  constexpr std::int64_t kElements = 32 * 1024;
  return std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(1, elements_per_row));
}

}  // namespace transformer_kernels::cpu
