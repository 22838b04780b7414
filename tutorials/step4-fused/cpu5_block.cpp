// SPDX-License-Identifier: MIT
// From GPT-2's queries, keys and values to the next norm: attention, projection, residual, norm.
//
// A thread takes 32 queries through all of it: scores, probabilities and heads stay in its cache.
// Memory gets the residual stream h and its norm z. Keys that all 32 queries mask are skipped.
//
// Build: g++ -O3 -std=c++17 -march=native -Wno-psabi -pthread -o cpu5_block cpu5_block.cpp
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

constexpr size_t kWidth = 16;  // 64 bytes: a register of AVX-512, two of AVX2, four of NEON
typedef float Vector __attribute__((vector_size(4 * kWidth)));
typedef int Integers __attribute__((vector_size(4 * kWidth)));

// exp(x) for x <= 0 by 2^n * 2^f: n goes into the exponent's bits, a polynomial has 2^f.
inline Vector exponential(Vector x) {
  const Vector scaled = x * 1.44269504f, t = scaled < -126.f ? Vector{} - 126.f : scaled;
  const Vector shifted = t + 12582912.f, f = t - (shifted - 12582912.f);  // the sum rounds t
  Vector p = Vector{} + 1.5353362e-4f;
  for (float c : {1.3398874e-3f, 9.6184373e-3f, 5.5503324e-2f, .24022648f, .69314720f, 1.f})
    p = p * f + c;
  return (Vector)((Integers)p + ((Integers)shifted << 23));
}

constexpr size_t kRows = 4, kVectors = 2, kCols = kVectors * kWidth, kBlock = 32, kHead = 64;
#define VECTOR(pointer) (*(VectorInMemory*)(pointer))
typedef Vector VectorInMemory __attribute__((aligned(4), may_alias));

// c = scale a b (+ c), for kBlock rows of a, k of b and n columns; kRows x kCols sums stay in
// registers. Rows lie as many numbers apart as the arguments say.
void product(const float* a, size_t a_row, const float* b, size_t b_row, float* c, size_t c_row,
             size_t n, size_t k, float scale = 1, bool add = false) {
  for (size_t j = 0; j < n; j += kCols)
    for (size_t i = 0; i < kBlock; i += kRows) {
      Vector sums[kRows][kVectors] = {};
      for (size_t d = 0; d < k; ++d)
        for (size_t v = 0; v < kVectors; ++v)
          for (size_t r = 0; r < kRows; ++r)
            sums[r][v] += a[(i + r) * a_row + d] * VECTOR(b + d * b_row + j + v * kWidth);
      for (size_t r = 0; r < kRows; ++r)
        for (size_t v = 0; v < kVectors; ++v) {
          VectorInMemory& to = VECTOR(c + (i + r) * c_row + j + v * kWidth);
          to = sums[r][v] * scale + (add ? to : Vector{});
        }
    }
}

// Calls f(i) for each vector of n numbers; returns the sum of what it returns.
template <class F>
float sum(size_t n, F f) {
  Vector total = {};
  for (size_t i = 0; i < n; i += kWidth) total += f(i);
  return std::accumulate((float*)&total, (float*)(&total + 1), 0.f);
}

void layer_norm(const float* x, float* z, size_t c) {
  const float mean = sum(c, [=](size_t i) { return VECTOR(x + i); }) / c;
  const auto square = [=](size_t i) { return (VECTOR(x + i) - mean) * (VECTOR(x + i) - mean); };
  const float scale = 1 / std::sqrt(sum(c, square) / c + 1e-5f);
  for (size_t i = 0; i < c; ++i) z[i] = (x[i] - mean) * scale;
}

void softmax(float* s, size_t seen, size_t n) {
  std::fill(s + seen, s + n, -1e30f);  // the mask
  const float most = *std::max_element(s, s + seen);
  const auto power = [=](size_t i) { return VECTOR(s + i) = exponential(VECTOR(s + i) - most); };
  const float scale = 1 / sum(n, power);
  for (size_t i = 0; i < n; ++i) s[i] *= scale;
}

template <class Work>
void on_all_threads(size_t count, Work work);

struct Block {
  size_t t, c;                    // tokens and width; the matrices are t x 3c, c x c, and t x c
  const float *qkv, *weight, *x;  // the weight is stored by inputs, as GPT-2's Conv1D has it
  float *keys, *h, *z;            // keys are transposed, c x t

