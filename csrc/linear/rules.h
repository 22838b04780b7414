// SPDX-License-Identifier: MIT
// Measured rules of products, as functions of sizes alone: each says why an engine takes longer
// than its rival, or null. The rival is cuBLAS on CUDA and PyTorch's product on the CPU;
// docs/decisions/0016 (CPU), 0017 (Hopper) and 0018 (few rows) have the figures.
#pragma once

#include <cstdint>

#include "core/rounding.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

// Engines of few rows read the weight once, at the speed of memory. More rows are not few.
inline constexpr std::int64_t kFewRows = 16;

constexpr bool is_16_bit(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}
constexpr bool is_32_or_64_bit(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

// ---- CUDA ---------------------------------------------------------------------------------------

// Whether tiles of Hopper's engine keep the processors busy until their last round.
constexpr bool fills_processors(std::int64_t rows, std::int64_t cols, int processors) {
  constexpr double kLeastShare = 0.85;  // of the processors' time
  constexpr std::int64_t kTiles[][2] = {{128, 192}, {128, 128}};
  if (processors <= 0) return true;  // there is no card
  for (const auto& [height, width] : kTiles) {
    const std::int64_t tiles = divide_up(rows, height) * divide_up(cols, width);
    const std::int64_t most = rounded_up(tiles, std::int64_t{processors}) * height * width;
    const double share = kLeastShare * static_cast<double>(most);
    if (most > 0 && static_cast<double>(rows) * static_cast<double>(cols) >= share) return true;
  }
  return false;
}

// The result has `cols` columns, and its rows are those of x.
constexpr const char* slower_on_hopper(std::int64_t rows, std::int64_t cols, int processors) {
  constexpr std::int64_t kFewestRows = 512;
  if (rows < kFewestRows) return "there are few rows";
  if (!fills_processors(rows, cols, processors)) {
    return "tiles of the result would leave processors idle";
  }
  return nullptr;
}

// The engine of other cards is slower than cuBLAS, and gains the passes that would follow a
// product. No such card was at hand: by the bytes of these passes they take a sixth of a product's
// time or more where it has so few terms, and the engine may be so much slower.
constexpr const char* slower_on_ampere(std::int64_t rows, std::int64_t terms, bool is_fused) {
  constexpr std::int64_t kFewestRows = 128;  // of a tile
  constexpr std::int64_t kMostTerms = 2048;
  if (!is_fused) return "cuBLAS is faster without an activation";
  if (terms > kMostTerms) return "of many terms cuBLAS gains more than passes cost";
  return rows < kFewestRows ? "there are few rows" : nullptr;
}

// The result is the gradient of a weight, whose sums are over the rows of x.
constexpr const char* slower_gradient_on_hopper(std::int64_t rows, std::int64_t cols,
                                                int processors) {
  constexpr std::int64_t kFewestRounds = 2;
  const std::int64_t tiles =
      divide_up(rows, std::int64_t{128}) * divide_up(cols, std::int64_t{192});
  return tiles < kFewestRounds * processors ? "the gradient of the weight has few tiles" : nullptr;
}

// The weight's elements lie together along its terms, or by columns.
constexpr const char* slower_with_few_rows(std::int64_t rows, std::int64_t numbers_of_weight,
                                           bool by_columns, int architecture) {
  constexpr std::int64_t kMostNumbers = std::int64_t{1} << 24;
  constexpr std::int64_t kMostRowsByColumns = 4;
  if (architecture != 90) return "of few rows ours was measured on Hopper alone";
  if (numbers_of_weight > kMostNumbers) return "cuBLAS reads a large weight as fast";
  if (by_columns && rows > kMostRowsByColumns) {
    return "of more than 4 rows and a weight kept by columns cuBLAS was measured to be as fast";
  }
  return nullptr;
}

// ---- CPU ----------------------------------------------------------------------------------------

// Properties of PyTorch's products on the processor.
struct Blas {
  bool is_fast = true;      // those of float32 run at about the processor's speed
  bool fills_units = true;  // those of many rows use the full width of the arithmetic units
  bool has_tiles = false;   // oneDNN's of 16-bit numbers run on AMX
};

// MKL leaves AVX-512 unused on processors that are not Intel's, and multiplies vectors of 256 bits.
// Zen 4 executes vectors of 512 bits as two halves, and would gain nothing from them; from Zen 5 on
// they double the rate. A family of 0 is not known.
constexpr Blas blas_of(bool is_intel, int family, bool has_mkl, bool has_avx512) {
  constexpr int kFirstFullWidthFamily = 26;  // AMD's Zen 5
  Blas blas;
  blas.is_fast = !has_mkl || is_intel || !has_avx512;
  blas.fills_units = blas.is_fast || family < kFirstFullWidthFamily;
  return blas;
}

// Products below both are PyTorch's, whatever else they are: deciding takes longer than they do.
inline constexpr std::int64_t kFewestNumbersOfWeight = std::int64_t{1} << 18;
inline constexpr std::int64_t kFewestProducts = 6 * (std::int64_t{1} << 20);

constexpr const char* slower_with_few_rows_on_cpu(std::int64_t rows, std::int64_t numbers_of_weight,
                                                  bool by_terms, DType dtype, bool trains,
                                                  const Blas& blas) {
  constexpr std::int64_t kFewestNumbersOfOneRow = 2 * kFewestNumbersOfWeight;
  constexpr std::int64_t kMostRowsOf16Bit = 8;
  constexpr std::int64_t kMostRowsOf16BitByColumns = 4;
  if (numbers_of_weight < (rows == 1 ? kFewestNumbersOfOneRow : kFewestNumbersOfWeight)) {
    return "the weight is small";
  }
  if (trains) return "of few rows only the forward pass was measured";
  const bool is_wide = is_32_or_64_bit(dtype);
  if (is_wide && rows == 1 && blas.is_fast) {
    return "PyTorch's reads the weight as fast on this processor";
  }
  if (!is_wide && rows > (by_terms ? kMostRowsOf16BitByColumns : kMostRowsOf16Bit)) {
    return "PyTorch multiplies 16-bit numbers by the processor's own instructions";
  }
  return nullptr;
}

constexpr const char* slower_on_cpu(std::int64_t rows, std::int64_t products, DType dtype,
                                    bool trains, const Blas& blas) {
  constexpr std::int64_t kFewestRows = 32;
  constexpr std::int64_t kFewestRowsOfGradients = 64;
  if (blas.fills_units) return "PyTorch's is as fast on this processor";
  if (!is_32_or_64_bit(dtype)) {
    return "PyTorch's product of 16-bit numbers was measured to be as fast";
  }
  if (rows < (trains ? kFewestRowsOfGradients : kFewestRows)) {
    return "not many rows: bringing the weight in order would take longer";
  }
  return products < kFewestProducts ? "the product is small" : nullptr;
}

// oneDNN's operator for a linear layer has F.linear as its rival, which copies a bias into every
// row of the result before it multiplies.
constexpr const char* slower_by_onednn(std::int64_t products, DType dtype, const Blas& blas) {
  constexpr std::int64_t kFewest = std::int64_t{1} << 28;
  if (!blas.has_tiles) return "it was measured to be faster with AMX alone";
  if (!is_16_bit(dtype)) return "PyTorch's is as fast for this dtype";
  return products < kFewest ? "calling it costs more than it gains" : nullptr;
}

}  // namespace transformer_kernels
