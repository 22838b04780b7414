// SPDX-License-Identifier: MIT
// Bulk copies of memory that may start and end at any address.
#pragma once

#include "core/cuda/ptx.cuh"

namespace transformer_kernels::cuda {

// An operand from its first to its last element, beyond which nothing may be read.
template <class T>
struct Extent {
  const T* begin;
  const T* end;

  Extent() = default;
  __device__ Extent(const void* matrix, std::int64_t stride, std::int64_t rows, std::int64_t cols)
      : begin(static_cast<const T*>(matrix)),
        end(begin + (rows - 1) * stride + cols) {}
};

// One bulk copy: its place in shared memory, its source and its size.
struct BulkSpan {
  std::uint32_t place;
  std::uintptr_t source;
  std::uint32_t bytes;
};

template <class T>
__device__ void copy_inside(const Extent<T>& extent, std::uintptr_t pack, std::uint32_t place) {
  const T* const source = reinterpret_cast<const T*>(pack);
  T* const target = static_cast<T*>(__cvta_shared_to_generic(place));
#pragma unroll 1
  for (int k = 0; k < 16 / static_cast<int>(sizeof(T)); ++k) {
    if (source + k >= extent.begin && source + k < extent.end) target[k] = source[k];
  }
  fence_async_shared();
}

// The packs [begin, end), both multiples of 16 bytes, without those that reach out of the operand.
// The elements of such packs that lie inside are copied here, one by one: they are visible to
// threads that wait for the barrier on which this thread arrives afterwards.
template <class T>
__device__ BulkSpan bulk_span(const Extent<T>& extent, std::uintptr_t begin, std::uintptr_t end,
                              std::uint32_t place) {
  if (begin < end && begin < reinterpret_cast<std::uintptr_t>(extent.begin)) {
    copy_inside(extent, begin, place);
    begin += 16;
    place += 16;
  }
  if (begin < end && end > reinterpret_cast<std::uintptr_t>(extent.end)) {
    end -= 16;
    copy_inside(extent, end, place + static_cast<std::uint32_t>(end - begin));
  }
  return {place, begin, static_cast<std::uint32_t>(end - begin)};
}

// Brings all spans; the barrier expects this thread's arrival and their bytes.
template <int kSpans>
__device__ __forceinline__ void load_spans(const BulkSpan (&spans)[kSpans], std::uint32_t barrier) {
  std::uint32_t bytes = 0;
#pragma unroll
  for (const BulkSpan& span : spans) bytes += span.bytes;
  mbarrier_arrive_expect(barrier, bytes);
#pragma unroll
  for (const BulkSpan& span : spans) {
    if (span.bytes == 0) continue;
    bulk_load(span.place, reinterpret_cast<const void*>(span.source), span.bytes, barrier);
  }
}

}  // namespace transformer_kernels::cuda