  void rows(size_t row) const {
    std::vector<float> scores(kBlock * t), mixed(kBlock * c);
    const size_t n = row + kBlock;  // keys that the last of these rows sees
    for (size_t j = 0; j < c; j += kHead) {
      const float *q = qkv + row * 3 * c + j, *v = qkv + 2 * c + j;
      product(q, 3 * c, keys + j * t, t, &scores[0], t, n, kHead, 1 / std::sqrt(float(kHead)));
      for (size_t i = 0; i < kBlock; ++i) softmax(&scores[i * t], row + i + 1, n);
      product(&scores[0], t, v, 3 * c, &mixed[j], c, kHead, n);
    }
    std::copy(x + row * c, x + n * c, h + row * c);
    product(&mixed[0], c, weight, c, h + row * c, c, c, c, 1, true);
    for (size_t i = row; i < n; ++i) layer_norm(h + i * c, z + i * c, c);
  }

  void run() const {
    on_all_threads(c, [=](size_t first, size_t last) {
      for (size_t j = first; j < last; ++j)
        for (size_t i = 0; i < t; ++i) keys[j * t + i] = qkv[i * 3 * c + c + j];
    });
    on_all_threads(t / kBlock / 2, [=](size_t first, size_t last) {
      for (size_t i = first; i < last; ++i)  // an early block and a late one: equal work
        for (size_t block : {i, t / kBlock - 1 - i}) rows(block * kBlock);
    });
  }
};

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

// The ceiling: chains of multiply-adds on registers, on all threads, for so many operations.
double register_us(double operations) {
#ifdef __AVX512F__
  constexpr int kChains = 10;
#else
  constexpr int kChains = 5;
#endif
  constexpr int kRounds = 1 << 18;
  const size_t threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<float> sinks(threads);
  const double us = microseconds([&] {
    on_all_threads(threads, [&](size_t first, size_t) {
      Vector chains[kChains] = {}, a = Vector{} + .9999f;
      for (int i = 0; i < kRounds; ++i)
        for (Vector& chain : chains) chain = chain * a + a;
      for (Vector& chain : chains) sinks[first] += chain[0];
    });
  });
  return us * operations / (2.0 * 16 * kChains * kRounds * threads);
}

int main(int argc, char** argv) {
  const size_t t = argc > 2 ? std::stoul(argv[1]) : 512, c = argc > 2 ? std::stoul(argv[2]) : 768;
  std::vector<float> qkv(t * 3 * c), w(c * c), x(t * c), keys(t * c), h(t * c), z(t * c);
  for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = float(i * 7919 % 1013) / 253 - 2;
  for (size_t i = 0; i < w.size(); ++i) w[i] = float(i * 6997 % 1019) / 5090 - .1f;
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(i % 997) / 498 - 1;
  const Block block{t, c, qkv.data(), w.data(), x.data(), keys.data(), h.data(), z.data()};
  const double us = microseconds([&] { block.run(); });
  double error = 0;  // of every 61st row, against double precision
  for (size_t row = 0; row < t; row += 61) {
    std::vector<double> mixed(c), wanted(x.begin() + row * c, x.begin() + (row + 1) * c);
    for (size_t j = 0; j < c; j += kHead) {
      double total = 0;
      for (size_t key = 0; key <= row; ++key) {
        const float *q = &qkv[row * 3 * c + j], *k = &qkv[(key * 3 + 1) * c + j], *v = k + c;
        const double p = std::exp(std::inner_product(q, q + kHead, k, 0.) / std::sqrt(kHead));
        for (size_t i = 0; i < kHead; ++i) mixed[j + i] += p * v[i];
        total += p;
      }
      for (size_t i = j; i < j + kHead; ++i) mixed[i] /= total;
    }
    double mean = 0, square = 0;
    for (size_t j = 0; j < c; mean += wanted[j++] / c)
      for (size_t i = 0; i < c; ++i) wanted[j] += mixed[i] * w[i * c + j];
    for (double value : wanted) square += (value - mean) * (value - mean) / c;
    const double scale = 1 / std::sqrt(square + 1e-5);
    for (size_t j = 0; j < c; ++j)
      error = std::max(error, std::abs(z[row * c + j] - (wanted[j] - mean) * scale));
  }
  const double work = 2.0 * t * c * c + 2.0 * t * t * c;  // half of the scores are masked
  const std::string shape = std::to_string(t) + "x" + std::to_string(c) + ", heads of 64 float32";
  return report("cpu5_block", shape, us, work, "GFLOP/s", register_us(work), error, 1e-5);
}
