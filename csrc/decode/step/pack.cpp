// SPDX-License-Identifier: MIT
#include "decode/step/pack.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "core/check.h"
#include "core/cpu/huge_pages.h"
#include "core/cpu/parallel.h"
#include "core/math/convert.h"

namespace transformer_kernels::decode {
namespace {

constexpr const char* kOp = "decode_step";

bool is_packed(const TensorView& view) {
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    if (view.sizes[i] > 1 && view.strides[i] != stride) return false;
    stride *= view.sizes[i];
  }
  return true;
}

void check_shape(const char* name, const char* part, const TensorView& view, std::int64_t rows,
                 std::int64_t cols) {
  const bool fits = view.rank == 2 && view.sizes[0] == rows && view.sizes[1] == cols;
  check_value(fits, kOp, ": ", part, " of ", name, " has shape ", shape_of(view), ", expected (",
              rows, ", ", cols, ")");
  check_value(is_packed(view), kOp, ": ", part, " of ", name, " has gaps, expected none");
  check_value(view.device.type == DeviceType::kCpu, kOp, ": ", part, " of ", name, " is on ",
              name_of(view.device.type), ", expected cpu");
}

TileFormat format_of(const char* name, const StepWeight& weight) {
  switch (weight.values.dtype) {
    case DType::kFloat32: return TileFormat::kFloat32;
    case DType::kFloat16: return TileFormat::kFloat16;
    case DType::kBFloat16: return TileFormat::kBFloat16;
    case DType::kInt8: return TileFormat::kInt8;
    case DType::kUInt8:
      return weight.minimums.defined() ? TileFormat::kInt4Minimum : TileFormat::kInt4;
    default: break;
  }
  check_type(false, kOp, ": ", name, " is ", name_of(weight.values.dtype),
             ", expected float32, float16, bfloat16, int8 or uint8");
  return {};
}

void check_scales(const char* name, const char* part, const TensorView& view, std::int64_t rows,
                  std::int64_t groups) {
  check_type(view.dtype == DType::kFloat16, kOp, ": ", part, " of ", name, " are ",
             name_of(view.dtype), ", expected float16");
  check_shape(name, part, view, rows, groups);
}

std::int64_t checked_group(const char* name, const StepWeight& weight, std::int64_t rows,
                           std::int64_t cols) {
  const TensorView& scales = weight.scales;
  check_value(scales.defined(), kOp, ": scales of ", name, " are missing, expected some of ",
              name_of(weight.values.dtype), " values");
  const std::int64_t groups = scales.rank == 2 ? scales.sizes[1] : 0;
  const std::int64_t group = groups > 0 && cols % groups == 0 ? cols / groups : 0;
  check_value(group == 32 || group == 64 || group == 128, kOp, ": scales of ", name, " have shape ",
              shape_of(scales), ", expected one for each 32, 64 or 128 of ", cols, " columns");
  check_scales(name, "scales", scales, rows, groups);
  if (weight.minimums.defined()) check_scales(name, "minimums", weight.minimums, rows, groups);
  return group;
}

Half half_at(const void* data, std::int64_t i) { return static_cast<const Half*>(data)[i]; }

// The number of a block that stands for an element, without a sign.
std::uint8_t code_of(const Matrix& m, std::int64_t row, std::int64_t col) {
  if (m.format == TileFormat::kInt8) {
    const auto value = static_cast<const std::int8_t*>(m.values)[row * m.cols + col];
    return static_cast<std::uint8_t>(value + 128);
  }
  const auto both = static_cast<const std::uint8_t*>(m.values)[(row * m.cols + col) / 2];
  const int nibble = (col % 2 == 0 ? both : both >> 4) & 15;
  return static_cast<std::uint8_t>(m.format == TileFormat::kInt4 ? nibble ^ 8 : nibble);
}

// Where the number of term `k` of a block stands, for row 0, and whether in the high nibble.
struct Place {
  std::int64_t byte;
  bool high;
};
Place place_of(TileFormat format, std::int64_t k) {
  if (format == TileFormat::kInt8) return {k / 4 * kVectorBytes + k % 4, false};
  const std::int64_t inside = k % kSubBlock;
  const std::int64_t low = inside % (kSubBlock / 2);
  const std::int64_t vector = k / kSubBlock * 4 + low / 4;
  return {vector * kVectorBytes + low % 4, inside >= kSubBlock / 2};
}

// One row of a tile, columns [first, first + count) of the matrix, from term `lead` on.
void pack_floats(const Matrix& m, std::int64_t row, const Slice& s, int lane, std::byte* tile) {
  const std::int64_t from = row * m.cols + s.col;
  if (m.format == TileFormat::kFloat32) {
    const auto* const source = static_cast<const float*>(m.values) + from;
    auto* const target = reinterpret_cast<float*>(tile);
    for (std::int64_t k = 0; k < s.cols; ++k) target[k * kTileRows + lane] = source[k];
    return;
  }
  const auto* const source = static_cast<const std::uint16_t*>(m.values) + from;
  auto* const target = reinterpret_cast<std::uint16_t*>(tile);
  if (m.format == TileFormat::kFloat16) {
    for (std::int64_t k = 0; k < s.cols; ++k) target[k * kTileRows + lane] = source[k];
  } else {
    for (std::int64_t k = 0; k < s.cols; ++k) {
      target[k / 2 * 2 * kTileRows + lane * 2 + k % 2] = source[k];
    }
  }
}

// Blocks that a slice cuts keep all their numbers: the activations there are 0.
void pack_blocks(const Matrix& m, std::int64_t row, std::int64_t first, const TileLayout& layout,
                 int lane, std::byte* tile) {
  const std::int64_t group_of_row = row * (m.cols / m.group);
  for (std::int64_t g = 0; g < layout.groups(); ++g) {
    const std::int64_t at = group_of_row + first / m.group + g;
    auto* const scales = reinterpret_cast<Half*>(tile + layout.scales_at(g));
    scales[lane] = half_at(m.scales, at);
    if (m.minimums != nullptr) scales[kTileRows + lane] = half_at(m.minimums, at);
    auto* const block = reinterpret_cast<std::uint8_t*>(tile + layout.block_at(g)) + lane * 4;
    for (std::int64_t k = 0; k < m.group; ++k) {
      const Place place = place_of(m.format, k);
      const int code = code_of(m, row, first + g * m.group + k);
      block[place.byte] |= static_cast<std::uint8_t>(place.high ? code << 4 : code);
    }
  }
}

}  // namespace

