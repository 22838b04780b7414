// SPDX-License-Identifier: MIT
// Rows of any width that lie without gaps: chunks of whole rows come to shared memory, and results
// go back, in one bulk copy each.
//
// A group of lanes takes a row at a time, always a multiple of eight rows behind the one before.
// All rows of a group therefore start equally far behind a multiple of 16 bytes: which columns the
// aligned packs of a lane hold, and which of their elements belong to a neighbour, is settled once.
// Only the first and the last pack of a row hold a neighbour's elements, and the plan is such that
// a lane meets them in its first and its last slot.
#pragma once

#include "core/cuda/chunk_plan.h"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"

namespace transformer_kernels::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// The bits of -infinity, and of one element in each place of a word.
template <class T>
inline constexpr std::uint32_t kMinusInfinityWord = 0xff800000u;
template <>
inline constexpr std::uint32_t kMinusInfinityWord<BFloat16> = 0xff80ff80u;
template <>
inline constexpr std::uint32_t kMinusInfinityWord<Half> = 0xfc00fc00u;

template <class T>
__device__ __forceinline__ std::uint32_t repeat_in_word(T element) {
  if constexpr (sizeof(T) == 4) {
    return __float_as_uint(element);
  } else {
    return element.bits * 0x10001u;
  }
}

// Who this thread is, and what of its group's rows is its own: the packs lane, lane + kLanes, ...
// of a window that ends with the row's last pack.
template <class Plan, class T>
struct ChunkLane {
  static constexpr ChunkPlan kPlan = Plan::plan;
  static constexpr int kSize = 16 / static_cast<int>(sizeof(T));
  static constexpr int kLanes = kPlan.lanes;
  static constexpr int kPacks = kPlan.packs;
  static_assert(kPlan.groups() % 8 == 0 && kLanes >= 2 && kPacks >= 2);

  int team;    // in the CTA
  int thread;  // in the team
  int lane;    // in the group
  int group;   // in the team
  int column;  // of the first element of slot 0; above -kLanes * kSize, below 0 before the row
  int cols;

