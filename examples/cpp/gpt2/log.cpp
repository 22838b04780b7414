// SPDX-License-Identifier: MIT
#include "log.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpt2 {
namespace {

constexpr const char* kHeader =
    "step,loss,gradient_norm,learning_rate,validation_loss,milliseconds\n";

std::string rows_before(const Path& path, std::int64_t first) {
  std::string kept = kHeader;
  if (!std::filesystem::exists(path)) return kept;
  std::istringstream rows(read_text(path));
  std::string row;
  std::getline(rows, row);
  if (row + '\n' != kHeader) return kept;  // a table of other columns begins anew
  // A row without its end was cut off while it was written: not even its step is whole.
  while (std::getline(rows, row) && !rows.eof()) {
    if (std::strtoll(row.c_str(), nullptr, 10) < first) kept += row + '\n';
  }
  return kept;
}

}  // namespace

Log::Log(const TrainOptions& options, std::int64_t first)
    : steps_(options.steps),
      tokens_per_step_(options.accumulate * options.batch * options.length),
      terminal_(isatty(STDERR_FILENO) == 1) {
  const Path path = options.out / "log.csv";
  write_text(path, rows_before(path, first));
  file_.reset(std::fopen(path.c_str(), "a"));
  if (file_ == nullptr) {
    throw std::runtime_error(path.string() + ": cannot be opened: " + std::strerror(errno));
  }
  if (!options.tensorboard.empty()) events_.emplace(options.tensorboard, first);
}

Log::~Log() {
  if (terminal_) std::fputc('\n', stderr);
}

void Log::add(const StepReport& report) {
  add_row(report);
  if (events_) add_events(report);
  if (terminal_) show(report);
}

void Log::add_row(const StepReport& report) {
  // Nine digits tell all float32 numbers apart.
  char validation[32] = "";
  if (report.validation_loss) {
    std::snprintf(validation, sizeof(validation), "%.9g", *report.validation_loss);
  }
  const int written = std::fprintf(file_.get(), "%lld,%.9g,%.9g,%.9g,%s,%.1f\n",
                                   static_cast<long long>(report.step), report.loss, report.norm,
                                   report.lr, validation, 1e3 * report.time.count());
  if (written < 0 || std::fflush(file_.get()) != 0) {
    throw std::runtime_error(std::string("the log cannot be written: ") + std::strerror(errno));
  }
}

void Log::add_events(const StepReport& report) {
  std::vector<Scalar> scalars = {{"loss/train", report.loss},
                                 {"gradient_norm", report.norm},
                                 {"learning_rate", static_cast<float>(report.lr)},
                                 {"tokens_per_second", tokens_per_second(report)}};
  if (report.validation_loss) scalars.push_back({"loss/validation", *report.validation_loss});
  events_->add(report.step, scalars);
}

void Log::show(const StepReport& report) {
  constexpr int kBar = 30;
  const int filled = static_cast<int>(kBar * (report.step + 1) / steps_);
  std::fprintf(stderr, "\r[%s%s] %lld/%lld  loss %.4f  norm %.3f  %.0f ms  %.0f tokens/s\033[K",
               std::string(filled, '=').c_str(), std::string(kBar - filled, ' ').c_str(),
               static_cast<long long>(report.step + 1), static_cast<long long>(steps_), report.loss,
               report.norm, 1e3 * report.time.count(), tokens_per_second(report));
}

float Log::tokens_per_second(const StepReport& report) const {
  return static_cast<float>(static_cast<double>(tokens_per_step_) / report.time.count());
}

}  // namespace gpt2
