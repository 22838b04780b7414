// SPDX-License-Identifier: MIT
// An operand of a product on tensor cores: a block of its lines and terms on the way from global
// memory, by cp.async, to the registers that mma.sync takes. Lines are the rows of a left operand
// and the columns of a right one. In memory either the terms of a line lie together (Major::kK), or
// the lines of a term.
#pragma once

#include "core/cuda/sm80/fragment.cuh"
#include "core/cuda/sm80/rows.cuh"
#include "core/cuda/wgmma.cuh"

namespace transformer_kernels::cuda {

// A matrix in global memory. What lies together is a row of it, and rows are 16-byte aligned.
struct OperandMatrix {
  const char* data;
  std::int64_t step;  // bytes from row to row
};

// 16 bytes into shared memory, past L1, or zeros where they are `ignored`.
__device__ __forceinline__ void cp_async_or_zeros(std::uint32_t destination, const void* source,
                                                  bool ignored) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, p;\n}" ::"r"(destination),
      "l"(source), "r"(static_cast<int>(ignored))
      : "memory");
}

// The first `bytes` of 16, and zeros behind them. A number that is not known takes six
// instructions.
__device__ __forceinline__ void cp_async_part(std::uint32_t destination, const void* source,
                                              int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(bytes)
               : "memory");
}

template <class T, Major kMajor, int kLines, int kTerms>
struct OperandBlock {
  static constexpr bool kByLines = kMajor == Major::kK;
  using Rows = SharedRows<T, kByLines ? kTerms : kLines>;
  static constexpr int kRows = kByLines ? kLines : kTerms;
  static constexpr int kBytes = kRows * Rows::kPitch;
};

// The share of a thread in copies of blocks, from a line on. Lines past the last become zeros, or
// what lies behind them in a pack of 16 bytes that begins before: no result is stored of them.
template <class T, Major kMajor, int kLines, int kTerms, int kThreads>
class OperandCopy {
  using Block = OperandBlock<T, kMajor, kLines, kTerms>;
  using Rows = typename Block::Rows;
  static constexpr int kPerPiece = 16 / static_cast<int>(sizeof(T));
  static constexpr int kRowsAtOnce = kThreads / Rows::kPieces;
  static_assert(kThreads % Rows::kPieces == 0 && Block::kRows % kRowsAtOnce == 0);
  static_assert(kRowsAtOnce % 8 == 0);  // rows are permuted alike 8 at a time

 public:
  __device__ __forceinline__ OperandCopy(const OperandMatrix& from, int line, int lines)
      : row_(static_cast<int>(threadIdx.x) / Rows::kPieces),
        first_(static_cast<int>(threadIdx.x) % Rows::kPieces * kPerPiece),
        place_(Rows::offset(row_, first_ / kPerPiece)),
        step_(from.step) {
    const int row = Block::kByLines ? line + row_ : row_;
    const int first = Block::kByLines ? first_ : line + first_;
    source_ = from.data + row * step_ + first * std::int64_t{sizeof(T)};
    rows_ = Block::kByLines ? lines - row : first < lines ? Block::kRows : 0;
  }

  // Starts to copy the block of terms from `term` on, of which there are `terms`, maybe fewer than
  // a block has. Those past the last become zeros.
  __device__ __forceinline__ void start_part(std::uint32_t block, int term, int terms) const {
    const int count = Block::kByLines ? min(max(terms - first_, 0), kPerPiece) : kPerPiece;
    const int rows = Block::kByLines ? rows_ : min(rows_, terms - row_);
    for_each_row(term, [&](int i, const char* source) {
      const int bytes = i < rows ? count * static_cast<int>(sizeof(T)) : 0;
      cp_async_part(block + place_ + i * Rows::kPitch, source, bytes);
    });
  }
  // All of a block.
  __device__ __forceinline__ void start(std::uint32_t block, int term) const {
    for_each_row(term, [&](int i, const char* source) {
      cp_async_or_zeros(block + place_ + i * Rows::kPitch, source, i >= rows_);
    });
  }

 private:
  // body(number of a row behind the thread's first, source) for its rows of a block.
  template <class Body>
  __device__ __forceinline__ void for_each_row(int term, Body&& body) const {
    const char* source = source_ + term * (Block::kByLines ? std::int64_t{sizeof(T)} : step_);
#pragma unroll
    for (int i = 0; i < Block::kRows; i += kRowsAtOnce) {
      body(i, source);
      source += kRowsAtOnce * step_;
    }
  }

  int row_;    // of the block
  int first_;  // in that row
  int place_;
  std::int64_t step_;
  const char* source_;
  int rows_;  // that lie in the matrix, from the thread's first one on
};

enum class Side { kLeft, kRight };

// A lane's place in the blocks that its warp reads.
template <class T, Side kSide, Major kMajor, int kLines, int kTerms>
class OperandReader {
  using Block = OperandBlock<T, kMajor, kLines, kTerms>;
  using Rows = typename Block::Rows;

 public:
  // From a line on, a multiple of 16.
  __device__ __forceinline__ explicit OperandReader(int line) {
    const int lane = Lane().lane;
    // Matrix 1 of the four has the other lines of a left operand, but the other terms of a right
    // one, because mma takes neighbouring registers as one operand.
    const int eight_lines = kSide == Side::kLeft ? lane / 8 % 2 : lane / 16;
    const int eight_terms = kSide == Side::kLeft ? lane / 16 : lane / 8 % 2;
    if constexpr (Block::kByLines) {
      place_ = Rows::offset(line + eight_lines * 8 + lane % 8, eight_terms);
    } else {
      place_ = Rows::offset(eight_terms * 8 + lane % 8, line / 8 + eight_lines);
    }
  }

  // 16 lines and 16 terms, of which these are the numbers, as mma takes them: all words are a left
  // operand, and a right one has the first and the last eight lines in two words each.
  __device__ __forceinline__ void read(std::uint32_t (&words)[4], std::uint32_t block, int lines,
                                       int terms) const {
    constexpr int kSixteen = 16 * static_cast<int>(sizeof(T));
    const std::uint32_t at = block + place_;
    if constexpr (Block::kByLines) {
      ldmatrix_x4(words, Rows::along(at, terms * kSixteen) + lines * 16 * Rows::kPitch);
    } else {
      ldmatrix_x4_trans(words, Rows::along(at, lines * kSixteen) + terms * 16 * Rows::kPitch);
    }
  }

 private:
  int place_;
};

}  // namespace transformer_kernels::cuda