  __device__ explicit ChunkLane(std::int64_t width)
      : team(threadIdx.x / kPlan.threads),
        thread(threadIdx.x % kPlan.threads),
        lane(thread % kLanes),
        group(thread / kLanes),
        cols(static_cast<int>(width)) {
    const int row_bytes = cols * static_cast<int>(sizeof(T));
    const int begin = group * row_bytes;
    // The window has at least so many packs that the row's last pack falls into the last slot of
    // some lane.
    const int window = max(static_cast<int>(packs_of_row(row_bytes)), kLanes * (kPacks - 1) + 1);
    const int start = ((begin + row_bytes - 1) / 16 - window + 1 + lane) * 16;
    column = (start - begin) / static_cast<int>(sizeof(T));
    begin_ = begin;
    start_ = start;
    // A pack that lies wholly outside of the row is read from inside it instead.
    const auto inside = [&](int slot) { return overlap(slot) ? start + slot * kSlot : begin; };
    first_ = inside(0) / 16 * 16;
    last_ = inside(kPacks - 1) / 16 * 16;
    first_bits_ = last_bits_ = 0;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      first_bits_ |= holds(0, k) << k;
      last_bits_ |= holds(kPacks - 1, k) << k;
    }
    first_keep_ = keep(0);
    last_keep_ = keep(kPacks - 1);
    // Kept in registers: the compiler would rather compute them again for every row.
    pin(first_bits_);
    pin(last_bits_);
    pin(first_keep_);
    pin(last_keep_);
  }

  __device__ bool holds(int slot, int k) const {
    return static_cast<unsigned>(column_of(slot) + k) < static_cast<unsigned>(cols);
  }
  __device__ int column_of(int slot) const { return column + slot * kLanes * kSize; }

  // Pack `slot` of the row whose round starts at `round`, including elements of other rows that lie
  // in it.
  __device__ __forceinline__ uint4 load(std::uint32_t round, int slot) const {
    return load_shared(round + offset(slot));
  }
  // Pack `slot` with the bits of `fill` in place of elements of other rows.
  __device__ __forceinline__ uint4 load(std::uint32_t round, int slot, std::uint32_t fill) const {
    const uint4 raw = load(round, slot);
    if (slot == 0) return select(raw, first_keep_, fill);
    if (slot == kPacks - 1) return select(raw, last_keep_, fill);
    return raw;
  }

  // The mean of two elements of the row, rounded: what sums over it may be taken relative to.
  __device__ __forceinline__ T anchor(std::uint32_t round) const {
    const auto element = [&](int col) {
      return widen(*static_cast<const T*>(
          __cvta_shared_to_generic(round + begin_ + col * static_cast<int>(sizeof(T)))));
    };
    return narrow<T>(fmaf(0.5f, element(0), 0.5f * element(cols - 1)));
  }

  __device__ __forceinline__ void store(std::uint32_t round, int slot, uint4 raw) const {
    const bool edge = slot == 0 || slot == kPacks - 1;
    if (!edge || bits(slot) == (1 << kSize) - 1) {
      store_shared(round + offset(slot), raw);
    } else {
      const std::uint32_t place = round + offset(slot);
      const T* const element = reinterpret_cast<const T*>(&raw);
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        if (bits(slot) >> k & 1) store_element(place + k * int{sizeof(T)}, element[k]);
      }
    }
  }

 private:
  static constexpr int kSlot = kLanes * 16;

  int begin_;
  int start_;
  int first_;
  int last_;
  int first_bits_;
  int last_bits_;
  uint4 first_keep_;
  uint4 last_keep_;

  static __device__ __forceinline__ void pin(int& v) { asm("" : "+r"(v)); }
  static __device__ __forceinline__ void pin(uint4& v) {
    asm("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w));
  }

  __device__ bool overlap(int slot) const {
    return column_of(slot) + kSize > 0 && column_of(slot) < cols;
  }
  __device__ __forceinline__ int bits(int slot) const {
    return slot == 0 ? first_bits_ : last_bits_;
  }
  __device__ __forceinline__ int offset(int slot) const {
    return slot == 0 ? first_ : slot == kPacks - 1 ? last_ : start_ + slot * kSlot;
  }

  __device__ uint4 keep(int slot) const {
    const auto word = [&](int i) {
      if constexpr (sizeof(T) == 4) {
        return holds(slot, i) ? ~0u : 0u;
      } else {
        return (holds(slot, 2 * i) ? 0xffffu : 0u) | (holds(slot, 2 * i + 1) ? 0xffff0000u : 0u);
      }
    };
    return make_uint4(word(0), word(1), word(2), word(3));
  }

  static __device__ __forceinline__ uint4 select(uint4 raw, uint4 keep, std::uint32_t fill) {
    const auto word = [&](std::uint32_t a, std::uint32_t mask) {
      return (a & mask) | (fill & ~mask);
    };
    return make_uint4(word(raw.x, keep.x), word(raw.y, keep.y), word(raw.z, keep.z),
                      word(raw.w, keep.w));
  }

  static __device__ __forceinline__ void store_element(std::uint32_t address, T v) {
    if constexpr (sizeof(T) == 4) {
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
    } else {
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(v.bits) : "memory");
    }
  }
};

// The chunks of one team: kIn operands that it fetches ahead, kOut results that it sends out. All
// matrices have the same shape, lie without gaps and start at a multiple of 16 bytes.
template <class Plan, class T, int kIn, int kOut>
class ChunkRing {
 public:
  static constexpr ChunkPlan kPlan = Plan::plan;
  static constexpr int kGroups = kPlan.groups();

  const int rounds;  // rows of a group in a chunk

  // `shared` is the CTA's ring memory, `filled` its barriers. All threads of the CTA have to meet
  // before the first wait.
  __device__ ChunkRing(const ChunkLane<Plan, T>& own, const ChunkShape& shape, std::int64_t rows,
                       std::uint32_t shared, std::uint64_t (*filled)[kPlan.stages],
                       const void* const (&in)[kIn], void* const (&out)[kOut])
      : rounds(shape.rounds),
        own_(own),
        chunk_bytes_(shape.chunk_bytes),
        rows_(static_cast<int>(rows)),
        memory_(shared + own.team * (kIn * kPlan.stages + kOut * kChunksOut) * shape.chunk_bytes),
        filled_(shared_address(filled[own.team])),
        chunk_(own.team * gridDim.x + blockIdx.x) {
#pragma unroll
    for (int t = 0; t < kIn; ++t) in_[t] = static_cast<const unsigned char*>(in[t]);
#pragma unroll
    for (int t = 0; t < kOut; ++t) out_[t] = static_cast<unsigned char*>(out[t]);
    if (own.thread == 0) {
      for (int i = 0; i < kPlan.stages; ++i) mbarrier_init(filled_ + i * 8, 1);
      fence_mbarrier_init();
      for (int i = 0; i < kPlan.stages; ++i) fetch(chunk_ + i * step(), i);
    }
  }

