// SPDX-License-Identifier: MIT
#include "core/cpu/gang.h"

#include <chrono>
#include <thread>

#include "core/cpu/wait.h"

namespace transformer_kernels::cpu {
namespace {

constexpr int kSpins = 2000;  // some tens of microseconds

}  // namespace

void Gang::begin_phase(std::uint32_t phase) {
  phase_.store(phase, std::memory_order_seq_cst);
  phase_.notify_all();
}

int Gang::join(std::int64_t places) {
  const std::uint64_t joining = kMember + static_cast<std::uint64_t>(places) * kPlace;
  std::uint64_t before = arrived_.load(std::memory_order_acquire);
  do {
    if ((before & kComplete) != 0) return -1;
  } while (!arrived_.compare_exchange_weak(before, before + joining, std::memory_order_acq_rel,
                                           std::memory_order_acquire));
  const int rank = static_cast<int>(before % kPlace);
  if (rank > 0) {
    await_change(phase_, 0, kSpins);
    return rank;
  }
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(1);
  const std::uint64_t all = static_cast<std::uint64_t>(most_);
  for (int i = 0; arrived_.load(std::memory_order_relaxed) / kPlace < all; ++i) {
    if (Clock::now() > end) break;
    if (i < kSpins) {
      pause_briefly();
    } else {
      std::this_thread::yield();
    }
  }
  // Nobody reads the size before the first phase; a thread that joins meanwhile is counted.
  std::uint64_t members = arrived_.load(std::memory_order_relaxed);
  do {
    size_ = static_cast<int>(members % kPlace);
  } while (!arrived_.compare_exchange_weak(members, members | kComplete, std::memory_order_acq_rel,
                                           std::memory_order_relaxed));
  begin_phase(1);
  return 0;
}

void Gang::barrier() {
  if (size_ == 1) return;
  const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    waiting_.store(0, std::memory_order_relaxed);
    return begin_phase(phase + 1);
  }
  await_change(phase_, phase, kSpins);
}

}  // namespace transformer_kernels::cpu
