// SPDX-License-Identifier: MIT
#include "fpga/stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/check.h"
#include "fpga/array.h"

namespace transformer_kernels::fpga {
namespace {

// Without a byte either way for so long, the other side is taken for dead.
constexpr int kPatienceMilliseconds = 60'000;
constexpr std::size_t kCycleBytes = 4;

[[noreturn]] void fail(const std::string& what) {
  throw Error(Error::Kind::kRuntime, "fpga: " + what);
}

[[noreturn]] void fail_of_system(const std::string& what) {
  fail(what + ": " + std::strerror(errno));
}

void make_nonblocking(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) < 0) {
    fail_of_system("the stream's file descriptor");
  }
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// Sends and receives at once: the other side stops reading if its output is not taken.
class Exchange {
 public:
  Exchange(int read_from, int write_to, std::span<const std::uint8_t> out,
           std::span<std::uint8_t> in)
      : read_from_(read_from),
        write_to_(write_to),
        out_(out),
        in_(in),
        wanted_(in.size()) {}

  void run() {
    while (!out_.empty() || !in_.empty()) {
      std::array<pollfd, 2> waiting = {
          pollfd{in_.empty() ? -1 : read_from_, POLLIN, 0},
          pollfd{out_.empty() ? -1 : write_to_, POLLOUT, 0},
      };
      const int ready = ::poll(waiting.data(), waiting.size(), kPatienceMilliseconds);
      if (ready < 0 && errno != EINTR) fail_of_system("waiting for the stream");
      if (ready == 0) fail(concat("the stream is silent, expected ", missing()));
      if (waiting[0].revents != 0) receive();
      if (waiting[1].revents != 0) send();
    }
  }

 private:
  std::string missing() const { return concat(in_.size(), " more of ", wanted_, " bytes"); }

  void receive() {
    const ssize_t count = ::read(read_from_, in_.data(), in_.size());
    if (count == 0) fail(concat("the stream has ended, expected ", missing()));
    if (count < 0 && !would_block()) fail_of_system("reading the stream");
    if (count > 0) in_ = in_.subspan(static_cast<std::size_t>(count));
  }

  void send() {
    const ssize_t count = write_some();
    if (count < 0 && !would_block()) fail_of_system("writing the stream");
    if (count > 0) out_ = out_.subspan(static_cast<std::size_t>(count));
  }

  // A socket without a reader is an error here, not a signal.
  ssize_t write_some() const {
    const ssize_t count = ::send(write_to_, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (count >= 0 || errno != ENOTSOCK) return count;
    return ::write(write_to_, out_.data(), out_.size());
  }

  int read_from_;
  int write_to_;
  std::span<const std::uint8_t> out_;
  std::span<std::uint8_t> in_;
  std::size_t wanted_;
};

class StreamTransport : public Transport {
 public:
  StreamTransport(int read_from, int write_to) : read_from_(read_from), write_to_(write_to) {
    make_nonblocking(read_from);
    make_nonblocking(write_to);
  }

  std::uint64_t run(const Command& command, std::span<const std::uint8_t> in,
                    std::span<std::uint8_t> out) override {
    const CommandBytes head = encode(command);
    sent_.assign(head.begin(), head.end());
    sent_.insert(sent_.end(), in.begin(), in.end());
    received_.resize(out.size() + kCycleBytes);
    Exchange(read_from_, write_to_, sent_, received_).run();
    std::memcpy(out.data(), received_.data(), out.size());
    std::uint32_t cycles = 0;
    for (std::size_t i = 0; i < kCycleBytes; ++i) {
      cycles |= std::uint32_t{received_[out.size() + i]} << (8 * i);
    }
    return cycles;
  }

 private:
  int read_from_;
  int write_to_;
  std::vector<std::uint8_t> sent_;
  std::vector<std::uint8_t> received_;
};

// A stream that is closed with its transport.
class OpenedStream : public Transport {
 public:
  explicit OpenedStream(int descriptor)
      : descriptor_(descriptor),
        stream_(descriptor, descriptor) {}
  ~OpenedStream() override { ::close(descriptor_); }

  std::uint64_t run(const Command& command, std::span<const std::uint8_t> in,
                    std::span<std::uint8_t> out) override {
    return stream_.run(command, in, out);
  }

 private:
  int descriptor_;
  StreamTransport stream_;
};

int connect_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) fail(path + " is too long for a socket's name");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM, 0);
  if (descriptor < 0) fail_of_system(path);
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);  // macOS has no SOCK_CLOEXEC
  if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) < 0) {
    ::close(descriptor);
    fail_of_system(path);
  }
  return descriptor;
}

int open_device(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (descriptor < 0) fail_of_system(path);
  termios settings{};
  if (::tcgetattr(descriptor, &settings) == 0) {
    ::cfmakeraw(&settings);
    ::tcsetattr(descriptor, TCSANOW, &settings);
  }
  return descriptor;
}

}  // namespace

std::unique_ptr<Transport> stream_transport(int read_from, int write_to) {
  return std::make_unique<StreamTransport>(read_from, write_to);
}

std::unique_ptr<Transport> open_stream(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) fail_of_system(path);
  return std::make_unique<OpenedStream>(S_ISSOCK(found.st_mode) ? connect_socket(path)
                                                                : open_device(path));
}

}  // namespace transformer_kernels::fpga
