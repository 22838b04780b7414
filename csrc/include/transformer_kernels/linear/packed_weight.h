// SPDX-License-Identifier: MIT
// A weight in the order in which the CPU's products read it.
//
// A product of many rows copies the weight into that order at each call, one of few rows reads it
// where it lies, several lines at a time. Packed once, the weight is one line of bytes for both,
// for as long as it does not change: linear_forward() takes it as `packed`. Nothing notices a
// change; repack() follows it.
//
// weight is (N, K) of any strides, float64, float32, float16 or bfloat16. A packed weight has about
// the size of the weight; one of 16 bits has twice that where the CPU has no fast product of pairs
// of its numbers. The order is the process's: it depends on the CPU and on TFK_CPU_ISA.
#pragma once

#include <cstddef>
#include <memory>

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

// The bytes of a packed weight. Throws Error when weight does not meet the contract above.
TFK_API std::int64_t packed_bytes(const TensorView& weight);

// packed is uint8 (packed_bytes(weight),), best aligned to 64 bytes. Throws Error, with nothing
// written, when an argument does not meet the contract above.
TFK_API void pack_weight(const Context& context, const TensorView& weight,
                         const TensorView& packed);

// A packed weight with memory of its own. The weight has to live as long as repack() is called.
class TFK_API PackedWeight {
 public:
  PackedWeight(const Context& context, const TensorView& weight);
  ~PackedWeight();
  PackedWeight(PackedWeight&&) noexcept;
  PackedWeight& operator=(PackedWeight&&) noexcept;

  TensorView view() const;
  void repack(const Context& context);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace transformer_kernels
