// SPDX-License-Identifier: MIT
// Softmax with 16-byte loads and stores: eight elements an instruction.
//
// Eight elements have one maximum, so that a thread merges states once for eight elements: an
// exponential for each and two for the merge. The row is still read twice; its second reading
// mostly hits a cache.
//
// Build: nvcc -O3 -std=c++17 -arch=sm_75 -o cuda5_vector cuda5_vector.cu
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using bf16 = __nv_bfloat16;
constexpr int kThreads = 256;

struct State {  // of the elements so far: their maximum, and the sum of exp(x - maximum)
  float largest, sum;
};

__device__ State merge(State a, State b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -INFINITY) return a;  // neither has seen an element
  return {largest, a.sum * __expf(a.largest - largest) + b.sum * __expf(b.largest - largest)};
}

__device__ State from_lane(State s, int lane) {
  return {__shfl_xor_sync(~0u, s.largest, lane), __shfl_xor_sync(~0u, s.sum, lane)};
}

__device__ State across_block(State state) {
  __shared__ State partial[kThreads / 32];
  for (int lane = 16; lane > 0; lane /= 2) state = merge(state, from_lane(state, lane));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = state;
  __syncthreads();
  state = partial[threadIdx.x % 8];
  for (int lane = 4; lane > 0; lane /= 2) state = merge(state, from_lane(state, lane));
  return state;
}

struct alignas(16) Vector {
  unsigned pairs[4];  // two elements each; bfloat16 is the upper half of a float32
};

__device__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000); }

__device__ unsigned pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const unsigned&>(pair);
}

__device__ State state_of(Vector v) {
  float largest = -INFINITY, sum = 0;
  for (unsigned p : v.pairs) largest = fmaxf(largest, fmaxf(low(p), high(p)));
  for (unsigned p : v.pairs) sum += __expf(low(p) - largest) + __expf(high(p) - largest);
  return {largest, sum};
}

__device__ Vector finished(Vector v, State s) {
  const float scale = 1 / s.sum;
  for (unsigned& p : v.pairs)
    p = pack(__expf(low(p) - s.largest) * scale, __expf(high(p) - s.largest) * scale);
  return v;
}

__global__ void softmax_kernel(const bf16* x, bf16* y, int cols) {
  const auto* in = reinterpret_cast<const Vector*>(x + size_t(blockIdx.x) * cols);
  auto* out = reinterpret_cast<Vector*>(y + size_t(blockIdx.x) * cols);
  State state = {-INFINITY, 0};
  for (int j = threadIdx.x; j < cols / 8; j += kThreads) state = merge(state, state_of(in[j]));
  state = across_block(state);
  for (int j = threadIdx.x; j < cols / 8; j += kThreads) out[j] = finished(in[j], state);
}

void softmax(const bf16* x, bf16* y, int rows, int cols) {
  softmax_kernel<<<rows, kThreads>>>(x, y, cols);
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
  const int rows = argc > 2 ? std::atoi(argv[1]) : 16384;
  const int cols = argc > 2 ? std::atoi(argv[2]) : 8192;
  const size_t n = size_t(rows) * cols;
  if (cols % 8 != 0) leave(2, "cols: expected a multiple of 8");
  bf16 *x = device_array(n, 1), *y = device_array(n, 2);
  const double us = microseconds([&] { softmax(x, y, rows, cols); });
  double error = 0;  // relative, against double precision, in 17 rows
  for (int i = 0; i < 17; ++i) {
    const size_t start = size_t(i) * (rows - 1) / 16 * cols;
    const std::vector<double> in = host_copy(x + start, cols), out = host_copy(y + start, cols);
    double largest = in[0], sum = 0;
    for (double v : in) largest = std::max(largest, v);
    for (double v : in) sum += std::exp(v - largest);
    for (int j = 0; j < cols; ++j) {
      const double wanted = std::exp(in[j] - largest) / sum;
      error = std::max(error, std::abs(out[j] - wanted) / wanted);
    }
  }
  const double copy_us = microseconds(
      [&] { check(cudaMemcpyAsync(y, x, n * sizeof(bf16), cudaMemcpyDeviceToDevice)); });
  const std::string shape = std::to_string(rows) + "x" + std::to_string(cols);
  report("cuda5_vector", name, shape + " bfloat16", us, 2.0 * n * sizeof(bf16), "GB/s", copy_us,
         error, 0x1p-8);
}
