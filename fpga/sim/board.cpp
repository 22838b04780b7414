// SPDX-License-Identifier: MIT
// A board in a process: byte_top, translated by Verilator, between two streams of bytes.
//
//   board          from standard input to standard output
//   board PATH     a Unix socket of that name, one connection after another
//
// It ends with its input. The board keeps running while bytes are missing, as hardware does;
// between commands it waits.
#include <Vbyte_top.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <verilated.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <vector>

namespace {

// Cycles between looks for input from other processes.
constexpr int kCyclesPerLook = 256;
constexpr std::size_t kRead = 1 << 16;

class Board {
 public:
  Board() {
    top_.in_valid = top_.out_ready = 0;
    top_.reset = 1;
    for (int i = 0; i < 8; ++i) tick();
    top_.reset = 0;
    for (int i = 0; i < 2; ++i) tick();
  }

  // Serves until the input ends.
  void serve(int from, int to) {
    std::vector<std::uint8_t> reply;
    while (look(from)) {
      for (int i = 0; i < kCyclesPerLook; ++i) step(reply);
      if (!flush(to, reply)) return;
    }
  }

 private:
  void tick() {
    top_.clk = 0;
    top_.eval();
    top_.clk = 1;
    top_.eval();
  }

  // Takes what has arrived; where nothing can happen without it, waits for it. False at the end.
  bool look(int from) {
    pollfd event{from, POLLIN, 0};
    if (::poll(&event, 1, idle_ && arrived_.empty() ? -1 : 0) <= 0) return true;
    std::uint8_t bytes[kRead];
    const ssize_t count = ::read(from, bytes, sizeof bytes);
    if (count <= 0) return false;
    arrived_.insert(arrived_.end(), bytes, bytes + count);
    return true;
  }

  void step(std::vector<std::uint8_t>& reply) {
    top_.in_valid = !arrived_.empty();
    if (top_.in_valid) top_.in_data = arrived_.front();
    top_.out_ready = 1;
    top_.clk = 0;
    top_.eval();
    const bool taken = top_.in_valid && top_.in_ready, given = top_.out_valid;
    if (given) reply.push_back(top_.out_data);
    if (given && top_.out_last) idle_ = true;
    top_.clk = 1;
    top_.eval();
    if (!taken) return;
    arrived_.pop_front();
    idle_ = false;
  }

  static bool flush(int to, std::vector<std::uint8_t>& reply) {
    std::size_t sent = 0;
    while (sent < reply.size()) {
      const ssize_t count = ::write(to, reply.data() + sent, reply.size() - sent);
      if (count <= 0) return false;
      sent += static_cast<std::size_t>(count);
    }
    reply.clear();
    return true;
  }

  Vbyte_top top_;
  std::deque<std::uint8_t> arrived_;
  bool idle_ = true;
};

int listen_at(const char* path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (std::strlen(path) >= sizeof address.sun_path) return -1;
  std::strcpy(address.sun_path, path);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ::unlink(path);
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return -1;
  return ::listen(listener, 1) == 0 ? listener : -1;
}

}  // namespace

int main(int count, char** arguments) {
  std::signal(SIGPIPE, SIG_IGN);
  if (count < 2) {
    Board().serve(STDIN_FILENO, STDOUT_FILENO);
    return 0;
  }
  const int listener = listen_at(arguments[1]);
  if (listener < 0) {
    std::perror(arguments[1]);
    return 1;
  }
  while (true) {
    const int connection = ::accept(listener, nullptr, nullptr);
    if (connection < 0) return 1;
    Board().serve(connection, connection);
    ::close(connection);
  }
}
