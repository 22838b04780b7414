// SPDX-License-Identifier: MIT
#include "linear_loss/scratch.h"

#include <bit>
#include <cstdint>

#include "core/backends.h"
#include "core/cpu/parallel.h"
#include "core/cuda/column_sum.h"
#include "core/scratch.h"
#include "loss/cross_entropy_cpu.h"

namespace transformer_kernels {

namespace cpu {
namespace {

void round_sums(const Context& context, const TensorView& sums, const TensorView& out) {
  constexpr const CrossEntropyKernels* kTables[] = TFK_PER_ISA(cross_entropy_kernels);
  const auto narrow = kTables[static_cast<int>(isa())]->narrow[static_cast<int>(out.dtype)];
  parallel_for(context, out.numel(), rows_per_range(1), [&](std::int64_t begin, std::int64_t end) {
    const auto* const from = static_cast<const float*>(sums.data) + begin;
    auto* const to = static_cast<char*>(out.data) + begin * size_of(out.dtype);
    narrow(from, to, end - begin);
  });
}

}  // namespace
}  // namespace cpu

namespace {

// Addresses that no memory has, far from each other: those of a call are of one thread, and fewer
// than repeat. Ops that only check refuse null pointers, and operands that overlap.
void* nowhere() {
  static thread_local std::uintptr_t calls = 0;
  return std::bit_cast<void*>((std::uintptr_t{1} << 62) + (calls++ % 64 << 54));
}

std::shared_ptr<void> memory_of(const char* op, const Context& context, std::size_t bytes) {
  if (context.checks_only) return {std::shared_ptr<void>(), nowhere()};
  const auto memory = std::make_shared<Scratch>(op, context, bytes);
  return {memory, memory->data()};
}

}  // namespace

ScratchTensor::ScratchTensor(const char* op, const Context& context, DType dtype,
                             std::int64_t count)
    : memory_(memory_of(op, context, cpu::wide_cols(count) * size_of(dtype))),
      dtype_(dtype),
      device_(context.device),
      count_(count) {}

TensorView ScratchTensor::numbers() const {
  return TensorView::contiguous(memory_.get(), dtype_, device_, {count_});
}

TensorView ScratchTensor::matrix(std::int64_t rows, std::int64_t columns, std::int64_t step) const {
  TensorView view = TensorView::contiguous(memory_.get(), dtype_, device_, {rows, columns});
  view.strides[0] = step;
  return view;
}

// On CUDA each is the sum of a column of one row.
void round_sums(const char* op, const Context& context, const ScratchTensor& sums,
                const TensorView& out) {
  const TensorView from = sums.numbers();
  if constexpr (kHasCuda) {
    if (context.device.type == DeviceType::kCuda) {
      const std::int64_t count = out.numel();
      const cuda::PartialGradients<float> columns{
          static_cast<const float*>(from.data), 1, cpu::wide_cols(count), count, out.data, nullptr};
      return cuda::sum_columns(op, context, out.dtype, columns, false);
    }
  }
  cpu::round_sums(context, from, out);
}

}  // namespace transformer_kernels
