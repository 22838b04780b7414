// SPDX-License-Identifier: MIT
// Continuous batching: a thread lets all requests that run take each step together. A request joins
// them as soon as there are a row and pages for it, and leaves with its last token.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "model.h"
#include "sampler.h"

namespace gpt2 {

struct SchedulerOptions {
  std::int64_t sequences, waiting;   // the most requests that run and wait
  std::int64_t pages;                // of the cache
  std::optional<std::int32_t> stop;  // the token that ends a text
};

struct Task {
  std::vector<std::int32_t> prompt;
  std::int64_t tokens;  // the most new ones
  Sampling sampling;
};

enum class End : std::uint8_t { kNone, kStop, kLength, kFailed, kCancelled };

class QueueFull : public std::runtime_error {
 public:
  QueueFull() : std::runtime_error("too many requests wait, try again later") {}
};

class Scheduler {
 public:
  class Request;
  using Clock = std::chrono::steady_clock;

  struct News {
    std::vector<Drawn> tokens;  // without the one that ends a text
    End end;
  };
  struct Status {
    std::int64_t waiting, running, free_pages, rows;  // rows since the beginning
  };

  // The model outlives the scheduler.
  Scheduler(const Gpt2& model, const SchedulerOptions& options);
  ~Scheduler();

  // A task whose sequence the cache can hold, of tokens of the model. Throws QueueFull.
  std::shared_ptr<Request> submit(Task task);

  // The tokens since the last call, as soon as there are any or the request has ended; nothing
  // where neither is so at that time.
  News wait(Request& request, Clock::time_point until);

  // Ends a request if it has not ended, and returns whether that is so. Its pages are free after
  // the step that is running.
  bool cancel(Request& request);

  // All requests fail from now on.
  void stop();

  Status status() const;

 private:
  void run();
  bool admit();
  void step();
  void advance(std::span<Request* const> rows, std::span<const std::int32_t> tokens);
  void deliver(Request& request, Drawn drawn);
  static void end(Request& request, End how);

  const Gpt2& model_;
  const SchedulerOptions options_;
  KvCache cache_;              // only the thread changes it
  std::vector<float> logits_;  // (rows, vocabulary); the thread's own

  mutable std::mutex mutex_;  // of all below, and of requests but for what is the thread's own
  std::condition_variable work_;
  std::deque<std::shared_ptr<Request>> waiting_;
  std::vector<std::shared_ptr<Request>> running_;  // only the thread changes it
  std::int64_t rows_ = 0, free_pages_ = 0;
  bool over_ = false;

  std::thread thread_;  // last: it reads all others
};

}  // namespace gpt2
