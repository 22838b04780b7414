// SPDX-License-Identifier: MIT
#include "http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "requests.h"

namespace gpt2 {
namespace {

using Clock = std::chrono::steady_clock;
using Duration = HttpServer::Duration;

constexpr int kBacklog = 1024;
constexpr int kSendBuffer = 1 << 16;           // bytes that wait for a client in the system
constexpr std::size_t kLargestHead = 1 << 14;  // bytes
constexpr Duration kLinger{2000};  // in which a client may send what is dropped behind its answer

bool wait_for(int socket, short events, Clock::time_point until) {
  while (true) {
    const auto left = std::chrono::ceil<Duration>(until - Clock::now());
    pollfd waiting = {.fd = socket, .events = events, .revents = 0};
    const int result =
        poll(&waiting, 1, static_cast<int>(std::max<Duration::rep>(left.count(), 0)));
    if (result > 0) return true;
    if (result == 0 || errno != EINTR) return false;
  }
}

bool has_left(int socket) {
  char byte;
  const ssize_t count = recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

// A connection: what httplib reads a request from, and writes its answer to.
class Connection : public httplib::Stream {
 public:
  Connection(int socket, Duration patience)
      : socket_(socket),
        patience_(patience),
        until_(Clock::now() + patience) {}

  // The head is whole: the body has a time of its own, and the bounds of who reads it.
  void begin_body() {
    is_head_ = false;
    until_ = Clock::now() + patience_;
  }

  bool is_readable() const override { return begin_ < end_ || wait_for(socket_, POLLIN, {}); }
  bool is_writable() const override { return !has_left(socket_); }

  // httplib reads heads byte by byte.
  ssize_t read(char* to, std::size_t size) override {
    if (begin_ == end_ && !fill()) return -1;
    const std::size_t count = std::min(size, end_ - begin_);
    std::memcpy(to, buffer_ + begin_, count);
    begin_ += count;
    if (is_head_) head_ += count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* from, std::size_t size) override {
    const Clock::time_point until = Clock::now() + patience_;
    while (true) {
      const ssize_t count = send(socket_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count >= 0) return count;
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return -1;
      if (!wait_for(socket_, POLLOUT, until)) return -1;
    }
  }

  // Nobody asks for addresses, and the socket only has to be one that select() would take.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return 0; }

 private:
  bool fill() {
    if (is_head_ && head_ >= kLargestHead) return false;
    while (wait_for(socket_, POLLIN, until_)) {
      const ssize_t count = recv(socket_, buffer_, sizeof(buffer_), MSG_DONTWAIT);
      if (count > 0) {
        begin_ = 0;
        end_ = static_cast<std::size_t>(count);
        return true;
      }
      if (count == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) return false;
    }
    return false;
  }

  const int socket_;
  const Duration patience_;
  Clock::time_point until_;
  bool is_head_ = true;
  std::size_t head_ = 0, begin_ = 0, end_ = 0;
  char buffer_[4096];
};

// Drops what a client still sends: a connection that is closed before has no time to bring it the
// answer.
void linger(int socket) {
  shutdown(socket, SHUT_WR);
  const Clock::time_point until = Clock::now() + kLinger;
  char dropped[4096];
  while (Clock::now() < until && wait_for(socket, POLLIN, until) &&
         recv(socket, dropped, sizeof(dropped), MSG_DONTWAIT) > 0) {
  }
}

}  // namespace

// A thread for each connection. Those that have none run in the thread that accepts them.
class HttpServer::Threads : public httplib::TaskQueue {
 public:
  explicit Threads(std::int64_t most) : most_(most) {}

  void enqueue(std::function<void()> work) override {
    std::unique_lock lock(mutex_);
    if (count_ < most_) {
      try {
        std::thread([this, work] {
          work();
          const std::lock_guard lock(mutex_);
          --count_;
          ended_.notify_all();
        }).detach();
        ++count_;
        return;
      } catch (const std::system_error&) {  // the system has no more threads
      }
    }
    lock.unlock();
    work();
  }

  void shutdown() override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return count_ == 0; });
  }

 private:
  const std::int64_t most_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::int64_t count_ = 0;
};