Matrix checked_matrix(const char* name, const StepWeight& weight, std::int64_t rows,
                      std::int64_t cols) {
  check_value(weight.values.defined(), kOp, ": ", name, " is missing");
  const TileFormat format = format_of(name, weight);
  const bool nibbles = bits_of(format) == 4;
  check_value(!nibbles || cols % 2 == 0, kOp, ": ", name, " has ", cols,
              " columns, expected an even number for 4 bits");
  check_shape(name, "values", weight.values, rows, nibbles ? cols / 2 : cols);
  check_value(nibbles || !weight.minimums.defined(), kOp, ": minimums of ", name,
              " are given, expected none but for 4 bits");
  check_value(has_blocks(format) || !weight.scales.defined(), kOp, ": scales of ", name,
              " are given, expected none for ", name_of(weight.values.dtype));
  const std::int64_t group = has_blocks(format) ? checked_group(name, weight, rows, cols) : 1;
  const auto data = [](const TensorView& view) { return view.defined() ? view.data : nullptr; };
  return {
      format, group, rows, cols, weight.values.data, data(weight.scales), data(weight.minimums)};
}

std::vector<float> checked_vector(const char* name, const TensorView& view, std::int64_t count) {
  if (!view.defined()) return {};
  const bool floats = view.dtype == DType::kFloat32 || view.dtype == DType::kFloat16 ||
                      view.dtype == DType::kBFloat16;
  check_type(floats, kOp, ": ", name, " is ", name_of(view.dtype),
             ", expected float32, float16 or bfloat16");
  check_value(view.rank == 1 && view.sizes[0] == count, kOp, ": ", name, " has shape ",
              shape_of(view), ", expected (", count, ",)");
  check_value(is_packed(view) && view.device.type == DeviceType::kCpu, kOp, ": ", name,
              " is not in memory of the CPU without gaps");
  std::vector<float> out(count);
  for (std::int64_t i = 0; i < count; ++i) {
    if (view.dtype == DType::kFloat32) out[i] = static_cast<const float*>(view.data)[i];
    if (view.dtype == DType::kFloat16) out[i] = widen(half_at(view.data, i));
    if (view.dtype == DType::kBFloat16) out[i] = widen(static_cast<const BFloat16*>(view.data)[i]);
  }
  return out;
}

