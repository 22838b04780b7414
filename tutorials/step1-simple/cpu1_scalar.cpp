// SPDX-License-Identifier: MIT
// GELU, one element after the other: the formula as it is written.
//
// std::tanh is a call that the compiler cannot vectorise, so that arithmetic bounds the loop and
// memory waits.
//
// Build: g++ -O3 -std=c++17 -march=native -Wno-psabi -pthread -o cpu1_scalar cpu1_scalar.cpp
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

void gelu(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i)
    y[i] = 0.5f * x[i] * (1 + std::tanh(0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
}

// ---- frame: the same lines in every rung for CPUs ----------------------------------------------
// The median of seven calls, after one that warms up.
template <class Call>
double microseconds(Call call) {
  std::vector<double> times;
  for (int i = 0; i < 8; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const auto end = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double, std::micro>(end - start).count());
  }
  std::sort(times.begin() + 1, times.end());
  return times[4];
}

// Calls work(first, last) on every thread of the machine, each with its part of count items.
template <class Work>
void on_all_threads(size_t count, Work work) {
  const size_t parts = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < parts; ++i)
    threads.emplace_back(work, count * i / parts, count * (i + 1) / parts);
  for (std::thread& thread : threads) thread.join();
}

// Prints a line of the table; the result is the exit status, 1 where the rung is wrong.
int report(const char* rung, const std::string& problem, double us, double amount, const char* unit,
           double ceiling_us, double error, double bound) {
  std::printf("%s | CPU | %s | %.1f us | %.5g %s | %.1f %% | %.1e\n", rung, problem.c_str(), us,
              amount / us / 1e3, unit, 100 * ceiling_us / us, error);
  if (error <= bound) return 0;
  std::printf("wrong: the error is above %f\n", bound);
  return 1;
}
// ---- end of the frame --------------------------------------------------------------------------

// The formula in double precision, for the check.
double reference(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

int main(int argc, char** argv) {
  const size_t n = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : size_t{1} << 24;
  std::vector<float> x(n), y(n);
  for (size_t i = 0; i < n; ++i) x[i] = float(i * 7919 % 10007) / 1000 - 5;
  const double us = microseconds([&] { gelu(x.data(), y.data(), n); });
  double error = 0;
  for (size_t i = 0; i < n; i += i < n - 1 ? std::min<size_t>(97, n - 1 - i) : 1) {
    const double wanted = reference(x[i]);
    error = std::max(error, std::abs(y[i] - wanted) / std::max(1.0, std::abs(wanted)));
  }
  const double bytes = 2.0 * n * sizeof(float);
  const double copy_us = microseconds([&] {
    on_all_threads(n, [&](size_t first, size_t last) {
      std::memcpy(y.data() + first, x.data() + first, (last - first) * sizeof(float));
    });
  });
  return report("cpu1_scalar", std::to_string(n) + " float32", us, bytes, "GB/s", copy_us, error,
                1e-6);
}
