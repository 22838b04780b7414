// SPDX-License-Identifier: MIT
// Products of groups of rows on Hopper: the table of their tiles, which problems the engine takes,
// and those without a gate.
#include "linear/sm90/grouped_launch.cuh"

namespace transformer_kernels::cuda {
namespace groups {
namespace {

constexpr int kTableThreads = 1024;

// The sum of `number` over this thread and those before it.
__device__ int inclusive_sum(int number) {
  __shared__ int totals[kTableThreads / 32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(~0u, number, distance);
    if (lane >= distance) number += other;
  }
  __syncthreads();
  if (lane == 31) totals[warp] = number;
  __syncthreads();
  for (int i = 0; i < warp; ++i) number += totals[i];
  return number;
}

// One CTA: numbers the tiles of kTableThreads groups at a time, then each thread looks up the group
// of its tiles.
__global__ void __launch_bounds__(kTableThreads)
    number_row_tiles(const RowGroups groups, RowTile* table, int* count) {
  __shared__ int ends[kTableThreads];
  let_next_kernel_start();
  wait_for_previous_kernel();
  int begin = 0;
  for (int first = 0; first < groups.count; first += kTableThreads) {
    const int own = first + threadIdx.x;
    const int rows = own < groups.count ? groups.offsets[own + 1] - groups.offsets[own] : 0;
    ends[threadIdx.x] = begin + inclusive_sum((rows + kGroupRows - 1) / kGroupRows);
    __syncthreads();
    const int end = ends[kTableThreads - 1];
    for (int tile = begin + threadIdx.x; tile < end; tile += kTableThreads) {
      int low = 0;  // the first group that ends past the tile
      for (int high = kTableThreads - 1; low < high;) {
        const int middle = (low + high) / 2;
        if (ends[middle] > tile) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      const int within = tile - (low == 0 ? begin : ends[low - 1]);
      const int group = first + low;
      const int row = groups.offsets[group] + within * kGroupRows;
      table[tile] = {group, row, groups.offsets[group + 1] - row};
    }
    begin = end;
    __syncthreads();
  }
  if (threadIdx.x == 0) *count = begin;
}

constexpr int kDotThreads = 256;

__global__ void __launch_bounds__(kDotThreads)
    add_dots(const float* dots, std::int64_t tiles, std::int64_t rows, float* dfactors) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kDotThreads + threadIdx.x;
  wait_for_previous_kernel();
  if (row >= rows) return;
  float sum = 0;
  for (std::int64_t tile = 0; tile < tiles; ++tile) sum += __ldcg(dots + tile * rows + row);
  dfactors[row] = sum;
}

}  // namespace
}  // namespace groups

// ------------------------------------------------------------------ refusals

namespace {

const char* common_refusal(const Context& context, DType dtype, const RowGroups& groups,
                           std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // places are int
  if (device_limits(context.device.index).architecture != 90) return "needs sm_90";
  if (dtype != DType::kFloat16 && dtype != DType::kBFloat16) return "takes 16-bit dtypes";
  if (rows == 0 || cols == 0 || groups.count == 0 || groups.rows == 0) return "there are no terms";
  if (std::max({rows, cols, groups.rows}) > kMost || groups.count * cols > kMost) {
    return "more than 2^30 rows, columns or terms";
  }
  return nullptr;
}

// A row's place is counted in packs of 16 bytes, in 32 bits.
bool has_packs(const IndexedRows& rows, std::int64_t cols) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 32) - 1;
  const std::int64_t packs = rows.rows.stride / 8;
  return reinterpret_cast<std::uintptr_t>(rows.rows.data) % 16 == 0 && rows.rows.stride % 8 == 0 &&
         cols % 8 == 0 && rows.count > 0 && rows.count <= kMost / std::max<std::int64_t>(packs, 1);
}

// Rows in order come by a tensor map, which has no stride of 0.
bool fits_terms(const GroupedGradient& p, const IndexedRows& rows, std::int64_t cols) {
  return has_packs(rows, cols) &&
         (rows.index != nullptr ||
          fits_tensor_map(matrix_layout(p.dtype, rows.rows.data, cols, p.groups.rows,
                                        rows.rows.stride, 64, 64)));
}

// Results, null ones among them.
bool are_even(const GroupedProduct& p, std::initializer_list<Rows> results) {
  if (p.cols % 8 != 0) return false;
  return std::ranges::all_of(results, [&](const Rows& each) {
    return each.data == nullptr ||
           fits_tensor_map(
               matrix_layout(p.dtype, each.data, p.cols, p.groups.rows, each.stride, 32, 1));
  });
}

bool has_bias_in_pairs(const GroupedProduct& p) {
  return reinterpret_cast<std::uintptr_t>(p.bias) % (2 * size_of(p.bias_dtype)) == 0;
}

// `gathers` says whether the kernel brings rows of a one by one, whatever there is an index.
const char* refusal(const Context& context, const GroupedProduct& p, bool gathers) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (const char* reason = common_refusal(context, p.dtype, p.groups, p.terms, p.cols)) {
    return reason;
  }
  const std::int64_t tiles = p.groups.rows / kGroupRows + p.groups.count;
  if (tiles * divide_up(p.cols, std::int64_t{96}) > kMost) return "too many tiles";
  const Matrix& b = p.b.first;
  if (b.row_step != 1 && b.col_step != 1) return "elements of no row or column lie together";
  const bool a_fits =
      gathers ? has_packs(p.a, p.terms)
              : fits_tensor_map(matrix_layout(p.dtype, p.a.rows.data, p.terms, p.groups.rows,
                                              p.a.rows.stride, 64, kGroupRows));
  if (!a_fits || !fits_tensor_map(weight_layout(p, 64))) return "rows are not 16-byte aligned";
  return has_bias_in_pairs(p) ? nullptr : "bias is not in aligned pairs";
}

