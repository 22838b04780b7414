// SPDX-License-Identifier: MIT
// cpp-httplib's server with bounds: a thread for each of so many connections, one request for each
// connection, and an end for clients that are too slow, send a head without an end, or have left.
#pragma once

#include <httplib.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace gpt2 {

class HttpServer : public httplib::Server {
 public:
  using Duration = std::chrono::milliseconds;

  // `patience` is what a client has to send a request's head, then its body, and to read what is
  // ready for it. `refusal` is the body of the answer where there are too many connections.
  HttpServer(std::int64_t connections, Duration patience, std::string refusal);

  // Binds an address, 0 being any port that is free, and returns the port; throws
  // std::runtime_error.
  int bind(const std::string& host, int port);

  // Accepts connections until finish(), and returns when all have ended. `ready` is called when it
  // accepts them. False where it could not go on.
  bool serve(const std::function<void()>& ready);

  // Takes no more connections, and ends those whose request is not read yet. Returns as soon as
  // all have ended, or after `grace`.
  void finish(Duration grace);
  void abort();  // ends all

  // Whether the client of a request of this server has left.
  static bool has_left(const httplib::Request& request) { return !request.progress(0, 0); }

 private:
  class Threads;

  bool process_and_close_socket(socket_t socket) override;
  void refuse(socket_t socket) const;
  void answer(socket_t socket);
  void set_read(socket_t socket, bool is_read);

  const std::int64_t connections_;
  const Duration patience_;
  const std::string refusal_;
  socket_t listening_ = -1;
  std::thread::id accepting_;

  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
  std::map<socket_t, bool> open_;  // whether a request is read that is not answered yet
};

// The body of a request of at most so many bytes, which comes within `seconds`. Throws Refusal.
std::string read_body(const httplib::Request& request, const httplib::ContentReader& reader,
                      std::int64_t bytes, double seconds);

}  // namespace gpt2
