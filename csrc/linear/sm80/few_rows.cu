// SPDX-License-Identifier: MIT
#include "linear/sm80/few_rows.cuh"

#include <algorithm>

#include "core/cuda/launch.cuh"
#include "core/dispatch.h"
#include "core/rounding.h"
#include "linear/cuda/few_rows.cuh"

namespace transformer_kernels::cuda {
namespace {

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
                     const typename Weight::Source& source, const GroupScales& scales) {
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
                 const GroupScales& scales = {}) {
  const int warps = warps_for<Weight>(context, p);
  if (p.rows <= 8) {
    launch_few_rows<Weight, 1>(context, p, warps, source, scales);
  } else {
    launch_few_rows<WeightOfMore, 2>(context, p, warps, {source.data, source.step_bytes}, scales);
  }
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
  const GroupScales scales = scales_of(weight, chunk);
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
