// SPDX-License-Identifier: MIT
// The operators of extension.cpp for CUDA: the same schemas, and kernels for another kind of
// device.
//
// A thread has 16 bytes of x. The kernels run on PyTorch's current stream, as its own do.
//
// Build: nvcc -O3 -std=c++20 -arch=sm_80 -shared -Xcompiler -fPIC -I TORCH/include -DUSE_CUDA
//   -DTORCH_TARGET_VERSION=0x020a000000000000ULL -o extension.so extension.cu -L TORCH/lib
//   -Xlinker --no-as-needed -ltorch -ltorch_cpu
#include <cuda_bf16.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// gelu(x) = x * sigmoid(2z) with z = sqrt(2 / pi) * (x + 0.044715 * x^3).
__device__ float sigmoid_2z(float x) {
  return 1 / (1 + __expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
}

struct Value {
  __device__ float operator()(float x, float) const { return x * sigmoid_2z(x); }
};

struct Slope {
  __device__ float operator()(float x, float dy) const {
    x = x < -12 ? -12 : x > 12 ? 12 : x;  // beyond, the slope is 0 or 1, and x^2 may overflow
    const float s = sigmoid_2z(x);
    return dy * (s + x * s * (1 - s) * 1.5957691216f * (1 + 0.134145f * x * x));
  }
};

template <class T>
struct alignas(16) Vector {
  T of[16 / sizeof(T)];
};

template <class T, class Function>
__global__ void map_kernel(const T* x, const T* dy, T* y, int64_t count, Function of) {
  constexpr int kWidth = 16 / sizeof(T);
  const int64_t first = (blockIdx.x * int64_t(256) + threadIdx.x) * kWidth;
  const bool aligned = (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(dy)) % 16 == 0;
  if (aligned && first + kWidth <= count) {
    Vector<T> v = *reinterpret_cast<const Vector<T>*>(x + first);
    const Vector<T> d = *reinterpret_cast<const Vector<T>*>(dy + first);
    for (int i = 0; i < kWidth; ++i) v.of[i] = T(of(float(v.of[i]), float(d.of[i])));
    *reinterpret_cast<Vector<T>*>(y + first) = v;
  } else {
    for (int64_t i = first; i < min(first + kWidth, count); ++i)
      y[i] = T(of(float(x[i]), float(dy[i])));
  }
}

template <class T, class Function>
void launch(const Tensor& x, const Tensor& dy, Tensor& y, Function of) {
  const torch::stable::accelerator::DeviceGuard guard(x.get_device());
  void* stream = nullptr;
  const auto status = aoti_torch_get_current_cuda_stream(x.get_device(), &stream);
  STD_TORCH_CHECK(status == AOTI_TORCH_SUCCESS, "gelu: PyTorch has no stream");
  const int64_t blocks = (x.numel() * int64_t(sizeof(T)) + 4095) / 4096;
  if (blocks == 0) return;
  map_kernel<<<blocks, 256, 0, static_cast<cudaStream_t>(stream)>>>(
      (const T*)x.data_ptr(), (const T*)dy.data_ptr(), (T*)y.data_ptr(), x.numel(), of);
  STD_TORCH_CHECK(cudaGetLastError() == cudaSuccess, "gelu: the kernel did not start");
}

template <class Function>
Tensor map(const Tensor& x, const Tensor& dy, Function of) {
  STD_TORCH_CHECK(x.is_contiguous() && dy.is_contiguous(), "gelu: x and dy must be contiguous");
  STD_TORCH_CHECK(x.numel() == dy.numel() && x.scalar_type() == dy.scalar_type(),
                  "gelu: x and dy must have the same size and type");
  Tensor y = torch::stable::empty_like(x);
  if (x.scalar_type() == ScalarType::Float) return launch<float>(x, dy, y, of), y;
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::BFloat16, "gelu: expected float32 or bfloat16");
  return launch<__nv_bfloat16>(x, dy, y, of), y;
}

Tensor gelu(const Tensor& x) { return map(x, x, Value{}); }

Tensor gelu_backward(const Tensor& dy, const Tensor& x) { return map(x, dy, Slope{}); }

STABLE_TORCH_LIBRARY_IMPL(step5, CUDA, m) {
  m.impl("gelu", TORCH_BOX(&gelu));
  m.impl("gelu_backward", TORCH_BOX(&gelu_backward));
}
