// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/cpu/isa.h"
#include "core/own_kernels.h"
#include "numbers.h"
#include "transformer_kernels/api.h"
#include "transformer_kernels/error.h"

namespace transformer_kernels::testing {

std::mt19937_64& random_engine() {
  static const unsigned long long seed = [] {
    const char* wanted = std::getenv("TFK_TEST_SEED");
    return wanted ? std::strtoull(wanted, nullptr, 10) : std::random_device{}();
  }();
  static std::mt19937_64 engine = [] {
    std::printf("TFK_TEST_SEED=%llu\n", seed);
    return std::mt19937_64(seed);
  }();
  return engine;
}

namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The folder of tests/cpp that a source lies in.
std::string folder_of(const std::string& source) {
  const std::string root = "tests/cpp/";
  const std::size_t start = source.rfind(root);
  if (start == std::string::npos) return "other";
  const std::string rest = source.substr(start + root.size());
  return rest.substr(0, rest.find('/'));
}

// Appends the CPU seconds of each folder of tests to the file that TFK_TEST_TIMES names: lines that
// tools/check_test_budget.py adds up.
class Times : public ::testing::EmptyTestEventListener {
 public:
  explicit Times(std::string file) : file_(std::move(file)) {}

  void OnTestProgramStart(const ::testing::UnitTest& /*test*/) override {
    spent_["cpp/start"] = since_ = cpu_seconds();
  }
  void OnTestEnd(const ::testing::TestInfo& test) override {
    const double now = cpu_seconds();
    spent_["cpp/" + folder_of(test.file())] += now - since_;
    since_ = now;
  }
  void OnTestProgramEnd(const ::testing::UnitTest& /*test*/) override {
    const char* isa = std::getenv("TFK_CPU_ISA");
    const std::string set = isa ? std::string("@") + isa : "";
    std::string lines;
    for (const auto& [folder, seconds] : spent_) {
      lines += folder + set + " " + std::to_string(seconds) + "\n";
    }
    if (std::FILE* file = std::fopen(file_.c_str(), "a")) {
      std::fwrite(lines.data(), 1, lines.size(), file);
      std::fclose(file);
    }
  }

 private:
  std::string file_;
  double since_ = 0;
  std::map<std::string, double> spent_;
};

}  // namespace

void note_times() {
  const char* file = std::getenv("TFK_TEST_TIMES");
  if (file == nullptr) return;
  ::testing::UnitTest::GetInstance()->listeners().Append(std::make_unique<Times>(file).release());
}

}  // namespace transformer_kernels::testing

// ThreadSanitizer asks for it: what is no race. UndefinedBehaviorSanitizer looks at the type of a
// thread's state through a pipe of its own, and two threads may be given one descriptor in turn.
extern "C" TFK_API const char* __tsan_default_suppressions() {  // NOLINT(bugprone-*)
  return "race:__sanitizer::IsAccessibleMemoryRange";
}

// 77 tells CTest that the tests were skipped: TFK_CPU_ISA asks for what this CPU does not have.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    std::printf("CPU kernels: %s\n", name_of(transformer_kernels::cpu::isa()));
  } catch (const transformer_kernels::Error& error) {
    std::printf("skipped: %s\n", error.what());
    return 77;
  }
  transformer_kernels::testing::note_times();
  // Small problems test our kernels, where rules would choose another library's.
  const transformer_kernels::OwnKernels own;
  return RUN_ALL_TESTS();
}
