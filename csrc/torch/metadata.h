// SPDX-License-Identifier: MIT
// A call without its tensors: what their checks look at, as numbers in the order of the schema.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "transformer_kernels/tensor.h"

namespace transformer_kernels::torch_ops {

// Addresses that point nowhere, each far from all others.
class Addresses {
 public:
  void* next() {
    constexpr int kApart = 44;  // bits: no tensor is longer
    return std::bit_cast<void*>(++count_ << kApart);
  }

 private:
  std::uintptr_t count_ = 0;
};

// Reads the numbers that Python wrote (transformer_kernels/_metadata.py). Only memory that Python
// names is read, and it names integers of the host alone; all else has an address that points
// nowhere.
class Metadata {
 public:
  Metadata(const char* op, std::span<const std::int64_t> numbers) : op_(op), numbers_(numbers) {}

  // Undefined where it is absent. Where the op would make a copy without gaps it has none.
  TensorView tensor(const char* name, bool copied);
  template <class Number>
  Number number() {
    if constexpr (std::is_same_v<Number, double>) return std::bit_cast<double>(next());
    return static_cast<Number>(next());
  }
  Addresses& addresses() { return addresses_; }

 private:
  std::int64_t next();

  const char* op_;
  std::span<const std::int64_t> numbers_;
  std::size_t at_ = 0;
  Addresses addresses_;
};

// Makes the checks of the raw op `name` known to `tfk_check`.
using Check = void (*)(std::span<const std::int64_t> numbers);
void add_check(const std::string& name, Check check);

}  // namespace transformer_kernels::torch_ops
