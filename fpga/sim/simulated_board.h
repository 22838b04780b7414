// SPDX-License-Identifier: MIT
// byte_top, translated by Verilator: the RTL, or a netlist that was synthesised from it.
#pragma once

#include <Vbyte_top.h>
#include <verilated.h>
#if VM_COVERAGE
#include <verilated_cov.h>
#endif

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>

#include "simulated_set.h"

namespace transformer_kernels::fpga {

class SimulatedBoard {
 public:
  // Beats are made of bytes: the array waits for them.
  static constexpr bool kKeepsTime = false;

  SimulatedBoard() : context_(power_up()), top_(new Vbyte_top(context_.get())) {
    top_->in_valid = top_->out_ready = 0;
    top_->reset = 1;
    for (int i = 0; i < 8; ++i) cycle();
    top_->reset = 0;
    for (int i = 0; i < 2; ++i) cycle();
  }

  // Runs a command as SimulatedArray::run does.
  std::uint64_t run(const CommandBytes& command, std::span<const std::uint8_t> in,
                    std::span<std::uint8_t> out, const Stalls& stalls = {}) {
    Traffic traffic(stalls);
    const std::size_t to_send = command.size() + in.size();
    std::size_t sent = 0, received = 0;
    bool offered = false;
    std::uint32_t busy = 0;
    for (std::uint64_t quiet = 0; received < out.size() + kReplyBytes; ++quiet) {
      offered = offered || (sent < to_send && traffic.offers());
      top_->in_valid = offered;
      if (offered)
        top_->in_data = sent < command.size() ? command[sent] : in[sent - command.size()];
      top_->out_ready = traffic.takes();
      top_->clk = 0;
      top_->eval();
      const bool taken = top_->in_valid && top_->in_ready;
      if (top_->out_valid && top_->out_ready) {
        if (received < out.size())
          out[received] = top_->out_data;
        else
          busy |= std::uint32_t{top_->out_data} << 8 * (received - out.size());
        ++received;
        quiet = 0;
        if ((top_->out_last != 0) != (received == out.size() + kReplyBytes))
          throw std::runtime_error("fpga: the simulated board marks a byte that is not the last");
      }
      top_->clk = 1;
      top_->eval();
      sent += static_cast<std::size_t>(taken);
      if (taken) offered = false, quiet = 0;
      if (quiet > kHangs) throw std::runtime_error("fpga: the simulated board hangs");
    }
    if (sent != to_send) throw std::runtime_error("fpga: the simulated board answers too early");
    return busy;
  }

#if VM_COVERAGE
  // Coverage of all runs so far.
  void write_coverage(const char* file) const { context_->coveragep()->write(file); }
#endif

 private:
  static constexpr std::size_t kReplyBytes = 4;

  void cycle() {
    top_->clk = 0;
    top_->eval();
    top_->clk = 1;
    top_->eval();
  }

  std::unique_ptr<VerilatedContext> context_;
  std::unique_ptr<Vbyte_top> top_;
};

}  // namespace transformer_kernels::fpga
