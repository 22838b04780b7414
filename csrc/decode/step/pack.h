// SPDX-License-Identifier: MIT
// Packs weights into tiles, without loss, and reads rows back.
#pragma once

#include <memory>
#include <vector>

#include "decode/step/tiles.h"
#include "transformer_kernels/decode/step.h"

namespace transformer_kernels::decode {

// A weight that was checked. A group is 1 where there are no scales.
struct Matrix {
  TileFormat format;
  std::int64_t group;
  std::int64_t rows;
  std::int64_t cols;
  const void* values;
  const void* scales;
  const void* minimums;
};

// Throws Error unless `weight` is a matrix (rows, cols) of one of the formats.
Matrix checked_matrix(const char* name, const StepWeight& weight, std::int64_t rows,
                      std::int64_t cols);

// A vector as float32; empty where the view is undefined. Throws Error unless it has `count`
// elements.
std::vector<float> checked_vector(const char* name, const TensorView& view, std::int64_t count);

// Memory in pieces of many megabytes, in large pages where the system has them, all zeros.
class Arena {
 public:
  std::byte* allocate(std::size_t bytes);
  // Takes back what was allocated behind the first `used` bytes.
  void shrink(std::size_t used) noexcept;
  std::size_t used() const { return used_; }

  struct Piece {
    std::unique_ptr<std::byte[], void (*)(void*)> memory;
    std::byte* begin;
    std::size_t used;
    std::size_t size;
  };
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  std::vector<Piece> pieces_;
  std::size_t used_ = 0;
};

// Rows [row, row + rows) and columns [col, col + cols) of a matrix.
struct Slice {
  std::int64_t row;
  std::int64_t rows;
  std::int64_t col;
  std::int64_t cols;
};

// The layout of a slice, without memory.
PackedMatrix layout_of(const Matrix& matrix, const Slice& slice);

// Fills the tiles of a slice, whose layout is `packed`, at `target`.
void pack(const Context& context, const Matrix& matrix, const Slice& slice, PackedMatrix& packed,
          std::byte* target);

// Writes row `row` as float32.
void unpack_row(const PackedMatrix& matrix, std::int64_t row, float* target);

}  // namespace transformer_kernels::decode