template <Major kMajorB, bool kGathers>
void launch_product(const Context& context, const GroupedProduct& p) {
  using namespace epilogues;
  using Shape = GemmShape<Major::kK, kMajorB, kGroupRows, kGroupCols>;
  launch_groups<Shape, kGathers>(context, p, {&p},
                                 with_tensors<Chain<AddGroupBias<>, ScaleRows>>(
                                     {{{bias_of(p)}}, {static_cast<const float*>(p.factors)}},
                                     {.results = {matrix_of(p.out)}}));
}

template <Major kMajorB>
void run_in_order(const Context& context, const GroupedProduct& p) {
  if (p.a.index != nullptr) {
    launch_product<kMajorB, true>(context, p);
  } else {
    launch_product<kMajorB, false>(context, p);
  }
}

// The gradient of x, which weights as they are kept have: its columns are theirs.
void run_added(const Context& context, const GroupedProduct& p) {
  using namespace epilogues;
  using Shape = GemmShape<Major::kK, Major::kOther, kGroupRows, kGroupCols>;
  launch_groups<Shape, false>(context, p, {&p},
                              with_tensors<Chain<ScaleRows, AddResidual>>(
                                  {{static_cast<const float*>(p.factors)}, {}},
                                  {.reads = {matrix_of(p.out)}, .results = {matrix_of(p.out)}}));
}

}  // namespace

RowTiles::RowTiles(const char* op, const Context& context, const RowGroups& groups)
    : most_(static_cast<int>(groups.rows / kGroupRows + groups.count)),
      memory_(op, context, (most_ + 1) * sizeof(RowTile)),
      table_(memory_.as<RowTile>()),
      count_(reinterpret_cast<int*>(table_ + most_)) {
  launch(op, context, {.ctas = 1, .threads = groups::kTableThreads, .after_previous = true},
         groups::number_row_tiles, groups, table_, count_);
}

void sum_dots(const char* op, const Context& context, const float* dots, std::int64_t tiles,
              std::int64_t rows, float* dfactors) {
  launch(op, context,
         {.ctas = divide_up(rows, groups::kDotThreads),
          .threads = groups::kDotThreads,
          .after_previous = true},
         groups::add_dots, dots, tiles, rows, dfactors);
}

const char* hopper_refusal(const Context& context, const GroupedProduct& p) {
  if (const char* reason = refusal(context, p, p.a.index != nullptr)) return reason;
  if (p.accumulates && (p.a.index != nullptr || major_of_b(p) == Major::kK)) {
    return "it adds to its result gathered rows, or with terms of weights together";
  }
  return are_even(p, {p.out}) ? nullptr : "rows are not 16-byte aligned";
}

const char* hopper_refusal(const Context& context, const GroupedGatedProblem& p) {
  for (const GroupedProduct* each : {&p.gate, &p.up}) {
    if (const char* reason = refusal(context, *each, true)) return reason;
    if (major_of_b(*each) != Major::kK) return "terms of a weight are not together";
  }
  return are_even(p.gate, {p.gate.out, p.up.out, p.out}) ? nullptr : "rows are not 16-byte aligned";
}

const char* hopper_refusal(const Context& context, const GroupedDgatedProblem& p) {
  if (const char* reason = refusal(context, p.product, true)) return reason;
  if (major_of_b(p.product) != Major::kOther) return "columns of the weight are not together";
  return are_even(p.product, {p.gate, p.up, p.dgate, p.dup, p.h}) ? nullptr
                                                                  : "rows are not 16-byte aligned";
}

void run_hopper(const Context& context, const GroupedProduct& p) {
  if (p.accumulates) return run_added(context, p);
  if (major_of_b(p) == Major::kK) {
    run_in_order<Major::kK>(context, p);
  } else {
    run_in_order<Major::kOther>(context, p);
  }
}

void run_hopper(const Context& context, const GroupedGatedProblem& p) {
  launch_grouped_gate(context, p);
}

void run_hopper(const Context& context, const GroupedDgatedProblem& p) {
  launch_grouped_gate(context, p);
}

// ------------------------------------------------------------------ gradients of weights

const char* hopper_refusal(const Context& context, const GroupedGradient& p) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (const char* reason = common_refusal(context, p.dtype, p.groups, p.rows, p.cols)) {
    return reason;
  }
  if (p.factors != nullptr) return "rows have factors";
  if (p.a.index != nullptr && p.b.index != nullptr) return "both operands are gathered";
  if (p.groups.count * divide_up(p.rows, 96) * divide_up(p.cols, 96) > kMost) {
    return "too many tiles";
  }
  if (!fits_terms(p, p.a, p.rows) || !fits_terms(p, p.b, p.cols))
    return "rows are not 16-byte aligned";
  const Matrix& out = p.out.first;
  if (out.row_step != 1 && out.col_step != 1) return "elements of no row or column lie together";
  const std::int64_t row_step = out.col_step == 1 ? out.row_step : out.col_step;
  const bool in_pairs =
      reinterpret_cast<std::uintptr_t>(out.data) % (2 * size_of(p.out_dtype)) == 0;
  return in_pairs && row_step % 2 == 0 && p.out.step % 2 == 0 ? nullptr
                                                              : "results are not aligned pairs";
}

}  // namespace transformer_kernels::cuda
