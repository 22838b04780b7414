// SPDX-License-Identifier: MIT
// The array of fpga/rtl, translated by Verilator, behind the streams that csrc/fpga/array.h
// defines.
#pragma once

#include <Vattention_array.h>
#include <verilated.h>
#if VM_COVERAGE
#include <verilated_cov.h>
#endif

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>

#include "simulated_set.h"

namespace transformer_kernels::fpga {

class SimulatedArray {
 public:
  // Without stalls, a command takes the cycles of the formula.
  static constexpr bool kKeepsTime = true;

  SimulatedArray() : context_(power_up()), array_(new Vattention_array(context_.get())) {
    array_->command_valid = array_->s_valid = array_->m_ready = 0;
    array_->reset = 1;
    for (int i = 0; i < 8; ++i) tick();
    array_->reset = 0;
    tick();
  }

  // Carries one command out. Returns the cycles that the array says it was busy; throws where it
  // hangs, sends a beat too many or marks another than the last.
  std::uint64_t run(const CommandBytes& command, std::span<const std::uint8_t> in,
                    std::span<std::uint8_t> out, const Stalls& stalls = {}) {
    Traffic traffic(stalls);
    send(command);
    std::size_t sent = 0, received = 0;
    bool offered = false;
    std::uint64_t quiet = 0;
    while (true) {
      // An offer stays until it is taken.
      offered = offered || (sent < in.size() && traffic.offers());
      array_->s_valid = offered;
      if (offered) std::memcpy(&array_->s_data, in.data() + sent, kInBeat);
      array_->m_ready = traffic.takes();
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
  // Coverage of all runs so far.
  void write_coverage(const char* file) const { context_->coveragep()->write(file); }
#endif

 private:
  static constexpr std::size_t kInBeat = kSimulatedSet.lanes;
  static constexpr std::size_t kOutBeat = kSimulatedSet.output_beat_bytes();

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
