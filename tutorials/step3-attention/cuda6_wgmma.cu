// SPDX-License-Identifier: MIT
// Attention by wgmma: a warpgroup, four warps, multiplies tiles that TMA brings to shared memory.
//
// One thread asks for a tile, and it comes permuted so that wgmma meets no conflict of banks. No
// thread copies, and K and V never pass through registers.
//
// Build: nvcc -O3 -std=c++17 -ftz=true -arch=compute_90a -code=sm_90a -o cuda6_wgmma cuda6_wgmma.cu
#include <cuda.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cuda/ptx>
#include <string>
#include <type_traits>
#include <vector>

using bf16 = __nv_bfloat16;
using namespace cuda::ptx;  // mbarriers and TMA, under the names of their instructions
constexpr int kDim = 64, kKeys = 64;
constexpr float kScale = 0.18033688f;   // 1 / sqrt(kDim), for powers of 2
using Tile = bf16[kKeys][kDim];         // in shared memory
using Fragment = __nv_bfloat162[4][4];  // in the registers of a warpgroup, as in cuda4_mma.cu

#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS FOUR(0), FOUR(4), FOUR(8), FOUR(12), FOUR(16), FOUR(20), FOUR(24), FOUR(28)
#define WGMMA(operands)                                                                            \
  "{ .reg .pred add; setp.ne.b32 add, %32, 0;\n"                                                   \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " \
  "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "     \
  "%28, %29, %30, %31}, " operands "; }"
// A place in shared memory: its address and the distance of 8 rows, in units of 16 bytes, and the
// permutation that TMA gave it.
#define PLACE(x) "l"(1ull << 62 | 64ull << 32 | __cvta_generic_to_shared(x) / 16)

// Starts d = a * b^T, of tiles, or d += a * b, of a fragment and a tile: 16 of the depth at a time.
template <class A>
__device__ void start(float (&d)[32], const A& a, const Tile& b) {
  asm volatile("wgmma.fence.sync.aligned;");
  for (int t = 0; t < 4; ++t) {
    const auto* r = reinterpret_cast<const unsigned*>(a[t]);
    if constexpr (std::is_same_v<A, Tile>)
      asm volatile(WGMMA("%33, %34, add, 1, 1, 0, 0")
                   : SUMS
                   : "r"(t), PLACE(&a[0][16 * t]), PLACE(&b[0][16 * t]));
    else
      asm volatile(WGMMA("{%33, %34, %35, %36}, %37, add, 1, 1, 1")
                   : SUMS
                   : "r"(1), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), PLACE(b[16 * t]));
  }
  asm volatile("wgmma.commit_group.sync.aligned;");
}

__device__ void finish(float (&d)[32]) { asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS); }

// Asks for 64 rows of q, k or v. The barrier counts their bytes.
__device__ void load(Tile& to, const CUtensorMap& from, int row, int which, uint64_t& barrier) {
  const int at[] = {0, row, which};
  mbarrier_expect_tx(sem_relaxed, scope_cta, space_shared, &barrier, sizeof(Tile));
  cp_async_bulk_tensor(space_cluster, space_global, to, &from, at, &barrier);
}

__device__ void wait(uint64_t& barrier, int round) {
  while (!mbarrier_try_wait_parity(&barrier, round % 2)) continue;
  __syncwarp();  // wgmma wants whole warps
}

