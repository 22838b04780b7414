// SPDX-License-Identifier: MIT
// Threads that wait for what another one is about to write.
#pragma once

#include <atomic>
#include <cstdint>

namespace transformer_kernels::cpu {

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns when `value` is no longer `old`: looks `spins` times, and then sleeps. Whoever changes
// the value does so with memory_order_seq_cst before it notifies: notify_all() looks whether anyone
// sleeps, and libstdc++ leaves it to the write not to pass that look. Else a thread that meanwhile
// falls asleep would never be woken.
inline void await_change(const std::atomic<std::uint32_t>& value, std::uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_briefly();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace transformer_kernels::cpu
