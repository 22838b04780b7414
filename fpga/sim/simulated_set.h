// SPDX-License-Identifier: MIT
// Declarations that all simulations share. The build defines the parameter set: TFK_FPGA_R, _C, _D,
// _NK, _NL, _MATMUL and _SOFTMAX, as the RTL's parameters.
#pragma once

#include <verilated.h>

#include <cstdint>
#include <memory>
#include <random>

#include "fpga/array.h"

namespace transformer_kernels::fpga {

inline constexpr ParameterSet kSimulatedSet = {
    TFK_FPGA_R,  TFK_FPGA_C,           TFK_FPGA_D,           TFK_FPGA_NK,
    TFK_FPGA_NL, TFK_FPGA_MATMUL != 0, TFK_FPGA_SOFTMAX != 0};

static_assert(can_be_built(kSimulatedSet));

// Registers and memories wake up with anything in them; but with zeros where coverage is counted,
// since waking up with a one would be a toggle.
inline std::unique_ptr<VerilatedContext> power_up() {
  auto context = std::make_unique<VerilatedContext>();
  context->randReset(VM_COVERAGE ? 0 : 2);
  context->randSeed(19);
  return context;
}

// How often, of 256 cycles, a stream has nothing to give or takes nothing.
struct Stalls {
  unsigned input = 0, output = 0;
  unsigned seed = 1;

  bool none() const { return input == 0 && output == 0; }
};

// Draws whether a stream goes on in a cycle.
class Traffic {
 public:
  explicit Traffic(const Stalls& stalls) : stalls_(stalls), random_(stalls.seed) {}
  bool offers() { return (random_() & 255) >= stalls_.input; }
  bool takes() { return (random_() & 255) >= stalls_.output; }

 private:
  Stalls stalls_;
  std::mt19937 random_;
};

// No command goes so long without a beat in or out: a tile of the most keys, twice.
inline constexpr std::uint64_t kHangs = std::uint64_t{4} * 8192 * 16;

}  // namespace transformer_kernels::fpga
