// SPDX-License-Identifier: MIT
// The array in C++, bit for bit: the reference for every transport and for the RTL.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fpga/array.h"

namespace transformer_kernels::fpga {

// One array with its buffers, which keep K and V from one command to the next.
class Model {
 public:
  explicit Model(const ParameterSet& set);

  // Carries a command out: streams as array.h says, of exactly input_bytes and output_bytes.
  // Returns the cycles that the array is busy. Throws Error, with nothing written, for a command or
  // streams that are refused.
  std::uint64_t run(const Command& command, std::span<const std::uint8_t> in,
                    std::span<std::uint8_t> out);

  const ParameterSet& set() const { return set_; }

 private:
  void attention(const Command& command, const std::int8_t* queries, std::uint8_t* out) const;
  void matmul(const Command& command, const std::int8_t* queries, std::uint8_t* out) const;
  void softmax(const Command& command, const std::uint8_t* in, std::uint8_t* out) const;

  ParameterSet set_;
  std::vector<std::int8_t> k_, v_;
};

}  // namespace transformer_kernels::fpga
