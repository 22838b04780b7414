// SPDX-License-Identifier: MIT
// GELU by a grid that just fills the card, whose threads loop over the vectors.
//
// The textbook's grid-stride loop. It saves the start of blocks, but a thread waits for its load
// before it begins the next round, while blocks of rung 3 come and go independently.
//
// Build: nvcc -O3 -std=c++17 -arch=sm_75 -o cuda4_grid_stride cuda4_grid_stride.cu
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using bf16 = __nv_bfloat16;
__device__ float gelu(float x) {
  const float z = 0.7978845608f * (x + 0.044715f * x * x * x);
  return x / (1 + __expf(-2 * z));
}

struct alignas(16) Vector {  // 16 bytes, the widest load
  unsigned pairs[4];         // two elements each; bfloat16 is the upper half of a float32
};

__device__ unsigned gelu_pair(unsigned pair) {
  const float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000);
  const __nv_bfloat162 result = __floats2bfloat162_rn(gelu(low), gelu(high));
  return reinterpret_cast<const unsigned&>(result);
}

__global__ void gelu_kernel(const bf16* x, bf16* y, size_t n) {
  const size_t first = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  for (size_t i = first; i < n / 8; i += size_t(gridDim.x) * blockDim.x) {
    Vector v = reinterpret_cast<const Vector*>(x)[i];
    for (unsigned& pair : v.pairs) pair = gelu_pair(pair);
    reinterpret_cast<Vector*>(y)[i] = v;
  }
  if (const size_t k = n / 8 * 8 + first; k < n)
    y[k] = __float2bfloat16(gelu(__bfloat162float(x[k])));
}

void gelu(const bf16* x, bf16* y, size_t n) {
  int processors, blocks;
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, gelu_kernel, 256, 0);
  gelu_kernel<<<processors * blocks, 256>>>(x, y, n);
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
  const std::string name = card(75);
  const size_t n = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : size_t{1} << 27;
  bf16 *x = device_array(n, 1), *y = device_array(n, 2);
  const double us = microseconds([&] { gelu(x, y, n); });
  double error = 0;  // of 4096 elements at each end, against double precision
  for (size_t first : {size_t{0}, n - std::min<size_t>(n, 4096)}) {
    const std::vector<double> in = host_copy(x + first, std::min<size_t>(n, 4096));
    const std::vector<double> out = host_copy(y + first, in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      const double z = 0.7978845608028654 * (in[i] + 0.044715 * in[i] * in[i] * in[i]);
      const double wanted = 0.5 * in[i] * (1 + std::tanh(z));
      error = std::max(error, std::abs(out[i] - wanted) / std::max(0.1, std::abs(wanted)));
    }
  }
  const double copy_us = microseconds(
      [&] { check(cudaMemcpyAsync(y, x, n * sizeof(bf16), cudaMemcpyDeviceToDevice)); });
  report("cuda4_grid_stride", name, std::to_string(n) + " bfloat16", us, 2.0 * n * sizeof(bf16),
         "GB/s", copy_us, error, 0x1p-8);
}
