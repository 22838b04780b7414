// SPDX-License-Identifier: MIT
// A gang: threads that run one piece of work at the same time, and may wait for one another in it.
// The ranges of a parallel loop cannot: nothing says that two of them run at once.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/cpu/parallel.h"

namespace transformer_kernels::cpu {

class Gang {
 public:
  explicit Gang(std::int64_t most) : most_(most) {}
  Gang(const Gang&) = delete;
  Gang& operator=(const Gang&) = delete;

  int size() const { return size_; }

  // Returns when all members have called it as often as this one: looks for a while, and then
  // sleeps. What members wrote before is seen by all behind it.
  void barrier();

  // A member's rank, 0, 1, ..., once the gang is complete; -1 for a thread that came too late. The
  // thread stands for `places` members, as loops give a thread several ranges where there are few.
  int join(std::int64_t places);

 private:
  // Parts of arrived_: members, the places that they stand for, and that nobody may join any more.
  static constexpr std::uint64_t kMember = 1;
  static constexpr std::uint64_t kPlace = std::uint64_t{1} << 24;
  static constexpr std::uint64_t kComplete = std::uint64_t{1} << 63;

  alignas(64) std::atomic<std::uint64_t> arrived_{0};
  alignas(64) std::atomic<int> waiting_{0};
  alignas(64) std::atomic<std::uint32_t> phase_{0};  // how often all have met
  int size_ = 0;                                     // not written any more when members meet
  const std::int64_t most_;

  void begin_phase(std::uint32_t phase);
};

// Calls work(gang, rank) on up to `most` threads of the context at once, and returns when all have
// ended. The gang has at least one member; threads that do not come within a millisecond are not
// waited for, so any number of members must be able to do the work. It must not throw. `most` is
// no larger than the number of threads that the context has.
template <class Work>
void run_gang(const Context& context, int most, Work&& work) {
  Gang gang(most);
  parallel_for(context, most, 1, [&](std::int64_t begin, std::int64_t end) {
    const int rank = gang.join(end - begin);
    if (rank >= 0) work(gang, rank);
  });
}

}  // namespace transformer_kernels::cpu
