// SPDX-License-Identifier: MIT
// The backends of an op as data. Each family has one table for each kind of problem. A new backend
// is a member of Backends and an entry in the tables; the ops do not change.
#pragma once

#include "core/check.h"
#include "core/cuda/device.h"
#include "core/times.h"
#include "transformer_kernels/context.h"

namespace transformer_kernels {

#ifdef TFK_WITH_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

// The functions that run a checked problem, one for each backend; null where this build lacks the
// backend. Tables are constexpr, so `kHasCuda ? function : nullptr` may name a function that this
// build does not have.
template <class Problem>
struct Backends {
  using Run = void (*)(const Context& context, const Problem& problem);

  Run cpu = nullptr;
  Run cuda = nullptr;
  Run fpga = nullptr;
  // Checks the numbers of integer tensors, which only the CPU reads: labels, rows of a table.
  Run numbers = nullptr;
};

// Runs the problem on the context's array, or else on the backend of its device, which is the
// current one meanwhile; says so where this build, or the op, lacks it. Every op ends here, so that
// one whose arguments alone are to be checked returns here.
template <class Problem>
void run_on(const char* op, const Backends<Problem>& backends, const Context& context,
            const Problem& problem) {
  if (context.device.type == DeviceType::kCpu && backends.numbers != nullptr) {
    backends.numbers(context, problem);
  }
  if (context.checks_only) return;
  if (context.array != nullptr) {
    check_value(context.device.type == DeviceType::kCpu, op,
                ": device is cuda, expected cpu (an FPGA array reads memory of the CPU)");
    check_value(backends.fpga != nullptr, op,
                ": array is given, expected none (this pass has no kernel for an FPGA)");
    return backends.fpga(context, problem);
  }
  switch (context.device.type) {
    case DeviceType::kCpu: return backends.cpu(context, problem);
    case DeviceType::kCuda:
      check_value(kHasCuda && backends.cuda != nullptr, op,
                  ": device is cuda, expected cpu (this build has no CUDA kernels)");
      if constexpr (kHasCuda) {
        const cuda::CurrentDevice current(op, context.device.index);
        if (has_times()) cuda::device_limits(context.device.index);  // whose times then apply
        backends.cuda(context, problem);
      }
      return;
  }
}

}  // namespace transformer_kernels
