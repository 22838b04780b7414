// SPDX-License-Identifier: MIT
#include "linear/sm80/few_rows.cuh"

#include <algorithm>
#include <cstdlib>

#include "core/cuda/launch.cuh"
#include "core/dispatch.h"
#include "core/rounding.h"

namespace transformer_kernels::cuda {
namespace {

constexpr std::int64_t kMostTerms = std::int64_t{1} << 22;  // so that groups are found by a product

bool is_aligned(const void* data, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

// A step in elements whose bytes are counted in int.
bool is_short(std::int64_t step) { return std::abs(step) < std::int64_t{1} << 28; }

// The requirements of products with any kind of weight.
const char* refusal_of_rows(const Context& context, const Product& p) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // columns and chunks are counted in int
  if (device_limits(context.device.index).architecture < 80) return "needs sm_80";
  if (p.dtype != DType::kFloat16 && p.dtype != DType::kBFloat16) return "takes 16-bit dtypes";
  if (p.rows > kFewRows) return "there are more than 16 rows";
  if (p.terms == 0) return "there are no terms";
  if (std::max(p.terms, p.cols) > kMost) return "more than 2^30 columns or terms";
  if (p.terms % 8 != 0 || p.a.col_step != 1 || !is_aligned(p.a.data, 16) ||
      (p.rows > 1 && p.a.row_step % 8 != 0)) {
    return "rows of x are not 16-byte aligned";
  }
  return nullptr;
}

bool has_lines_of_columns(const Product& p) {
  return p.b.row_step == 1 && p.b.col_step % 8 == 0 && is_aligned(p.b.data, 16);
}
bool has_lines_of_terms(const Product& p) {
  return p.b.col_step == 1 && p.b.row_step % 4 == 0 && p.cols % 4 == 0 && is_aligned(p.b.data, 8);
}

// Part of the time that processors have work, where so many CTAs share it strip by strip.
double busy(std::int64_t strips, std::int64_t ctas) {
  return static_cast<double>(strips) / static_cast<double>(divide_up(strips, ctas) * ctas);
}

template <class Weight>
std::int64_t chunks_of(const Product& p) {
  return divide_up(p.terms, std::int64_t{4} * Weight::kLaneTerms);
}

// Warps that share the terms of a strip: the most where that keeps processors busier, and else half
// of them, so that one CTA's sums are added up while another multiplies. The rows of x do not
// count, so that their bits do not depend on how many there are.
template <class Weight>
int warps_for(const Context& context, const Product& p) {
  constexpr int kFewest = 4;
  const std::int64_t strips = divide_up(p.cols, std::int64_t{Weight::kCols});
  const std::int64_t ctas = std::int64_t{device_limits(context.device.index).processors} *
                            (kFewRowsResident<Weight, 1> / kFewRowsWarps);
  int warps = busy(strips, ctas) > busy(strips, 2 * ctas) ? kFewRowsWarps : kFewRowsWarps / 2;
  while (warps > kFewest && warps > chunks_of<Weight>(p)) warps /= 2;
  return warps;
}

template <class Weight, int kXTiles>
void launch_few_rows(const Context& context, const Product& p, int warps,
                     const typename Weight::Source& source, const FewRowsScales& scales) {
  const DeviceLimits& device = device_limits(context.device.index);
  const std::int64_t strips = divide_up(p.cols, std::int64_t{Weight::kCols});
  const int resident = kFewRowsResident<Weight, kXTiles> / warps;
  launch(p.op, context,
         {.ctas = std::min(strips, std::int64_t{device.processors} * resident),
          .threads = warps * kWarp,
          .shared_bytes = few_rows_sum_bytes<Weight, kXTiles>(warps),
          .after_previous = device.architecture >= 90},
         few_rows_kernel<Weight, kXTiles>, p,
         FewRowsSizes{.cols = static_cast<int>(p.cols),
                      .chunks = static_cast<int>(chunks_of<Weight>(p))},
         source, scales);
}

// Weights for up to 8 rows of x, and for more.
template <class Weight, class WeightOfMore = Weight>
void launch_rows(const Context& context, const Product& p, const typename Weight::Source& source,
                 const FewRowsScales& scales = {}) {
  const int warps = warps_for<Weight>(context, p);
  if (p.rows <= 8) {
    launch_few_rows<Weight, 1>(context, p, warps, source, scales);
  } else {
    launch_few_rows<WeightOfMore, 2>(context, p, warps, {source.data, source.step_bytes}, scales);
  }
}

// 1 over the chunks of a group, as FewRowsScales has it: exact up to 2^16 chunks.
std::uint32_t of_a_chunk(std::int64_t chunks) {
  constexpr std::int64_t kOne = std::int64_t{1} << 32;
  return chunks == 1 ? 0 : static_cast<std::uint32_t>(kOne / chunks + 1);
}

// Bytes of a line that a lane reads at once: four lanes' are of one group. 0: there is no such
// load.
int line_bytes(const QuantizedMatrix& weight) {
  if (weight.group % (4 * 16 * 8 / weight.bits) == 0) return 16;
  return weight.bits == 4 && weight.group % 64 == 0 ? 8 : 0;
}

}  // namespace

const char* few_rows_refusal(const Context& context, const Product& p) {
  if (const char* refusal = refusal_of_rows(context, p)) return refusal;
  if (!has_lines_of_columns(p) && !has_lines_of_terms(p)) {
    return "rows of the weight are not 16-byte aligned";
  }
  if (has_lines_of_columns(p) && !is_short(p.b.col_step)) {
    return "rows of the weight lie too far apart";
  }
  return nullptr;
}

void run_few_rows(const Context& context, const Product& p) {
  constexpr std::int64_t kBytes = 2;
  dispatch_narrow(p.dtype, [&]<class T>() {
    if (has_lines_of_columns(p)) {
      launch_rows<Lines<T, SixteenBits<T>, 16, 1>, Lines<T, SixteenBits<T>, 16, 2>>(
          context, p, {p.b.data, static_cast<int>(p.b.col_step * kBytes)});
    } else {
      launch_rows<Columns<T>>(context, p, {p.b.data, p.b.row_step * kBytes});
    }
  });
}

const char* few_rows_refusal(const Context& context, const Product& p,
                             const QuantizedMatrix& weight) {
  if (const char* refusal = refusal_of_rows(context, p)) return refusal;
  const int bytes = line_bytes(weight);
  if (bytes == 0) return "groups are no multiple of what is loaded at once";
  if (!is_aligned(weight.packed, bytes) || weight.packed_stride % bytes != 0) {
    return "rows of packed are not aligned";
  }
  if (p.terms > kMostTerms) return "rows are too long";
  if (!is_short(weight.packed_stride) || !is_short(weight.scales_stride)) {
    return "rows of packed or scales lie too far apart";
  }
  return nullptr;
}

void run_few_rows(const Context& context, const Product& p, const QuantizedMatrix& weight) {
  const int bytes = line_bytes(weight);
  const std::int64_t chunk = 4 * bytes * 8 / weight.bits;
  const FewRowsScales scales{
      .data = weight.scales,
      .step_bytes = static_cast<int>(weight.scales_stride * size_of(weight.scales_dtype)),
      .bytes = static_cast<int>(size_of(weight.scales_dtype)),
      .dtype = weight.scales_dtype,
      .groups_of_a_chunk = of_a_chunk(weight.group / chunk)};
  dispatch_narrow(p.dtype, [&]<class T>() {
    const auto run = [&]<class Numbers, int kLineBytes>() {
      using Weight = Lines<T, Numbers, kLineBytes, 2>;
      launch_rows<Weight>(context, p, {weight.packed, static_cast<int>(weight.packed_stride)},
                          scales);
    };
    if (weight.bits == 8) {
      run.template operator()<EightBits<T>, 16>();
    } else if (bytes == 16) {
      run.template operator()<FourBits<T>, 16>();
    } else {
      run.template operator()<FourBits<T>, 8>();
    }
  });
}

}  // namespace transformer_kernels::cuda
