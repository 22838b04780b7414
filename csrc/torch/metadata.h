// SPDX-License-Identifier: MIT
// A call without its tensors: what their checks look at, as numbers in the order of the schema.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "transformer_kernels/tensor.h"

namespace transformer_kernels::torch_ops {

// Reads the numbers that Python wrote (transformer_kernels/_metadata.py). Only memory that Python
// names is read, and it names integers of the host alone; all else has an address that points
// nowhere.
class Metadata {
 public:
  Metadata(const char* op, std::span<const std::int64_t> numbers) : op_(op), numbers_(numbers) {}

  // Undefined where it is absent. Where the op would make a copy without gaps it has none.
  TensorView tensor(const char* name, bool copied);
  void read(double& value);
  void read(std::int64_t& value) { value = next(); }
  void read(bool& value) { value = next() != 0; }
  // An address that no other tensor of the call has.
  void* address();

 private:
  std::int64_t next();

  const char* op_;
  std::span<const std::int64_t> numbers_;
  std::size_t at_ = 0;
  std::uintptr_t tensors_ = 0;
};

// Makes the checks of the raw op `name` known to `tfk_check`.
using Check = void (*)(std::span<const std::int64_t> numbers);
void add_check(const std::string& name, Check check);

}  // namespace transformer_kernels::torch_ops