__global__ void attention_kernel(const __grid_constant__ CUtensorMap qkv, bf16* o, int time) {
  __shared__ alignas(1024) Tile query, keys, values;
  __shared__ uint64_t come;
  const int first = blockIdx.x * 64, head = first / time * time;
  if (threadIdx.x == 0) {
    mbarrier_init(&come, 1);
    fence_mbarrier_init(sem_release, scope_cluster);
    load(query, qkv, first, 0, come);
  }
  Fragment p;
  float result[32] = {}, s[32], largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  for (int tile = 0; tile < time / kKeys; ++tile) {
    __syncthreads();  // the barrier exists, and the tiles before these have been used
    if (threadIdx.x == 0) {
      load(keys, qkv, head + tile * kKeys, 1, come);
      load(values, qkv, head + tile * kKeys, 2, come);
      mbarrier_arrive(&come);
    }
    wait(come, tile);
    start(s, query, keys);
    finish(s);
    for (int half = 0; half < 2; ++half) {  // rows r and r + 8
      float most = largest[half];
      for (int i = 2 * half; i < 32; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
      for (int l : {1, 2}) most = fmaxf(most, __shfl_xor_sync(~0u, most, l));
      const float shrink = exp2f((largest[half] - most) * kScale), shift = most * kScale;
      sum[half] *= shrink, largest[half] = most;
      for (int i = 2 * half; i < 32; i += 4) {
        const float low = exp2f(s[i] * kScale - shift), high = exp2f(s[i + 1] * kScale - shift);
        sum[half] += low + high;
        p[i / 8][i / 2 % 4] = __floats2bfloat162_rn(low, high);
        result[i] *= shrink, result[i + 1] *= shrink;
      }
    }
    start(result, p, values);
    finish(result);
  }
  for (int half = 0; half < 2; ++half) {
    for (int l : {1, 2}) sum[half] += __shfl_xor_sync(~0u, sum[half], l);
    const int row = first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half;
    auto* to = reinterpret_cast<__nv_bfloat162*>(o + row * kDim) + threadIdx.x % 4;
    for (int i = 2 * half; i < 32; i += 4)
      to[i / 4 * 4] = __floats2bfloat162_rn(result[i] / sum[half], result[i + 1] / sum[half]);
  }
}

// One map tells TMA of q, k and v, which lie one behind the other. The driver encodes it, and the
// runtime finds the driver's function.
void attention(const bf16* q, const bf16* k, const bf16*, bf16* o, int heads, int time) {
  void* encode = nullptr;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault);
  const cuuint64_t sizes[] = {kDim, cuuint64_t(heads) * time, 3}, strides[] = {128, 2ull * (k - q)};
  const cuuint32_t box[] = {kDim, kKeys, 1}, steps[] = {1, 1, 1};
  CUtensorMap map;
  reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<bf16*>(q), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  attention_kernel<<<heads * time / 64, 128>>>(map, o, time);
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

// The ceiling: tensor cores that multiply registers by shared memory. A block does 2^30 operations.
__global__ void multiply_registers(float* result) {
  __shared__ alignas(1024) Tile tile;  // of any numbers
  float d[32] = {};
  const Fragment a = {{{float(threadIdx.x), 1}}};
#pragma unroll 1
  for (int i = 0; i < 2048; ++i, finish(d)) start(d, a, tile);
  if (result != nullptr) *result = d[0];  // never, but the compiler cannot know
}

int main(int argc, char** argv) {
  const std::string name = card(90);
  if (cudaFuncAttributes it; cudaFuncGetAttributes(&it, attention_kernel) != cudaSuccess)
    leave(77, name + " is newer than sm_90a");
  const int heads = argc > 2 ? std::atoi(argv[1]) : 32, time = argc > 2 ? std::atoi(argv[2]) : 2048;
  if (time % 64 != 0) leave(2, "time: expected a multiple of 64");
  const size_t n = size_t(heads) * time * kDim;
  bf16 *q = device_array(4 * n, 1), *k = q + n, *v = k + n, *o = v + n;
  const double us = microseconds([&] { attention(q, k, v, o, heads, time); }, 3);
  double error = 0;  // against double precision, in 8 rows
  for (int i = 0; i < 8; ++i) {
    const size_t row = size_t(heads * time - 1) * i / 7, start = row / time * time * kDim;
    const auto query = host_copy(q + row * kDim, kDim), out = host_copy(o + row * kDim, kDim);
    const auto keys = host_copy(k + start, time * kDim), values = host_copy(v + start, time * kDim);
    double wanted[kDim] = {}, sum = 0;
    for (int j = 0; j < time; ++j) {
      double dot = 0;
      for (int d = 0; d < kDim; ++d) dot += query[d] * keys[j * kDim + d];
      sum += dot = std::exp(dot / std::sqrt(double(kDim)));
      for (int d = 0; d < kDim; ++d) wanted[d] += dot * values[j * kDim + d];
    }
    for (int d = 0; d < kDim; ++d) error = std::max(error, std::abs(out[d] - wanted[d] / sum));
  }
  const double operations = 4.0 * heads * time * time * kDim;
  const double peak = microseconds([] { multiply_registers<<<1024, 128>>>(nullptr); }, 3) / 0x1p40;
  const std::string shape = std::to_string(heads) + "x" + std::to_string(time) + "x64 bfloat16";
  report("cuda6_wgmma", name, shape, us, operations, "GFLOP/s", peak * operations, error, 0x1p-7);
}
