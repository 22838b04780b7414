// SPDX-License-Identifier: MIT
#include "linear/sm90/streamed_rows.cuh"

#include "core/cuda/launch.cuh"
#include "core/dispatch.h"
#include "core/rounding.h"
#include "linear/cuda/few_rows.cuh"
#include "linear/sm90/layouts.cuh"

namespace transformer_kernels::cuda {
namespace {

// Up to 8 rows of bfloat16 leave half of a processor to the next launch. That was not run with
// float16, and the sums of 16 rows take too many registers.
template <class T, class Numbers, int kXTiles>
using ShapeOf =
    StreamedShape<T, Numbers, kXTiles, 8, 8, kXTiles == 1 && std::is_same_v<T, BFloat16> ? 2 : 1>;

// The weight's lines, of `bytes` bytes, as TMA reads them: once, and a block at a time.
TensorMapLayout lines_of(const Product& p, DType dtype, const void* data, std::int64_t elements,
                         std::int64_t step) {
  TensorMapLayout layout =
      matrix_layout(dtype, const_cast<void*>(data), elements, p.cols, step,
                    kStreamedLineBytes / static_cast<int>(size_of(dtype)), kStreamedTile);
  layout.is_promoted = false;
  return layout;
}
TensorMapLayout lines_of(const Product& p) {
  return lines_of(p, p.dtype, p.b.data, p.terms, p.b.col_step);
}
TensorMapLayout lines_of(const Product& p, const QuantizedMatrix& weight) {
  return lines_of(p, DType::kUInt8, weight.packed, p.terms * weight.bits / 8, weight.packed_stride);
}
TensorMapLayout rows_of_x(const Product& p) {
  return matrix_layout(p.dtype, p.a.data, p.terms, p.rows, p.a.row_step, kStreamedXBox, 8);
}

template <class Shape>
void launch_shape(const Context& context, const Product& p, const TensorMapLayout& weight,
                  const GroupScales& scales, std::int64_t groups) {
  const std::int64_t tiles = divide_up(p.cols, std::int64_t{kStreamedTile});
  const std::int64_t processors = device_limits(context.device.index).processors;
  launch(
      p.op, context,
      {.ctas = std::min(tiles, processors),
       .threads = Shape::kThreads,
       .shared_bytes = sizeof(typename Shape::Storage),
       .after_previous = true},
      streamed_rows_kernel<Shape>,
      StreamedRows{.weight = encode_tensor_map(p.op, weight),
                   .x = encode_tensor_map(p.op, rows_of_x(p)),
                   .product = p,
                   .scales = scales,
                   .groups = static_cast<int>(groups),
                   .tiles = static_cast<int>(tiles),
                   .blocks = static_cast<int>(divide_up(p.terms, std::int64_t{Shape::kBlockTerms})),
                   .prefetched = Shape::kSlots});
}

template <class T, class Numbers>
void launch_rows(const Context& context, const Product& p, const TensorMapLayout& weight,
                 const GroupScales& scales = {}, std::int64_t groups = 0) {
  if (p.rows <= 8) {
    launch_shape<ShapeOf<T, Numbers, 1>>(context, p, weight, scales, groups);
  } else {
    launch_shape<ShapeOf<T, Numbers, 2>>(context, p, weight, scales, groups);
  }
}

const char* refusal_of_streams(const Context& context, const Product& p) {
  if (device_limits(context.device.index).architecture != 90) return "needs sm_90";
  if (const char* refusal = refusal_of_rows(context, p)) return refusal;
  if (!fits_tensor_map(rows_of_x(p))) return "rows of x are not 16-byte aligned";
  return nullptr;
}

// Terms of a chunk, which is of one group: a piece of each of four lanes.
std::int64_t chunk_of(const QuantizedMatrix& weight) { return 4 * 16 * 8 / weight.bits; }

}  // namespace

const char* streamed_rows_refusal(const Context& context, const Product& p) {
  if (const char* refusal = refusal_of_streams(context, p)) return refusal;
  if (!has_lines_of_columns(p)) return "terms of the weight are not together";
  if (!fits_tensor_map(lines_of(p))) return "rows of the weight are not 16-byte aligned";
  return nullptr;
}

void run_streamed_rows(const Context& context, const Product& p) {
  dispatch_narrow(p.dtype,
                  [&]<class T>() { launch_rows<T, SixteenBits<T>>(context, p, lines_of(p)); });
}

const char* streamed_rows_refusal(const Context& context, const Product& p,
                                  const QuantizedMatrix& weight) {
  if (const char* refusal = refusal_of_streams(context, p)) return refusal;
  if (weight.group % chunk_of(weight) != 0) {
    return "groups are no multiple of what is multiplied at once";
  }
  if (!fits_tensor_map(lines_of(p, weight))) return "rows of packed are not 16-byte aligned";
  if (!has_whole_words(weight)) return "rows of scales are not 4-byte aligned";
  if (p.terms > kMostTerms) return "rows are too long";
  if (!is_short(weight.scales_stride)) return "rows of scales lie too far apart";
  return nullptr;
}

void run_streamed_rows(const Context& context, const Product& p, const QuantizedMatrix& weight) {
  const GroupScales scales = scales_of(weight, chunk_of(weight));
  const std::int64_t groups = p.terms / weight.group;
  dispatch_narrow(p.dtype, [&]<class T>() {
    if (weight.bits == 8) {
      launch_rows<T, EightBits<T>>(context, p, lines_of(p, weight), scales, groups);
    } else {
      launch_rows<T, FourBits<T>>(context, p, lines_of(p, weight), scales, groups);
    }
  });
}

}  // namespace transformer_kernels::cuda
