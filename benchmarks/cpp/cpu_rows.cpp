// SPDX-License-Identifier: MIT
// How near the CPU's row kernels come to copying memory. Each round times the copies and every
// kernel once, so that all see the same machine; the medians of the rounds are printed, as GB/s of
// bytes that must be read and written and as shares of the faster copy.
//
//   tfk_bench [rows cols [rounds]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "copy.h"
#include "core/cpu/parallel.h"
#include "transformer_kernels/norm/norm.h"
#include "transformer_kernels/softmax/softmax.h"

namespace transformer_kernels {
namespace cpu {
namespace {

const Copies& copies_in_use() {
  constexpr const Copies* kCopies[] = TFK_PER_ISA(copies);
  return *kCopies[static_cast<int>(isa())];
}

}  // namespace
}  // namespace cpu

namespace {

// Aligned memory, written once so that no kernel pays for its pages.
class Memory {
 public:
  explicit Memory(std::size_t bytes)
      : data_(std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment)) {
    std::fill_n(static_cast<char*>(data_), bytes, '\0');
  }
  ~Memory() { std::free(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }

 private:
  static constexpr std::size_t kAlignment = 2 << 20;
  void* data_;
};

struct Case {
  std::string name;
  double bytes;
  std::function<void()> run;
  std::vector<double> seconds{};

  double median() {
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    return seconds[seconds.size() / 2];
  }
};

void time_round(std::vector<Case>& cases) {
  for (Case& c : cases) {
    const auto start = std::chrono::steady_clock::now();
    c.run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    c.seconds.push_back(took.count());
  }
}

void report(std::vector<Case>& cases, std::int64_t rows, std::int64_t cols, DType dtype) {
  double best_copy = 0;
  for (int i = 0; i < 2; ++i) best_copy = std::max(best_copy, cases[i].bytes / cases[i].median());
  std::printf("%s %lldx%lld\n", name_of(dtype), static_cast<long long>(rows),
              static_cast<long long>(cols));
  for (Case& c : cases) {
    const double rate = c.bytes / c.median();
    std::printf("  %-22s %8.1f GB/s  %5.1f %%\n", c.name.c_str(), rate * 1e-9,
                100 * rate / best_copy);
  }
}

void copy_in_parallel(void (*copy)(const float*, float*, std::int64_t), const void* from, void* to,
                      std::int64_t bytes) {
  constexpr std::int64_t kLine = 64;
  cpu::parallel_for({}, bytes / kLine, 2048, [&](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kFloats = kLine / sizeof(float);
    copy(static_cast<const float*>(from) + begin * kFloats,
         static_cast<float*>(to) + begin * kFloats, (end - begin) * kFloats);
  });
}

// Bits that are small normal numbers in every format.
void fill_random(void* data, std::int64_t bytes, DType dtype) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < bytes / size_of(dtype); ++i) {
    const float value = normal(engine);
    if (dtype == DType::kFloat32) {
      static_cast<float*>(data)[i] = value;
    } else {
      const auto bits = __builtin_bit_cast(std::uint32_t, value);
      static_cast<std::uint16_t*>(data)[i] = static_cast<std::uint16_t>(bits >> 16);
    }
  }
}

void bench(DType dtype, std::int64_t rows, std::int64_t cols, int rounds) {
  const std::int64_t bytes = rows * cols * size_of(dtype);
  const Memory x(bytes), dy(bytes), y(bytes), sum(bytes), weight(cols * 4), bias(cols * 4);
  const Memory mean(rows * 4), rstd(rows * 4), dweight(cols * 4), dbias(cols * 4);
  fill_random(x.data(), bytes, dtype);
  fill_random(dy.data(), bytes, dtype);
  fill_random(weight.data(), cols * 4, DType::kFloat32);
  const auto matrix = [&](const Memory& m) {
    return TensorView::contiguous(m.data(), dtype, {}, {rows, cols});
  };
  const auto vector = [&](const Memory& m, std::int64_t count) {
    return TensorView::contiguous(m.data(), DType::kFloat32, {}, {count});
  };
  const NormForward layer{.x = matrix(x),
                          .weight = vector(weight, cols),
                          .bias = vector(bias, cols),
                          .y = matrix(y),
                          .mean = vector(mean, rows),
                          .rstd = vector(rstd, rows)};
  NormForward add = layer;
  add.residual = matrix(dy);
  add.sum = matrix(sum);
  const NormForward rms{
      .x = matrix(x), .weight = vector(weight, cols), .y = matrix(y), .rstd = vector(rstd, rows)};
  const NormBackward layer_back{.dy = matrix(dy),
                                .x = matrix(x),
                                .mean = vector(mean, rows),
                                .rstd = vector(rstd, rows),
                                .weight = vector(weight, cols),
                                .dx = matrix(y),
                                .dweight = vector(dweight, cols),
                                .dbias = vector(dbias, cols)};
  const NormBackward rms_back{.dy = matrix(dy),
                              .x = matrix(x),
                              .rstd = vector(rstd, rows),
                              .weight = vector(weight, cols),
                              .dx = matrix(y),
                              .dweight = vector(dweight, cols)};
  const SoftmaxForward softmax{.x = matrix(x), .y = matrix(y)};
  const SoftmaxForward log_softmax{.x = matrix(x), .y = matrix(y), .log = true};
  const SoftmaxBackward softmax_back{.dy = matrix(dy), .y = matrix(x), .dx = matrix(y)};
  const auto size = static_cast<double>(bytes);
  const cpu::Copies& copies = cpu::copies_in_use();
  std::vector<Case> cases = {
      {"copy", 2 * size, [&] { copy_in_parallel(copies.cached, x.data(), y.data(), bytes); }},
      {"copy, streaming", 2 * size,
       [&] { copy_in_parallel(copies.streaming, x.data(), y.data(), bytes); }},
      {"layer_norm", 2 * size, [&] { layer_norm_forward({}, layer); }},
      {"add_layer_norm", 4 * size, [&] { layer_norm_forward({}, add); }},
      {"rms_norm", 2 * size, [&] { rms_norm_forward({}, rms); }},
      {"layer_norm backward", 3 * size, [&] { layer_norm_backward({}, layer_back); }},
      {"rms_norm backward", 3 * size, [&] { rms_norm_backward({}, rms_back); }},
      {"softmax", 2 * size, [&] { softmax_forward({}, softmax); }},
      {"log_softmax", 2 * size, [&] { softmax_forward({}, log_softmax); }},
      {"softmax backward", 3 * size, [&] { softmax_backward({}, softmax_back); }}};
  time_round(cases);
  for (Case& c : cases) c.seconds.clear();
  for (int i = 0; i < rounds; ++i) time_round(cases);
  report(cases, rows, cols, dtype);
}

}  // namespace
}  // namespace transformer_kernels

int main(int argc, char** argv) {
  using transformer_kernels::DType;
  struct Shape {
    std::int64_t rows, cols;
    int rounds;
  };
  std::vector<Shape> shapes = {{2048, 768, 101}, {8192, 768, 31}, {16384, 4096, 7}};
  if (argc > 2)
    shapes = {{std::atoll(argv[1]), std::atoll(argv[2]), argc > 3 ? std::atoi(argv[3]) : 11}};
  std::printf("CPU kernels: %s, %d threads\n", name_of(transformer_kernels::cpu::isa()),
              transformer_kernels::cpu::thread_count());
  for (const Shape& s : shapes) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      transformer_kernels::bench(dtype, s.rows, s.cols, s.rounds);
    }
  }
  return 0;
}
