// SPDX-License-Identifier: MIT
#include "transformer_kernels/rope/rope.h"

#include "core/backends.h"
#include "rope/check.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "rope";

constexpr Backends<RopeProblem> kBackends{.cpu = cpu::rope,
                                          .cuda = kHasCuda ? cuda::rope : nullptr};

void run(const Context& context, const RopeOperands& operands, const RopeAngles& angles,
         bool inverse) {
  const RopeProblem problem = RopeChecker(kOp, context.device, operands).problem(angles, inverse);
  if (problem.tokens() == 0 || problem.heads() == 0) return;
  run_on(kOp, kBackends, context, problem);
}

}  // namespace

const char* source_of(const AngleTables& t) {
  if (t.ids.data != nullptr) return "position_ids";
  if (t.offsets.data != nullptr) return "offsets";
  return t.cu_seqlens != nullptr ? "cu_seqlens" : "q";
}

std::string describe(const RopeProblem& p) {
  return concat(p.inverse ? "backward " : "forward ", name_of(p.dtype), " ", p.batch, "x", p.time,
                "x", p.q_heads, "+", p.k_heads, "x", p.dim,
                p.angles.interleaved ? " interleaved " : " ", p.rotary_dim(), ", positions of ",
                source_of(p.angles), p.in_place() ? ", in place" : "");
}

void rope_forward(const Context& context, const RopeForward& a) {
  run(context, {{"q", a.q}, {"k", a.k}, {"q_rotated", a.q_rotated}, {"k_rotated", a.k_rotated}},
      a.angles, false);
}

void rope_backward(const Context& context, const RopeBackward& a) {
  run(context,
      {{"dq_rotated", a.dq_rotated}, {"dk_rotated", a.dk_rotated}, {"dq", a.dq}, {"dk", a.dk}},
      a.angles, true);
}

}  // namespace transformer_kernels