  __device__ __forceinline__ bool more() const { return first_row(chunk_) < rows_; }

  // The group's row in a round of the chunk at hand; it may lie behind the last one.
  __device__ __forceinline__ int row(int round) const {
    return first_row(chunk_) + round * kGroups + own_.group;
  }
  __device__ __forceinline__ std::uint32_t input(int operand, int round) const {
    return memory_ + (stage_ * kIn + operand) * chunk_bytes_ + round * round_bytes();
  }
  __device__ __forceinline__ std::uint32_t result(int operand, int round) const {
    return memory_ + (kPlan.stages * kIn + slot_ * kOut + operand) * chunk_bytes_ +
           round * round_bytes();
  }

  // Waits for the current chunk. Rows after the last one count as zeros.
  __device__ __forceinline__ void wait() const {
    mbarrier_wait(filled_ + stage_ * 8, parity_);
    const int left = rows_left(chunk_);
    if (left < chunk_rows()) {
#pragma unroll
      for (int t = 0; t < kIn; ++t) {
        T* const operand = elements(input(t, 0));
#pragma unroll 1
        for (int i = left * own_.cols + own_.thread; i < chunk_rows() * own_.cols;
             i += kPlan.threads) {
          operand[i] = T{};
        }
      }
      sync();
    }
  }

