// SPDX-License-Identifier: MIT
// Rotary position embedding. Compiled once per instruction set; see core/cpu/isa.h.
#include "rope/rows.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

template <class T>
bool can_stream_heads(const Heads& out, std::int64_t half) {
  return can_stream<T>(out.data, out.batch) && can_stream<T>(out.data, out.time) &&
         can_stream<T>(out.data, out.head) && half % vec_t<T>::kLanes == 0;
}

template <class T>
void rotate_side(const RopeTask& task, const Heads& in, const Heads& out, std::int64_t heads,
                 const RopeToken* tokens, int count, const BlockAngles<T>& angles) {
  const RopeProblem& p = task.problem;
  const bool stream =
      task.stream && in.data != out.data && can_stream_heads<T>(out, p.angles.frequencies);
  for_each_head(in, heads, count, [&](int i, std::int64_t head) {
    const T* const x = head_row<const T>(in, tokens[i].at, head);
    T* const y = head_row<T>(out, tokens[i].at, head);
    const std::int64_t rotated = rotate_first<T>(p.angles, x, y, angles[i], stream);
    if (x != y && rotated < p.dim) {
      __builtin_memcpy(y + rotated, x + rotated, (p.dim - rotated) * sizeof(T));
    }
  });
}

template <class T>
void rotate(const RopeTask& task, const RopeToken* tokens, int count) {
  const RopeProblem& p = task.problem;
  const BlockAngles<T> angles(p, tokens, count);
  rotate_side<T>(task, p.q, p.q_rotated, p.q_heads, tokens, count, angles);
  rotate_side<T>(task, p.k, p.k_rotated, p.k_heads, tokens, count, angles);
}

}  // namespace

const RopeKernels rope_kernels = {{rotate<double>, rotate<float>, rotate<Half>, rotate<BFloat16>},
                                  stream_fence};

}  // namespace transformer_kernels::cpu::TFK_ISA
