// SPDX-License-Identifier: MIT
#include "scheduler.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

namespace gpt2 {
namespace {

// Tokens of prompts in a step: those who wait for their next token wait no longer than these take.
constexpr std::int64_t kPromptTokens = 256;

}  // namespace

class Scheduler::Request {
 public:
  explicit Request(Task task)
      : sampling(std::move(task.sampling)),
        prompt_length(std::ssize(task.prompt)),
        most(prompt_length + task.tokens),
        text(std::move(task.prompt)) {}

  // The tokens of the prompt that the sequence does not hold yet.
  std::int64_t missing() const {
    return std::max<std::int64_t>(prompt_length - sequence.length, 0);
  }

  const Sampling sampling;
  const std::int64_t prompt_length, most;  // tokens
  // The thread's own.
  std::vector<std::int32_t> text;  // with the prompt
  Sequence sequence;
  // Under the scheduler's mutex.
  std::vector<Drawn> tokens;  // that nobody has taken
  End end = End::kNone;
  std::condition_variable news;
};

Scheduler::Scheduler(const Gpt2& model, const SchedulerOptions& options)
    : model_(model),
      options_(options),
      cache_(model, options.pages),
      free_pages_(options.pages),
      thread_([this] { run(); }) {}

Scheduler::~Scheduler() {
  stop();
  thread_.join();
}

std::shared_ptr<Scheduler::Request> Scheduler::submit(Task task) {
  const auto request = std::make_shared<Request>(std::move(task));
  const std::lock_guard lock(mutex_);
  if (std::ssize(waiting_) >= options_.waiting) throw QueueFull();
  if (over_) {
    request->end = End::kFailed;
  } else {
    waiting_.push_back(request);
    work_.notify_one();
  }
  return request;
}

Scheduler::News Scheduler::wait(Request& request, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  request.news.wait_until(lock, until,
                          [&] { return !request.tokens.empty() || request.end != End::kNone; });
  return {.tokens = std::exchange(request.tokens, {}), .end = request.end};
}

bool Scheduler::cancel(Request& request) {
  const std::lock_guard lock(mutex_);
  if (request.end != End::kNone) return false;
  request.end = End::kCancelled;
  return true;
}

void Scheduler::stop() {
  const std::lock_guard lock(mutex_);
  over_ = true;
  work_.notify_one();
}

Scheduler::Status Scheduler::status() const {
  const std::lock_guard lock(mutex_);
  return {.waiting = std::ssize(waiting_),
          .running = std::ssize(running_),
          .free_pages = free_pages_,
          .rows = rows_};
}

void Scheduler::run() {
  while (admit()) {
    try {
      step();
    } catch (const std::exception& error) {  // the same step would fail again
      std::fprintf(stderr, "gpt2: a step of the model failed, its requests end: %s\n",
                   error.what());
      const std::lock_guard lock(mutex_);
      for (const auto& request : running_) end(*request, End::kFailed);
    }
  }
  const std::lock_guard lock(mutex_);
  for (const auto& request : running_) end(*request, End::kFailed);
  for (const auto& request : waiting_) end(*request, End::kFailed);
}

// Lets go who has ended, lets in who has a place, and waits while nobody runs. False at the end.
bool Scheduler::admit() {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [&] { return over_ || !waiting_.empty() || !running_.empty(); });
  const auto has_ended = [](const auto& request) { return request->end != End::kNone; };
  for (const auto& request : running_) {
    if (has_ended(request)) cache_.release(request->sequence);
  }
  std::erase_if(running_, has_ended);
  std::erase_if(waiting_, has_ended);
  while (!waiting_.empty() && std::ssize(running_) < options_.sequences) {
    Request& next = *waiting_.front();
    // Its last token is never stored. Who comes later waits behind it, so that it gets its pages.
    if (!cache_.reserve(next.sequence, next.most - 1)) break;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  free_pages_ = cache_.free_pages();
  return !over_;
}

// Prompts come one by one and in parts, then all others take their next token together.
void Scheduler::step() {
  std::vector<Request*> rows;
  std::vector<std::int32_t> tokens;
  std::int64_t room = kPromptTokens;
  for (const auto& request : running_) {
    const std::int64_t count = std::min(request->missing(), room);
    if (request->missing() == 0) {
      rows.push_back(request.get());
      tokens.push_back(request->text.back());
    } else if (count > 0) {
      Request* const row = request.get();
      const std::span text(request->text);
      advance({&row, 1}, text.subspan(request->sequence.length, count));
      room -= count;
    }
  }
  if (!rows.empty()) advance(rows, tokens);
}

// Appends tokens to sequences, and draws the next one of each whose prompt is complete.
void Scheduler::advance(std::span<Request* const> rows, std::span<const std::int32_t> tokens) {
  std::vector<Sequence*> sequences;
  for (Request* request : rows) sequences.push_back(&request->sequence);
  logits_.resize(rows.size() * model_.config().vocabulary);
  model_.step(cache_, sequences, tokens, logits_);
  std::vector<Drawn> drawn;
  if (rows.front()->missing() == 0) {
    std::vector<Draw> draws;
    for (const Request* request : rows) {
      draws.push_back({request->sampling, request->text, request->prompt_length});
    }
    drawn = sample(logits_, draws);
  }
  const std::lock_guard lock(mutex_);
  rows_ += std::ssize(tokens);
  for (std::size_t i = 0; i < drawn.size(); ++i) deliver(*rows[i], std::move(drawn[i]));
}

void Scheduler::deliver(Request& request, Drawn drawn) {
  const std::int32_t token = drawn.chosen.token;
  if (token == options_.stop) return end(request, End::kStop);
  request.text.push_back(token);
  request.tokens.push_back(std::move(drawn));
  request.news.notify_one();
  if (std::ssize(request.text) == request.most) end(request, End::kLength);
}

void Scheduler::end(Request& request, End how) {
  if (request.end != End::kNone) return;
  request.end = how;
  request.news.notify_one();
}

}  // namespace gpt2