  // Sends the results out, fetches ahead and takes the next chunk.
  __device__ __forceinline__ void advance() {
    fence_async_shared();
    // The results that were sent out before have left the place where the next ones go.
    if (own_.thread == 0) bulk_wait_read<0>();
    sync();
    const int left = rows_left(chunk_);
    if (left < chunk_rows()) store_rest(left);
    if (own_.thread == 0) {
      const int bytes = whole_bytes(left);
#pragma unroll
      for (int t = 0; t < kOut; ++t) {
        if (bytes > 0) bulk_store(at(out_[t], chunk_), result(t, 0), bytes);
      }
      bulk_commit();
      fetch(chunk_ + kPlan.stages * step(), stage_);
    }
    chunk_ += step();
    slot_ ^= 1;
    if (++stage_ == kPlan.stages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

  // Call before the CTA ends: shared memory must outlive the copies.
  __device__ __forceinline__ void finish() const {
    if (own_.thread == 0) bulk_wait_read<0>();
  }

 private:
  const ChunkLane<Plan, T>& own_;
  int chunk_bytes_;
  int rows_;
  std::uint32_t memory_;
  std::uint32_t filled_;
  int chunk_;
  const unsigned char* in_[kIn];
  unsigned char* out_[kOut];
  int stage_ = 0;
  int slot_ = 0;
  std::uint32_t parity_ = 0;

  static __device__ __forceinline__ int step() { return gridDim.x * kPlan.teams; }

  static __device__ __forceinline__ T* elements(std::uint32_t address) {
    return static_cast<T*>(__cvta_shared_to_generic(address));
  }

  __device__ __forceinline__ int chunk_rows() const { return rounds * kGroups; }
  __device__ __forceinline__ int row_bytes() const { return own_.cols * int{sizeof(T)}; }
  __device__ __forceinline__ int round_bytes() const { return kGroups * row_bytes(); }
  __device__ __forceinline__ int first_row(int chunk) const { return chunk * chunk_rows(); }
  __device__ __forceinline__ int rows_left(int chunk) const { return rows_ - first_row(chunk); }

  // The bytes that bulk copies bring of a chunk of which `left` rows exist.
  __device__ __forceinline__ int whole_bytes(int left) const {
    return left < chunk_rows() ? left * row_bytes() / 16 * 16 : chunk_bytes_;
  }

  template <class Byte>
  __device__ __forceinline__ Byte* at(Byte* matrix, int chunk) const {
    return matrix + static_cast<std::int64_t>(chunk) * chunk_bytes_;
  }

  __device__ __forceinline__ void sync() const {
    if constexpr (kPlan.threads == kWarp) {
      __syncwarp();
    } else if constexpr (kPlan.teams == 1) {
      __syncthreads();
    } else {
      named_barrier(1 + own_.team, kPlan.threads);
    }
  }

  // Copies the end of the last chunk that does not fill a pack, element by element.
  __device__ __forceinline__ void fetch_rest(int left, int chunk, std::uint32_t place) const {
#pragma unroll
    for (int t = 0; t < kIn; ++t) {
      const T* const source = reinterpret_cast<const T*>(at(in_[t], chunk));
#pragma unroll 1
      for (int i = whole_bytes(left) / int{sizeof(T)}; i < left * own_.cols; ++i) {
        elements(place + t * chunk_bytes_)[i] = source[i];
      }
    }
  }
  __device__ __forceinline__ void store_rest(int left) const {
    const int i = whole_bytes(left) / int{sizeof(T)} + own_.thread;
    if (i >= left * own_.cols) return;
#pragma unroll
    for (int t = 0; t < kOut; ++t) {
      reinterpret_cast<T*>(at(out_[t], chunk_))[i] = elements(result(t, 0))[i];
    }
  }

  __device__ __forceinline__ void fetch(int chunk, int stage) const {
    const int left = rows_left(chunk);
    if (left <= 0) return;
    const std::uint32_t place = memory_ + stage * kIn * chunk_bytes_;
    const std::uint32_t barrier = filled_ + stage * 8;
    if (left < chunk_rows()) fetch_rest(left, chunk, place);
    const int bytes = whole_bytes(left);
    mbarrier_arrive_expect(barrier, kIn * bytes);
#pragma unroll
    for (int t = 0; t < kIn; ++t) {
      if (bytes > 0) bulk_load(place + t * chunk_bytes_, at(in_[t], chunk), bytes, barrier);
    }
  }
};

// Numbers of each column in shared memory, laid out so that lanes next to each other read the same
// element of their packs without bank conflicts, whatever column a pack starts with: column c lies
// in row c % kSize, place c / kSize. A lane's elements may reach into rows from kSize on, which
// repeat the first ones a place further: their places are constants behind one address.
template <class Plan, class T, class V>
struct ColumnTable {
  static constexpr ChunkPlan kPlan = Plan::plan;
  static constexpr int kSize = 16 / static_cast<int>(sizeof(T));
  static constexpr int kPitch = column_pitch(kPlan, sizeof(V));
  static constexpr int kRows = column_rows(sizeof(T));
  static constexpr int kBefore = kPlan.lanes * kSize;  // columns in front that a lane may name

  V entry[kRows * kPitch];

  // Writes all entries, by all threads of the CTA: value(col), or V{} outside of [0, cols).
  template <class Value>
  __device__ void fill(int cols, Value&& value) {
    constexpr int kThreads = kPlan.cta_threads();
    constexpr int kColumns = (kPitch + 1) * kSize;
#pragma unroll
    for (int first = 0; first < kColumns; first += kThreads) {
      const int at = first + static_cast<int>(threadIdx.x);
      const int col = at - kBefore;
      const V v = col >= 0 && col < cols ? value(col) : V{};
      const int row = at % kSize, place = at / kSize;
      if (place < kPitch) entry[row * kPitch + place] = v;
      if (place > 0 && place <= kPitch && row + kSize < kRows) {
        entry[(row + kSize) * kPitch + place - 1] = v;
      }
    }
  }

  // The entries of columns `col` and on, k of them kPitch apart; those of the pack kLanes further
  // kLanes places behind.
  __device__ const V* of(int col) const {
    const int at = col + kBefore;
    return entry + at % kSize * kPitch + at / kSize;
  }
};

// A parameter of storage T, or a float where it is not `of_rows_type`.
template <class T>
__device__ __forceinline__ float parameter_at(const void* parameter, bool of_rows_type, int col) {
  return of_rows_type ? widen(static_cast<const T*>(parameter)[col])
                      : static_cast<const float*>(parameter)[col];
}

#endif  // sm_90

}  // namespace transformer_kernels::cuda
