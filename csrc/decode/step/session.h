// SPDX-License-Identifier: MIT
// The inside of sessions and pages: the cache, and the memory that a step works in.
#pragma once

#include <atomic>

#include "decode/step/kernels.h"
#include "decode/step/plan.h"

namespace transformer_kernels::decode {

// Rows that a step takes at once; longer ones are cut.
inline constexpr std::int64_t kMostRows = 128;
// Rows whose logits are computed at once.
inline constexpr std::int64_t kMostOutputs = 16;

// The memory of a member of the gang.
struct MemberMemory {
  float* x;       // (rows, wide) the residual stream
  float* y;       // (rows, stride) what the next product reads
  Activations a;  // y, and its codes
};

// The memory of a part.
struct PartMemory {
  float *q, *k, *v;      // (rows, padded rows of the product)
  float* attended;       // (rows, heads, padded dim)
  SoftmaxState* states;  // (rows, heads)
  float *gate, *up;      // (rows, padded units)
  float* partial[2];     // (rows, wide) of attention and of the MLP
  float* logits;         // (outputs, padded tokens)
  Best* best;            // (rows)
};

inline constexpr const char* kSessionIs = "the session is";
inline constexpr const char* kPagesAre = "the pages are";

// The memory that steps work in, one at a time.
struct Workshop {
  explicit Workshop(std::shared_ptr<const StepPlan> of);

  std::shared_ptr<const StepPlan> plan;
  std::atomic_flag busy{};
  std::int64_t heads_of_layer = 0;       // that a block has, with those that parts share
  std::vector<std::int64_t> first_head;  // of each part, among these
  Arena memory;
  std::int64_t wide = 0;    // hidden in whole vectors
  std::int64_t stride = 0;  // room for whatever a product reads
  std::vector<MemberMemory> members;
  std::vector<PartMemory> parts;

  // The numbers of a block: of 64 positions of all layers, parts and heads.
  std::int64_t block_size() const;
  // A layer's and a part's share of a block.
  Half* share_of(Half* block, std::size_t layer, std::size_t part) const {
    const auto head = static_cast<std::int64_t>(layer) * heads_of_layer + first_head[part];
    return block + head * block_numbers(plan->state().model.head_dim);
  }
};

// Holds a session or pages for one call. Throws Error where another call does; `what` names them.
class Hold {
 public:
  Hold(Workshop& of, const char* what);
  ~Hold() { of_.busy.clear(std::memory_order_release); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  Workshop& of_;
};

}  // namespace transformer_kernels::decode

namespace transformer_kernels {

struct StepSession::State : decode::Workshop {
  using Workshop::Workshop;

  std::int64_t positions = 0;
  std::atomic<std::int64_t> length{0};  // others may look while a step runs
  decode::Arena cache_memory;
  std::vector<Half*> blocks;

  // Makes room for the first `count` positions.
  void reserve(std::int64_t count);
};

struct StepPages::State : decode::Workshop {
  using Workshop::Workshop;

  decode::Arena cache_memory;
  std::vector<Half*> blocks;  // null where a page was not used yet

  Half* block(std::int64_t page);
};

}  // namespace transformer_kernels
