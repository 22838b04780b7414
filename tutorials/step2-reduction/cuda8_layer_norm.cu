// SPDX-License-Identifier: MIT
// LayerNorm by a bulk copy: rung 7 with another reduction, the mean and then the squares around it.
//
// The second reduction reads shared memory, which costs little beside device memory, and takes no
// difference of large sums. The kernels of csrc/norm save its barrier: they merge (mean, squares)
// of the threads by Chan's formula.
//
// Build: nvcc -O3 -std=c++17 -arch=sm_90 -o cuda8_layer_norm cuda8_layer_norm.cu
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using bf16 = __nv_bfloat16;
constexpr int kThreads = 256;

struct alignas(16) Vector {
  unsigned pairs[4];  // two elements each; bfloat16 is the upper half of a float32
};

__device__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000); }

__device__ unsigned pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const unsigned&>(pair);
}

__device__ float sum_across_block(float value) {
  __shared__ float partial[kThreads / 32];
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(~0u, value, lane);
  __syncthreads();  // the last reduction's values have been read
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = partial[threadIdx.x % 8];
  for (int lane = 4; lane > 0; lane /= 2) value += __shfl_xor_sync(~0u, value, lane);
  return value;
}

// One thread brings bytes to shared memory by one instruction; all threads wait at its barrier.
__device__ void bulk_load(void* to, const void* from, int bytes) {
  __shared__ alignas(8) unsigned long long barrier;
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  const auto target = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if (threadIdx.x == 0) {
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n"
        "fence.mbarrier_init.release.cluster;\n"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %3;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%2], %3, [%0];" ::
            "r"(address),
        "r"(target), "l"(from), "r"(bytes)
        : "memory");
  }
  __syncthreads();  // the barrier exists for every thread
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again; }" ::"r"(address)
      : "memory");
}

__global__ void layer_norm_kernel(const bf16* x, bf16* y, int cols) {
  extern __shared__ Vector row[];
  bulk_load(row, x + size_t(blockIdx.x) * cols, cols * 2);
  auto* out = reinterpret_cast<Vector*>(y + size_t(blockIdx.x) * cols);
  float sum = 0, squares = 0;
  for (int j = threadIdx.x; j < cols / 8; j += kThreads)
    for (unsigned p : row[j].pairs) sum += low(p) + high(p);
  const float mean = sum_across_block(sum) / cols;
  for (int j = threadIdx.x; j < cols / 8; j += kThreads)
    for (unsigned p : row[j].pairs)
      squares += (low(p) - mean) * (low(p) - mean) + (high(p) - mean) * (high(p) - mean);
  const float scale = rsqrtf(sum_across_block(squares) / cols + 1e-5f);
  for (int j = threadIdx.x; j < cols / 8; j += kThreads) {
    Vector v = row[j];
    for (unsigned& p : v.pairs) p = pack((low(p) - mean) * scale, (high(p) - mean) * scale);
    out[j] = v;
  }
}

void layer_norm(const bf16* x, bf16* y, int rows, int cols) {
  layer_norm_kernel<<<rows, kThreads, cols * 2>>>(x, y, cols);
}

// ---- frame: the same lines in every CUDA rung --------------------------------------------------
[[noreturn]] void leave(int status, const std::string& reason) {
  std::printf("%s\n", reason.c_str());
  std::exit(status);
}

void check(cudaError_t status) {
  if (status != cudaSuccess) leave(1, cudaGetErrorString(status));
}

// The card's name. The program ends with status 77, "not here", where no card can run the kernel.
std::string card(int least) {
  cudaDeviceProp it;
  if (cudaGetDeviceProperties(&it, 0) != cudaSuccess) leave(77, "there is no CUDA card");
  if (10 * it.major + it.minor >= least) return it.name;
  leave(77, std::string(it.name) + " is older than sm_" + std::to_string(least));
}

// The median of nine batches of launches, after one that warms up.
template <class Launch>
double microseconds(Launch launch, int launches = 10) {
  cudaEvent_t start, end;
  for (cudaEvent_t* event : {&start, &end}) check(cudaEventCreate(event));
  float times[10];
  for (int batch = 0; batch < 10; ++batch) {
    check(cudaEventRecord(start));
    for (int i = 0; i < launches; ++i) launch();
    check(cudaGetLastError());
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    check(cudaEventElapsedTime(&times[batch], start, end));
  }
  std::sort(times + 1, times + 10);
  return 1e3 * times[5] / launches;
}

// Values between -2 and 2, which follow from their index.
__global__ void fill(bf16* x, size_t count, unsigned seed) {
  const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  unsigned hash = (unsigned(i) + seed) * 2654435761u;
  hash = (hash ^ hash >> 15) * 2246822519u;
  if (i < count) x[i] = __float2bfloat16((hash >> 8) * 0x1p-22f - 2);
}

bf16* device_array(size_t count, unsigned seed) {
  bf16* x = nullptr;
  check(cudaMalloc(&x, count * sizeof(bf16)));
  fill<<<(count + 255) / 256, 256>>>(x, count, seed);
  return x;
}

std::vector<double> host_copy(const bf16* x, size_t count) {
  std::vector<bf16> raw(count);
  check(cudaMemcpy(raw.data(), x, count * sizeof(bf16), cudaMemcpyDeviceToHost));
  return {raw.begin(), raw.end()};
}

// Prints a line of the table. The program ends with status 1 where the rung is wrong.
void report(const char* rung, const std::string& card, const std::string& problem, double us,
            double amount, const char* unit, double ceiling_us, double error, double bound) {
  std::printf("%s | %s | %s | %.1f us | %.5g %s | %.1f %% | %.1e\n", rung, card.c_str(),
              problem.c_str(), us, amount / us / 1e3, unit, 100 * ceiling_us / us, error);
  if (!(error <= bound)) leave(1, "wrong: the error is above " + std::to_string(bound));
}
// ---- end of the frame --------------------------------------------------------------------------

int main(int argc, char** argv) {
  const std::string name = card(90);
  const int rows = argc > 2 ? std::atoi(argv[1]) : 16384;
  const int cols = argc > 2 ? std::atoi(argv[2]) : 8192;
  const size_t n = size_t(rows) * cols;
  if (cols % 8 != 0 || cols > 8192) leave(2, "cols: expected a multiple of 8 up to 8192");
  bf16 *x = device_array(n, 1), *y = device_array(n, 2);
  const double us = microseconds([&] { layer_norm(x, y, rows, cols); });
  double error = 0;  // against double precision, in 17 rows
  for (int i = 0; i < 17; ++i) {
    const size_t start = size_t(i) * (rows - 1) / 16 * cols;
    const std::vector<double> in = host_copy(x + start, cols), out = host_copy(y + start, cols);
    double mean = 0, variance = 0;
    for (double v : in) mean += v / cols;
    for (double v : in) variance += (v - mean) * (v - mean) / cols;
    for (int j = 0; j < cols; ++j) {
      const double wanted = (in[j] - mean) / std::sqrt(variance + 1e-5);
      error = std::max(error, std::abs(out[j] - wanted) / std::max(1.0, std::abs(wanted)));
    }
  }
  const double copy_us = microseconds(
      [&] { check(cudaMemcpyAsync(y, x, n * sizeof(bf16), cudaMemcpyDeviceToDevice)); });
  const std::string shape = std::to_string(rows) + "x" + std::to_string(cols);
  report("cuda8_layer_norm", name, shape + " bfloat16", us, 2.0 * n * sizeof(bf16), "GB/s", copy_us,
         error, 0x1p-8);
}
