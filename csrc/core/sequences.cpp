// SPDX-License-Identifier: MIT
#include "core/sequences.h"

namespace transformer_kernels {

const std::int32_t* cu_seqlens_of(const char* op, Device device, const char* name,
                                  const TensorView& view, std::int64_t rows, const char* of) {
  ArgumentChecker(op, device).typed(name, view, DType::kInt32, "rows of sequences");
  const bool packed =
      view.rank == 1 && view.numel() > 0 && (view.numel() == 1 || view.strides[0] == 1);
  check_value(packed, op, ": ", name, " has ", view.rank, " dimensions and ", view.numel(),
              " elements, expected contiguous memory of one dimension, one more than sequences");
  const auto* const at = static_cast<const std::int32_t*>(view.data);
  if (device.type != DeviceType::kCpu) return at;
  check_value(at[0] == 0, op, ": ", name, " starts with ", at[0], ", expected 0");
  const std::int64_t last = view.numel() - 1;
  for (std::int64_t i = 0; i < last; ++i) {
    check_value(at[i] <= at[i + 1], op, ": ", name, " falls from ", at[i], " to ", at[i + 1],
                ", expected ascending numbers");
  }
  check_value(at[last] <= rows, op, ": ", name, " ends with ", at[last], ", expected at most ",
              rows, " (the rows of ", of, ")");
  return at;
}

}  // namespace transformer_kernels
