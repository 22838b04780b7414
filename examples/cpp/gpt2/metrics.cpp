// SPDX-License-Identifier: MIT
#include "metrics.h"

#include <algorithm>
#include <cstdio>

namespace gpt2 {
namespace {

std::string shown(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", number);
  return text;
}

std::string head(const std::string& name, const std::string& meaning, const char* kind) {
  return "# HELP " + name + " " + meaning + "\n# TYPE " + name + " " + kind + "\n";
}

std::string one(const std::string& name, const std::string& meaning, const char* kind,
                std::int64_t value) {
  return head(name, meaning, kind) + name + " " + std::to_string(value) + "\n";
}

}  // namespace

void Histogram::observe(double seconds) {
  sum_ += seconds;
  ++counts_[std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin()];
}

std::string Histogram::text(const std::string& name, const std::string& meaning) const {
  std::string text = head(name, meaning, "histogram");
  std::int64_t count = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    const std::string bound = i < kBounds.size() ? shown(kBounds[i]) : "+Inf";
    text += name + "_bucket{le=\"" + bound + "\"} " + std::to_string(count) + "\n";
  }
  return text + name + "_count " + std::to_string(count) + "\n" + name + "_sum " + shown(sum_) +
         "\n";
}

void Metrics::count_answer(const std::string& endpoint, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{endpoint, status}];
}

void Metrics::count_prompt(std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += tokens;
}

void Metrics::count_token(double seconds_to_first) {
  const std::lock_guard lock(mutex_);
  ++new_tokens_;
  if (seconds_to_first >= 0) first_token_.observe(seconds_to_first);
}

void Metrics::count_end(double seconds) {
  const std::lock_guard lock(mutex_);
  seconds_.observe(seconds);
}

void Metrics::count_cancelled() {
  const std::lock_guard lock(mutex_);
  ++cancelled_;
}

std::string Metrics::text(const Scheduler::Status& status) const {
  const std::lock_guard lock(mutex_);
  std::string text = head("tfk_requests_total", "answers by endpoint and status", "counter");
  for (const auto& [key, count] : requests_) {
    text += "tfk_requests_total{endpoint=\"" + key.first + "\",status=\"" +
            std::to_string(key.second) + "\"} " + std::to_string(count) + "\n";
  }
  return text + one("tfk_prompt_tokens_total", "tokens of prompts", "counter", prompt_tokens_) +
         one("tfk_new_tokens_total", "tokens of answers", "counter", new_tokens_) +
         one("tfk_cancelled_total", "requests whose client left", "counter", cancelled_) +
         first_token_.text("tfk_first_token_seconds", "from a request to its first token") +
         seconds_.text("tfk_request_seconds", "from a request to the end of its answer") +
         one("tfk_waiting", "requests that wait", "gauge", status.waiting) +
         one("tfk_running", "requests that run", "gauge", status.running) +
         one("tfk_available_pages", "pages of the cache that can be given", "gauge",
             status.free_pages) +
         one("tfk_rows_total", "rows that the model computed", "counter", status.rows);
}

}  // namespace gpt2
