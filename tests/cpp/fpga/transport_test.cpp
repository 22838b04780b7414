// SPDX-License-Identifier: MIT
// Transports: the byte stream against a board in a thread, and names that cannot be opened.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "core/check.h"
#include "fpga/array.h"
#include "fpga/array_cases.h"
#include "fpga/model.h"
#include "transformer_kernels/error.h"
#include "transformer_kernels/fpga/array.h"

namespace transformer_kernels::testing {
namespace {

using Bytes = std::vector<std::uint8_t>;

bool read_all(int descriptor, std::span<std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::read(descriptor, bytes.data(), bytes.size());
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

// A byte at a time, as a slow line would.
void write_slowly(int descriptor, std::span<const std::uint8_t> bytes) {
  for (std::uint8_t byte : bytes) {
    if (::write(descriptor, &byte, 1) != 1) return;
  }
}

// Acts as a board, with the model in the place of the array.
void serve(int descriptor, const fpga::ParameterSet& set) {
  fpga::Model model(set);
  fpga::CommandBytes head;
  while (read_all(descriptor, head)) {
    const fpga::Command command = fpga::decode(head);
    Bytes in(fpga::input_bytes(set, command));
    Bytes out(fpga::output_bytes(set, command));
    if (!read_all(descriptor, in)) return;
    const std::uint64_t cycles = model.run(command, in, out);
    for (int i = 0; i < 4; ++i) out.push_back(static_cast<std::uint8_t>(cycles >> (8 * i)));
    write_slowly(descriptor, out);
  }
}

// A socket with a board at its other end, which ends with the board's thread.
class BoardInAThread {
 public:
  explicit BoardInAThread(const fpga::ParameterSet& set) {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_), 0);
    thread_ = std::thread([this, &set] { serve(ends_[1], set); });
  }
  ~BoardInAThread() {
    ::close(ends_[0]);
    thread_.join();
    ::close(ends_[1]);
  }
  int descriptor() const { return ends_[0]; }

 private:
  int ends_[2];
  std::thread thread_;
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(FpgaTransport, a_stream_gives_what_the_model_gives) {
  fpga::Array model("r2c4d64n256");
  const BoardInAThread board(model.set());
  fpga::Array array("r2c4d64n256", fpga::stream_transport(board.descriptor(), board.descriptor()));
  ArrayCase c({1, 11, 300, 2, 1, 64});
  attention_forward({.array = &model}, c.arguments());
  const std::vector<float> wanted = c.out;
  attention_forward({.array = &array}, c.arguments());
  EXPECT_EQ(c.out, wanted);
  EXPECT_EQ(array.counters().cycles, model.counters().cycles);
  EXPECT_EQ(array.counters().bytes_in, model.counters().bytes_in);
}

TEST(FpgaTransport, a_stream_that_ends_is_an_error) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  fpga::Array array("r2c4d64n256", fpga::stream_transport(ends[0], ends[0]));
  ::shutdown(ends[1], SHUT_WR);
  ArrayCase c({1, 2, 3, 1, 1, 64});
  EXPECT_EQ(message_of([&] { attention_forward({.array = &array}, c.arguments()); }),
            "fpga: the stream has ended, expected 276 more of 276 bytes");
  for (float value : c.out) EXPECT_EQ(value, 77.0F);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(FpgaTransport, what_cannot_be_opened_says_why) {
  EXPECT_EQ(message_of([] { fpga::Array array("r9"); }).substr(0, 46),
            "fpga: array is 'r9', expected one of r1c2d16n1");
  EXPECT_EQ(message_of([] { fpga::open_transport("r2c4d64n256", "usb"); }),
            "fpga: transport is 'usb', expected model, simulation or stream:PATH");
  EXPECT_EQ(message_of([] { fpga::open_transport("r2c4d64n256", "stream:/nowhere"); }),
            "fpga: /nowhere: No such file or directory");
  const std::string message =
      message_of([] { fpga::simulation_transport("r2c4d64n256", "/nowhere"); });
  EXPECT_EQ(message.substr(0, 60), "fpga: /nowhere/libtfk_fpga_r2c4d64n256.so cannot be loaded, ");
}

// The RTL gives what the model gives, for every set that was simulated.
TEST(FpgaTransport, simulations_give_what_the_model_gives) {
  const char* const folder = std::getenv("TFK_FPGA_SIMULATION");
  if (folder == nullptr) GTEST_SKIP() << "TFK_FPGA_SIMULATION names no folder of simulations";
  int found = 0;
  for (const std::string& name : fpga::set_names()) {
    if (!std::filesystem::exists(concat(folder, "/libtfk_fpga_", name, ".so"))) continue;
    SCOPED_TRACE(name);
    ++found;
    fpga::Array model(name);
    fpga::Array array(name, fpga::simulation_transport(name, folder));
    const fpga::ParameterSet& set = model.set();
    for (bool causal : {false, true}) {
      ArrayCase c({1, 9, set.keys + 5, 2, 1, set.head_dim});
      AttentionForward a = c.arguments();
      a.inputs.causal = causal;
      attention_forward({.array = &model}, a);
      const std::vector<float> wanted = c.out;
      attention_forward({.array = &array}, a);
      EXPECT_EQ(c.out, wanted);
      EXPECT_EQ(array.counters().cycles, model.counters().cycles);
    }
  }
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace transformer_kernels::testing
