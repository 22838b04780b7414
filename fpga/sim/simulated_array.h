// SPDX-License-Identifier: MIT
// The array of fpga/rtl, translated by Verilator, behind the streams that csrc/fpga/array.h says.
// The set is the build's: TFK_FPGA_R, _C, _D, _NK, _NL, _MATMUL and _SOFTMAX, as the RTL's parameters.
#pragma once

#include <Vattention_array.h>
#include <verilated.h>
#if VM_COVERAGE
#include <verilated_cov.h>
#endif

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>

#include "fpga/array.h"

namespace transformer_kernels::fpga {

inline constexpr ParameterSet kSimulatedSet = {TFK_FPGA_R,  TFK_FPGA_C,           TFK_FPGA_D,
                                               TFK_FPGA_NK, TFK_FPGA_NL,          TFK_FPGA_MATMUL != 0,
                                               TFK_FPGA_SOFTMAX != 0};

// How often, of 256 cycles, a stream has nothing to give or takes nothing.
struct Stalls {
  unsigned input = 0, output = 0;
  unsigned seed = 1;
};

class SimulatedArray {
 public:
  SimulatedArray() : context_(new VerilatedContext), array_(new Vattention_array(context_.get())) {
    array_->reset = 1;
    for (int i = 0; i < 8; ++i) tick();
    array_->reset = 0;
    tick();
  }

  // Carries one command out. Returns the cycles that the array says it was busy; throws where it
  // hangs, sends a beat too many or marks another than the last.
  std::uint64_t run(const CommandBytes& command, std::span<const std::uint8_t> in,
                    std::span<std::uint8_t> out, const Stalls& stalls = {}) {
    std::mt19937 random(stalls.seed);
    const auto goes = [&](unsigned stall) { return (random() & 255) >= stall; };
    send(command);
    std::size_t sent = 0, received = 0;
    bool offered = false;
    std::uint64_t quiet = 0;
    while (true) {
      // What is offered stays until it is taken.
      offered = offered || (sent < in.size() && goes(stalls.input));
      array_->s_valid = offered;
      if (offered) std::memcpy(&array_->s_data, in.data() + sent, kInBeat);
      array_->m_ready = goes(stalls.output);
      array_->clk = 0;
      array_->eval();
      const bool taken = array_->s_valid && array_->s_ready;
      const bool given = array_->m_valid && array_->m_ready;
      if (array_->command_ready && !given) break;
      if (given) receive(out, received);
      edge();
      if (taken) sent += kInBeat;
      if (taken) offered = false;
      quiet = taken || given ? 0 : quiet + 1;
      if (quiet > kHangs) throw std::runtime_error("fpga: the simulated array hangs");
    }
    array_->s_valid = 0;
    if (sent != in.size() || received != out.size())
      throw std::runtime_error("fpga: the simulated array ends before its streams do");
    return array_->busy_cycles;
  }

#if VM_COVERAGE
  // Of everything so far.
  void write_coverage(const char* file) const { context_->coveragep()->write(file); }
#endif

 private:
  static constexpr std::size_t kInBeat = kSimulatedSet.lanes;
  static constexpr std::size_t kOutBeat = kSimulatedSet.output_beat_bytes();
  // No command goes so long without a beat in or out: a tile of the most keys, twice.
  static constexpr std::uint64_t kHangs = 4 * 8192 * 16;

  void edge() {
    array_->clk = 1;
    array_->eval();
  }
  void tick() {
    array_->clk = 0;
    array_->eval();
    edge();
  }

  void send(const CommandBytes& command) {
    std::memcpy(&array_->command, command.data(), command.size());
    array_->command_valid = 1;
    array_->clk = 0;
    array_->eval();
    if (!array_->command_ready) throw std::runtime_error("fpga: the simulated array is busy");
    edge();
    array_->command_valid = 0;
  }

  void receive(std::span<std::uint8_t> out, std::size_t& received) {
    if (received + kOutBeat > out.size())
      throw std::runtime_error("fpga: the simulated array sends more than it should");
    std::memcpy(out.data() + received, &array_->m_data, kOutBeat);
    received += kOutBeat;
    if ((array_->m_last != 0) != (received == out.size()))
      throw std::runtime_error("fpga: the simulated array marks a beat that is not the last");
  }

  std::unique_ptr<VerilatedContext> context_;
  std::unique_ptr<Vattention_array> array_;
};

}  // namespace transformer_kernels::fpga
