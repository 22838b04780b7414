// SPDX-License-Identifier: MIT
#include "log.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>

namespace gpt2 {
namespace {

constexpr const char* kHeader = "step,loss,gradient_norm,learning_rate,milliseconds\n";

std::string rows_before(const Path& path, std::int64_t first) {
  std::string kept = kHeader;
  if (!std::filesystem::exists(path)) return kept;
  std::istringstream rows(read_text(path));
  std::string row;
  std::getline(rows, row);
  // A row without its end was cut off while it was written: not even its step is whole.
  while (std::getline(rows, row) && !rows.eof()) {
    if (std::strtoll(row.c_str(), nullptr, 10) < first) kept += row + '\n';
  }
  return kept;
}

}  // namespace

Log::Log(const Path& path, std::int64_t first, std::int64_t steps, std::int64_t tokens_per_step)
    : steps_(steps),
      tokens_per_step_(tokens_per_step),
      terminal_(isatty(STDERR_FILENO) == 1) {
  write_text(path, rows_before(path, first));
  file_.reset(std::fopen(path.c_str(), "a"));
  if (file_ == nullptr) {
    throw std::runtime_error(path.string() + ": cannot be opened: " + std::strerror(errno));
  }
}

Log::~Log() {
  if (terminal_) std::fputc('\n', stderr);
}

void Log::add(const StepReport& report) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  // Nine digits tell all float32 numbers apart.
  const int written =
      std::fprintf(file_.get(), "%lld,%.9g,%.9g,%.9g,%.1f\n", static_cast<long long>(report.step),
                   report.loss, report.norm, report.lr, 1e3 * seconds);
  if (written < 0 || std::fflush(file_.get()) != 0) {
    throw std::runtime_error(std::string("the log cannot be written: ") + std::strerror(errno));
  }
  if (!terminal_) return;
  constexpr int kBar = 30;
  const int filled = static_cast<int>(kBar * (report.step + 1) / steps_);
  std::fprintf(stderr, "\r[%s%s] %lld/%lld  loss %.4f  norm %.3f  %.0f ms  %.0f tokens/s\033[K",
               std::string(filled, '=').c_str(), std::string(kBar - filled, ' ').c_str(),
               static_cast<long long>(report.step + 1), static_cast<long long>(steps_), report.loss,
               report.norm, 1e3 * seconds, tokens_per_step_ / seconds);
}

}  // namespace gpt2
