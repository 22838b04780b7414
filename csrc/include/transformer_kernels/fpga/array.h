// SPDX-License-Identifier: MIT
// An FPGA array of attention rows as a backend of the ops. A context that names an array runs the
// ops that have a kernel for it there, and refuses, before anything is written, what the array
// cannot do.
//
//   fpga::Array array("r4c16d64n1024");              // its bit-exact model; or with a transport
//   attention_forward({.array = &array}, arguments);  // and any other op that it has
//   array.counters().cycles                           // of the array's clock, spent since
//
// Operands are quantised to int8 on the way in, by the largest magnitude of each head (attention)
// or row (linear), and results come back in the caller's dtype. Tensors stay in CPU memory. The
// name of a parameter set lists its rows, lanes, head dim and keys: r4c16d64n1024.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transformer_kernels/api.h"

namespace transformer_kernels::fpga {

struct ParameterSet;
struct Command;

// Carries commands to an array. Buffers that a command loads keep their contents for later
// commands.
class TFK_API Transport {
 public:
  virtual ~Transport();

  // Sends the command and `in`, fills `out`, and returns the cycles that the array was busy.
  virtual std::uint64_t run(const Command& command, std::span<const std::uint8_t> in,
                            std::span<std::uint8_t> out) = 0;
};

// The bit-exact model in C++, with the formula of the cycles. It is in every build.
TFK_API std::unique_ptr<Transport> model_transport(std::string_view set);
// The Verilated RTL, libtfk_fpga_<set>.so of this folder.
TFK_API std::unique_ptr<Transport> simulation_transport(std::string_view set,
                                                        const std::string& folder);
// A board, or anything else that speaks the protocol of docs/fpga/board.md, behind two file
// descriptors. They may be the same one, become non-blocking, and are the caller's to close.
TFK_API std::unique_ptr<Transport> stream_transport(int read_from, int write_to);
// Opens a transport by its name: "model", "simulation" (from the folder TFK_FPGA_SIMULATION) or
// "stream:PATH", where PATH is a character device or a Unix socket.
TFK_API std::unique_ptr<Transport> open_transport(std::string_view set, std::string_view text);

struct Counters {
  std::uint64_t cycles = 0;
  std::uint64_t commands = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  // Multiplications that the results needed, those of scores and values counted once, and those
  // that the array could have done in its cycles.
  std::uint64_t useful = 0;
  std::uint64_t possible = 0;
};

struct Options {
  // Subtract the mean of all keys from each key before quantisation. All scores of a query move by
  // the same amount, which softmax ignores, and keys with a large common part keep their digits.
  bool center_keys = true;
};

class TFK_API Array {
 public:
  // Throws Error where no such set is known.
  explicit Array(std::string_view set);
  Array(std::string_view set, std::unique_ptr<Transport> transport, Options options = {});
  ~Array();
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  const ParameterSet& set() const;
  const std::string& name() const;
  const Options& options() const;

  Counters counters() const;
  void reset_counters();

  // Locks the array for the time of an op, whose commands share the buffers that one of them
  // loaded.
  [[nodiscard]] std::unique_lock<std::mutex> acquire();
  void run(const Command& command, std::span<const std::uint8_t> in, std::span<std::uint8_t> out,
           std::uint64_t useful);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Every set that the library knows.
TFK_API std::vector<std::string> set_names();

// The array that TFK_FPGA_ARRAY and TFK_FPGA_TRANSPORT name, for the life of the process; by
// default the model of the set with the smallest head dim from `head_dim` on, and of these the one
// with the most multipliers. Throws Error, in which the op is called `op`, where there is none.
TFK_API Array& environment_array(const char* op, std::int64_t head_dim);
// The counters of all arrays that environment_array() has made, added up.
TFK_API Counters environment_counters();

}  // namespace transformer_kernels::fpga
