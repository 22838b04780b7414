// SPDX-License-Identifier: MIT
// The choice of tokens on CUDA: what each call needs beside its arguments.
#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "core/log.h"
#include "decode/sampling/group.cuh"
#include "decode/sampling/kernels_cuda.h"

namespace transformer_kernels::cuda {

namespace {

using namespace sampling;

// How rows are shared out among CTAs, and the memory that it takes.
struct Layout {
  GroupPlan plan;
  std::size_t bytes;  // of parts that do not fit into shared memory

  Layout(const Context& context, std::int64_t rows, std::int64_t cols) {
    const DeviceLimits& device = device_limits(context.device.index);
    plan = plan_of(device, rows, cols);
    const bool is_resident =
        plan.part <= kMostPart && sizeof(GroupMemory) + plan.part * sizeof(float) <=
                                      static_cast<std::size_t>(device.shared_bytes_per_cta);
    bytes = is_resident ? 0 : rows * plan.ctas * plan.part * sizeof(float);
  }
  template <class Problem>
  void log(const char* op, const Problem& p) const {
    if (!log_dispatch()) return;
    log_line(concat(op, " ", describe(p), ": ", plan.ctas, " CTAs a row, parts in ",
                    bytes == 0 ? "shared" : "global", " memory"));
  }
  float* numbers(std::byte* memory) const {
    return bytes == 0 ? nullptr : reinterpret_cast<float*>(memory);
  }
};

}  // namespace

void sample_logits(const Context& context, const SampleProblem& p) {
  const Layout layout(context, p.batch, p.vocabulary);
  layout.log("sample_logits", p);
  const std::size_t likeliest = p.batch * layout.plan.ctas * p.top * sizeof(std::uint64_t);
  const Scratch scratch("sample_logits", context, layout.bytes + likeliest);
  auto* const memory = scratch.as<std::byte>();
  const SampleCall call{p, layout.plan, layout.numbers(memory),
                        reinterpret_cast<std::uint64_t*>(memory + layout.bytes)};
  dispatch_float(p.dtype, [&]<class T>() { run_sample<T>(context, call); });
}

void speculative_accept(const Context& context, const AcceptProblem& p) {
  const Layout layout(context, p.rows(), p.vocabulary);
  layout.log("speculative_accept", p);
  const Scratch scratch("speculative_accept", context, layout.bytes + p.rows() * sizeof(RowShare));
  auto* const memory = scratch.as<std::byte>();
  const AcceptCall call{p, layout.plan, layout.numbers(memory),
                        reinterpret_cast<RowShare*>(memory + layout.bytes)};
  dispatch_float(p.dtype, [&]<class T>() { run_accept<T>(context, call); });
}

}  // namespace transformer_kernels::cuda
