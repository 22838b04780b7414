// SPDX-License-Identifier: MIT
// Softmax in two loops: the maximum and the sum come out of one, online.
//
// When the maximum grows, the sum so far is multiplied by exp(old - new). A loop over memory is
// saved, but each exponential is computed twice, and a CPU has the row in its cache anyway: this
// rung teaches the recurrence, which pays where data must be read once (rungs of CUDA, and
// step3-attention).
//
// Build: g++ -O3 -std=c++17 -march=native -Wno-psabi -pthread -o cpu2_online cpu2_online.cpp
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

void softmax(const float* x, float* y, size_t rows, size_t cols) {
  for (size_t row = 0; row < rows; ++row, x += cols, y += cols) {
    float largest = x[0], sum = 0;
    for (size_t j = 0; j < cols; ++j) {
      if (x[j] > largest) {
        sum *= std::exp(largest - x[j]);
        largest = x[j];
      }
      sum += std::exp(x[j] - largest);
    }
    for (size_t j = 0; j < cols; ++j) y[j] = std::exp(x[j] - largest) / sum;
  }
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

int main(int argc, char** argv) {
  const size_t rows = argc > 2 ? std::strtoull(argv[1], nullptr, 10) : 8192;
  const size_t cols = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2048;
  std::vector<float> x(rows * cols), y(rows * cols);
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(i * 7919 % 10007) / 1000 - 5;
  const double us = microseconds([&] { softmax(x.data(), y.data(), rows, cols); });
  double error = 0;  // relative, against double precision, in every 61st row
  for (size_t row = 0; row < rows; row += 61) {
    const float *in = &x[row * cols], *out = &y[row * cols];
    double largest = in[0], sum = 0;
    for (size_t j = 0; j < cols; ++j) largest = std::max(largest, double(in[j]));
    for (size_t j = 0; j < cols; ++j) sum += std::exp(in[j] - largest);
    for (size_t j = 0; j < cols; ++j) {
      const double wanted = std::exp(in[j] - largest) / sum;
      error = std::max(error, std::abs(out[j] - wanted) / wanted);
    }
  }
  const double copy_us = microseconds([&] {
    on_all_threads(x.size(), [&](size_t first, size_t last) {
      std::memcpy(&y[first], &x[first], (last - first) * sizeof(float));
    });
  });
  const std::string problem = std::to_string(rows) + "x" + std::to_string(cols) + " float32";
  return report("cpu2_online", problem, us, 2.0 * x.size() * sizeof(float), "GB/s", copy_us, error,
                2e-6);
}