std::byte* Arena::allocate(std::size_t bytes) {
  constexpr std::size_t kPage = std::size_t{2} << 20;
  constexpr std::size_t kPiece = 32 * kPage;
  bytes = (bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
  if (pieces_.empty() || pieces_.back().size - pieces_.back().used < bytes) {
    const std::size_t size = std::max(bytes, kPiece);
    // calloc leaves pages untouched until they are written, and so does not fill what is not used.
    auto* const memory = static_cast<std::byte*>(std::calloc(size + kPage, 1));
    if (memory == nullptr) throw std::bad_alloc();
    const auto past = reinterpret_cast<std::uintptr_t>(memory) % kPage;
    std::byte* const begin = memory + (kPage - past) % kPage;
    pieces_.push_back({{memory, std::free}, begin, 0, size});
    cpu::advise_huge_pages(begin, size);
  }
  Piece& piece = pieces_.back();
  std::byte* const found = piece.begin + piece.used;
  piece.used += bytes;
  used_ += bytes;
  return found;
}

void Arena::shrink(std::size_t used) noexcept {
  while (used_ > used) {
    Piece& last = pieces_.back();
    const std::size_t taken = std::min(last.used, used_ - used);
    last.used -= taken;
    used_ -= taken;
    std::fill_n(last.begin + last.used, taken, std::byte{0});
    if (last.used == 0) pieces_.pop_back();
  }
}

PackedMatrix layout_of(const Matrix& m, const Slice& s) {
  PackedMatrix packed;
  packed.rows = s.rows;
  packed.lead = s.col % m.group;
  const std::int64_t step = has_blocks(m.format) ? m.group : 2;
  packed.layout = {m.format, m.group, rounded_up(packed.lead + s.cols, step)};
  return packed;
}

void pack(const Context& context, const Matrix& m, const Slice& s, PackedMatrix& packed,
          std::byte* target) {
  const std::int64_t bytes = packed.layout.bytes();
  cpu::parallel_for(context, packed.tiles(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin * kTileRows; row < std::min(end * kTileRows, s.rows); ++row) {
      std::byte* const tile = target + row / kTileRows * bytes;
      const int lane = static_cast<int>(row % kTileRows);
      if (has_blocks(m.format)) {
        pack_blocks(m, s.row + row, s.col - packed.lead, packed.layout, lane, tile);
      } else {
        pack_floats(m, s.row + row, s, lane, tile);
      }
    }
  });
  packed.data = target;
}

void unpack_row(const PackedMatrix& matrix, std::int64_t row, float* target) {
  const TileLayout& l = matrix.layout;
  const std::byte* const tile = matrix.data + row / kTileRows * l.bytes();
  const std::int64_t lane = row % kTileRows;
  if (!has_blocks(l.format)) {
    for (std::int64_t k = 0; k < l.terms; ++k) {
      const std::int64_t at = k * kTileRows + lane;
      const std::int64_t pair = k / 2 * 2 * kTileRows + lane * 2 + k % 2;
      if (l.format == TileFormat::kFloat32) target[k] = reinterpret_cast<const float*>(tile)[at];
      if (l.format == TileFormat::kFloat16) target[k] = widen(half_at(tile, at));
      if (l.format == TileFormat::kBFloat16) {
        target[k] = widen(reinterpret_cast<const BFloat16*>(tile)[pair]);
      }
    }
    return;
  }
  for (std::int64_t g = 0; g < l.groups(); ++g) {
    const std::byte* const scales = tile + l.scales_at(g);
    const float scale = widen(half_at(scales, lane));
    const bool has_minimum = l.format == TileFormat::kInt4Minimum;
    const float minimum = has_minimum ? widen(half_at(scales, kTileRows + lane)) : 0;
    const auto* const block =
        reinterpret_cast<const std::uint8_t*>(tile + l.block_at(g)) + lane * 4;
    for (std::int64_t k = 0; k < l.group; ++k) {
      const Place place = place_of(l.format, k);
      const int byte = block[place.byte];
      const int code = l.format == TileFormat::kInt8 ? byte : (place.high ? byte >> 4 : byte & 15);
      target[g * l.group + k] = static_cast<float>(code - zero_of(l.format)) * scale + minimum;
    }
  }
}

}  // namespace transformer_kernels::decode