HttpServer::HttpServer(std::int64_t connections, Duration patience, std::string refusal)
    : connections_(connections),
      patience_(patience),
      refusal_(std::move(refusal)) {}

int HttpServer::bind(const std::string& host, int port) {
  set_socket_options([this](socket_t socket) {
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof(kSendBuffer));
    listening_ = socket;
  });
  const int bound = port == 0 ? bind_to_any_port(host) : bind_to_port(host, port) ? port : -1;
  if (bound < 0 || ::listen(listening_, kBacklog) != 0) {  // httplib's own backlog is 5
    throw std::runtime_error("cannot listen at " + host + ", port " + std::to_string(port) + ": " +
                             std::strerror(errno));
  }
  return bound;
}

bool HttpServer::serve(const std::function<void()>& ready) {
  new_task_queue = [&] {
    accepting_ = std::this_thread::get_id();
    ready();
    return new Threads(connections_);
  };
  return listen_after_bind();
}

void HttpServer::finish(Duration grace) {
  stop();
  std::unique_lock lock(mutex_);
  is_over_ = true;
  for (const auto& [socket, is_read] : open_) {
    if (!is_read) shutdown(socket, SHUT_RDWR);
  }
  ended_.wait_for(lock, grace, [&] { return open_.empty(); });
}

void HttpServer::abort() {
  const std::lock_guard lock(mutex_);
  for (const auto& [socket, is_read] : open_) shutdown(socket, SHUT_RDWR);
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  if (std::this_thread::get_id() == accepting_) {
    refuse(socket);
    close(socket);
    return false;
  }
  set_read(socket, false);
  answer(socket);
  set_read(socket, false);
  linger(socket);
  const std::lock_guard lock(mutex_);
  open_.erase(socket);
  close(socket);
  ended_.notify_all();
  return true;
}

void HttpServer::answer(socket_t socket) {
  Connection connection(socket, patience_);
  bool is_closed = true;
  const auto begin = [&](httplib::Request& request) {
    connection.begin_body();
    set_read(socket, true);
    request.ranges.clear();
    // A function of clients that says whether to go on.
    request.progress = [socket](std::uint64_t, std::uint64_t) { return !gpt2::has_left(socket); };
  };
  try {
    process_request(connection, true, is_closed, begin);
  } catch (const std::exception& error) {  // httplib catches those of handlers alone
    std::fprintf(stderr, "gpt2: a connection failed: %s\n", error.what());
  }
}

void HttpServer::set_read(socket_t socket, bool is_read) {
  const std::lock_guard lock(mutex_);
  open_[socket] = is_read;
  if (is_over_ && !is_read) shutdown(socket, SHUT_RDWR);
}

void HttpServer::refuse(socket_t socket) const {
  const std::string answer =
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
      "Content-Length: " +
      std::to_string(refusal_.size()) + "\r\n\r\n" + refusal_;
  send(socket, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  shutdown(socket, SHUT_WR);
}

std::string read_body(const httplib::Request& request, const httplib::ContentReader& reader,
                      std::int64_t bytes, double seconds) {
  const auto most = static_cast<std::uint64_t>(bytes);
  const Clock::time_point began = Clock::now();
  std::string body;
  bool is_too_large = request.get_header_value<std::uint64_t>("Content-Length") > most;
  const auto receive = [&](const char* part, std::size_t size) {
    is_too_large = size > most - body.size();
    if (!is_too_large) body.append(part, size);
    return !is_too_large;
  };
  // Without either there is no body; httplib would read one until the client leaves.
  const bool has_body =
      request.has_header("Content-Length") || request.has_header("Transfer-Encoding");
  const bool is_whole = !has_body || (!is_too_large && reader(receive));
  if (is_too_large) {
    throw Refusal(413, "the body has more than " + std::to_string(most) + " bytes", "",
                  "body_too_large");
  }
  if (is_whole) return body;
  // The time began a little earlier; what is no body is found at once.
  const bool is_late = Clock::now() - began > std::chrono::duration<double>(seconds / 2);
  throw is_late ? Refusal(408, "the body did not come in time", "", "timeout")
                : Refusal(400, "the body has no end");
}

}  // namespace gpt2
