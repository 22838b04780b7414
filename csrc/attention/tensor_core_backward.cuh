// SPDX-License-Identifier: MIT
// The backward pass on tensor cores. With p = power(score - origin), f the factors of dropout and
// delta = sum(out * dout) - dlse of a row:
//
//   dv = (f p)^T dout     dz = p (f (dout v^T) - delta)     ds = dz * slope of the cap
//   dk = scale ds^T q     dq = scale ds k                   dbias = dz
//
// One kernel owns keys and makes dk and dv, over the queries of all heads of its group; another
// owns queries and makes dq and dbias. Both make p and ds anew: 7 products instead of 5, but each
// gradient is a sum in registers of a fixed order. One kernel for all would add up dq in memory, in
// float32, by atomics or in turns. A head dim of 256 leaves room for one gradient at a time: dv and
// dk have a kernel each, 8 products.
#pragma once

#include "attention/tensor_core_tile.cuh"
#include "core/cuda/launch.cuh"

namespace transformer_kernels::cuda {

enum class BackwardPart : std::uint8_t { kDq, kDk, kDv, kDkAndDv };

// What both kernels need of a row: the origin of its powers, and delta.
struct RowStatistics {
  float origin;
  float delta;
};

struct TensorCoreBackward {
  AttentionBackwardProblem problem;
  RowStatistics* statistics;  // in the order of lse
};

// A warp makes the statistics of a row.
template <class T>
__global__ void __launch_bounds__(256)
    tensor_core_statistics_kernel(const __grid_constant__ TensorCoreBackward a) {
  const AttentionBackwardProblem& p = a.problem;
  const std::int64_t index = (static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x) / kWarp;
  if (index >= p.rows()) return;
  const std::int64_t outer = index / p.queries;
  const std::int64_t row = index % p.queries;
  if (p.q_offsets != nullptr && row >= p.q_offsets[p.batch]) return;
  const int batch = p.q_offsets ? 0 : static_cast<int>(outer / p.heads);
  const int head = static_cast<int>(p.q_offsets ? outer : outer % p.heads);
  const GlobalRows out(p.out, batch, row, head, p.value_dim);
  const GlobalRows dout(p.dout, batch, row, head, p.value_dim);
  const int lane = threadIdx.x % kWarp;
  float sum = 0;
  if (lane * 8 < out.dim) {
    using Piece = Pack<T, 8>;
    float x[8], y[8];
    Piece::unpack(load_global_once(out.data + lane * 16), x);
    Piece::unpack(load_global_once(dout.data + lane * 16), y);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(x[i], y[i], sum);
  }
  sum = reduce_lanes<Add>(sum);
  if (lane != 0) return;
  const float lse = static_cast<const float*>(p.lse)[index];
  if (p.dlse != nullptr) sum -= static_cast<const float*>(p.dlse)[index];
  // A query that saw nothing has scores of minus infinity alone: any finite origin will do.
  a.statistics[index] = {lse == -INFINITY ? 0 : lse * Exponent<T>::kPerNatural, sum};
}

// dsinks = -sum over rows of exp(sink - lse) * delta; a CTA owns a head.
template <class T>
__global__ void __launch_bounds__(256)
    tensor_core_dsinks_kernel(const __grid_constant__ TensorCoreBackward a) {
  constexpr int kWarps = 256 / kWarp;
  const AttentionBackwardProblem& p = a.problem;
  const int head = static_cast<int>(blockIdx.x);
  const float sink = p.sinks.at(0, head, 0.0f) * Exponent<T>::kPerNatural;
  const bool packed = p.q_offsets != nullptr;
  const std::int64_t rows = packed ? p.q_offsets[p.batch] : p.queries;
  float sum = 0;
  for (std::int64_t b = 0; b < (packed ? 1 : p.batch); ++b) {
    const RowStatistics* const row = a.statistics + (b * p.heads + head) * p.queries;
    for (std::int64_t i = threadIdx.x; i < rows; i += 256) {
      sum -= Exponent<T>::power(sink - row[i].origin) * row[i].delta;
    }
  }
  __shared__ float sums[kWarps];
  sum = reduce_lanes<Add>(sum);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += sums[i];
  static_cast<float*>(p.dsinks)[head] = total;
}

template <class T>
void launch_row_statistics(const char* op, const Context& context, const TensorCoreBackward& a) {
  const std::int64_t ctas = (a.problem.rows() + 256 / kWarp - 1) / (256 / kWarp);
  launch(op, context, LaunchShape{.ctas = ctas, .threads = 256}, &tensor_core_statistics_kernel<T>,
         a);
}

template <class T>
void launch_dsinks(const char* op, const Context& context, const TensorCoreBackward& a) {
  launch(op, context, LaunchShape{.ctas = a.problem.heads, .threads = 256},
         &tensor_core_dsinks_kernel<T>, a);
}

template <class T, class Plan, BackwardPart kPart, bool kExtras>
__global__ void __launch_bounds__(Plan::tile.threads())
    tensor_core_backward_kernel(const __grid_constant__ TensorCoreBackward a) {
  constexpr bool kOwnQueries = kPart == BackwardPart::kDq;
  constexpr bool kDv = kPart == BackwardPart::kDv || kPart == BackwardPart::kDkAndDv;
  constexpr bool kDs = kPart != BackwardPart::kDv;  // dk or dq
  constexpr TensorCoreTile kTile = Plan::tile;
  constexpr int kDim = kTile.dim;
  constexpr int kRows = kTile.rows();
  constexpr int kCols = kTile.cols;
  constexpr int kThreads = kTile.threads();
  constexpr int kWarpRows = kTile.warp_rows;
  constexpr int kSlots = kWarpRows / 8;
  constexpr int kPitch = SharedRows<kDim>::kPitch;
  constexpr int kMatrixBytes = kCols * kPitch;
  using Kept = KeptScores<kWarpRows, kCols, kOwnQueries>;

  // The own q and dout (k and v), then the streamed k and v (q and dout) of two stages.
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ RowStatistics streamed_statistics[2][kOwnQueries ? 1 : kCols];
  __shared__ std::uint8_t kept_bytes[kExtras ? kTile.warps * Kept::kBytes : 1];

  const AttentionBackwardProblem& p = a.problem;
  const int group = static_cast<int>(p.group());
  const OwnBlock at(kOwnQueries ? query_blocks(p, kRows) : key_blocks(p, kRows));
  const Sequence s = p.sequence(at.batch);
  const int rows = static_cast<int>(kOwnQueries ? s.queries : s.keys);
  const int first_row = at.first;
  if (first_row >= rows) return;
  const int batch = p.q_offsets ? 0 : at.batch;
  const Band band = kOwnQueries ? Band::of_queries(p, s) : Band::of_keys(p, s);
  const int last_row = min(first_row + kRows, rows) - 1;
  const int first_tile = band.begin(first_row) / kCols;
  const int tiles = max((band.end(last_row) + kCols - 1) / kCols - first_tile, 0);
  const int steps = kOwnQueries ? tiles : tiles * group;
  const Lane lane;
  const int warp_row = first_row + lane.warp * kWarpRows;

  const auto query_head = [&](int step) {
    return kOwnQueries ? at.head : at.head * group + step / tiles;
  };
  const auto first_col_of = [&](int step) {
    return (first_tile + (kOwnQueries ? step : step % tiles)) * kCols;
  };
  const auto rows_of = [&](bool queries, bool first, int head) {
    if (queries) {
      return GlobalRows(first ? p.q : p.dout, batch, s.q_begin, head, first ? p.dim : p.value_dim);
    }
    return GlobalRows(first ? p.k : p.v, batch, s.k_begin, kOwnQueries ? head / group : at.head,
                      first ? p.dim : p.value_dim);
  };
  const std::uint32_t own = shared_address(shared);
  const std::uint32_t stages = own + 2 * kRows * kPitch;
  const auto stage = [&](int step) { return stages + step % 2 * 2 * kMatrixBytes; };
  const auto fetch = [&](int step) {
    const int head = query_head(step);
    const int col = first_col_of(step);
    copy_rows<kDim, kCols, kThreads>(stage(step), rows_of(!kOwnQueries, true, head), col,
                                     band.columns);
    copy_rows<kDim, kCols, kThreads>(stage(step) + kMatrixBytes, rows_of(!kOwnQueries, false, head),
                                     col, band.columns);
    if constexpr (!kOwnQueries) {
      static_assert(kCols <= kThreads);
      const int i = static_cast<int>(threadIdx.x);
      const bool valid = col + i < band.columns;
      if (i < kCols) {
        cp_async<8>(shared_address(&streamed_statistics[step % 2][i]),
                    a.statistics + (valid ? p.row(at.batch, head) + col + i : 0), valid);
      }
    }
    cp_async_commit_group();
  };

  RowStatistics own_statistics[kSlots] = {};
  if constexpr (kOwnQueries) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int query = warp_row + lane.row(slot);
      if (query < rows) own_statistics[slot] = a.statistics[p.row(at.batch, at.head) + query];
    }
  }
  const float grown = kExtras ? Dropout<float>(p).kept() : 1.0f;
  Fragment<kWarpRows, kDv ? kDim : 8> dv;
  Fragment<kWarpRows, kDs ? kDim : 8> dx;  // dk or dq
  dv.clear();
  dx.clear();

  copy_rows<kDim, kRows, kThreads>(own, rows_of(kOwnQueries, true, at.head), first_row, rows);
  copy_rows<kDim, kRows, kThreads>(own + kRows * kPitch, rows_of(kOwnQueries, false, at.head),
                                   first_row, rows);
  cp_async_commit_group();
  if (steps > 0) fetch(0);
  for (int step = 0; step < steps; ++step) {
    cp_async_wait_group<0>();
    __syncthreads();  // all have this step's tiles, and are done with those of the one before
    if (step + 1 < steps) fetch(step + 1);
    const int head = query_head(step);
    const int first_col = first_col_of(step);
    const HeadScores<T> head_scores(p, s, at.batch, head);
    const auto statistics = [&](int slot, int col) {
      return kOwnQueries ? own_statistics[slot] : streamed_statistics[step % 2][lane.col() + col];
    };
    const auto query_of = [&](int slot, int col) {
      return kOwnQueries ? warp_row + lane.row(slot) : first_col + lane.col() + col;
    };
    const auto key_of = [&](int slot, int col) {
      return kOwnQueries ? first_col + lane.col() + col : warp_row + lane.row(slot);
    };
    const auto sees = [&](int slot, int col) {
      const int row = warp_row + lane.row(slot);
      const int other = first_col + lane.col() + col;
      return row < rows && other >= band.begin(row) && other < band.end(row);
    };

    Fragment<kWarpRows, kCols> probability;  // q k^T at first
    Fragment<kWarpRows, kCols> ds;           // dout v^T at first
    probability.clear();
    multiply_rows<T, kDim>(probability, own + lane.warp * kWarpRows * kPitch, stage(step));
    if constexpr (kDs) {
      ds.clear();
      multiply_rows<T, kDim>(ds, own + (kRows + lane.warp * kWarpRows) * kPitch,
                             stage(step) + kMatrixBytes);
    }
    const Kept kept{kept_bytes + lane.warp * Kept::kBytes};
    const bool drops = kExtras && p.drop_below != 0;
    if (drops) {
      kept.draw(Dropout<float>(p), p.row(at.batch, head) + (kOwnQueries ? warp_row : first_col),
                kOwnQueries ? first_col : warp_row);
    }
    const bool edge = first_col < band.begin(last_row) || first_col + kCols > band.end(first_row);
    if (!kExtras && edge) {
      probability.for_each([&](float& x, int slot, int col) {
        if (!sees(slot, col)) x = -INFINITY;
      });
    }
    float* dbias = nullptr;  // of this lane's first score
    if (kOwnQueries && p.dbias.defined()) {
      dbias = static_cast<float*>(p.dbias.data) +
              p.dbias.offset(at.batch, head, query_of(0, 0), key_of(0, 0));
    }
    const float factor = kExtras ? 1.0f : head_scores.scale();
    probability.for_each([&](float& x, int slot, int col) {
      const RowStatistics row = statistics(slot, col);
      const bool dropped = drops && !kept(lane.row(slot), lane.col() + col);
      const bool seen = !kExtras || sees(slot, col);
      Score<float> score{x, 1};
      if constexpr (kExtras) {
        score.value = -INFINITY;
        if (seen) {
          score = head_scores.template score<true>(x, query_of(slot, col), key_of(slot, col));
        }
      }
      x = Exponent<T>::power(fmaf(score.value, factor, -row.origin));
      if constexpr (kDs) {
        float& d = ds(slot, col);
        const float dz = x * fmaf(dropped ? 0.0f : grown, d, -row.delta);
        if constexpr (kOwnQueries && kExtras) {
          if (seen && dbias != nullptr) {
            dbias[slot * 8 * p.dbias.row_stride + col * p.dbias.col_stride] = dz;
          }
        }
        d = dz * score.slope;
      }
      if (dropped) x = 0;
    });
    if constexpr (kDv) multiply_fragment<T>(dv, probability, stage(step) + kMatrixBytes);
    if constexpr (kDs) multiply_fragment<T>(dx, ds, stage(step));
  }
  cp_async_wait_group<0>();
  __syncthreads();  // where there was no step, the own rows may still be on their way

  // Each warp leaves over its own rows of the operands.
  unsigned char* const leave = shared + lane.warp * kWarpRows * kPitch;
  const auto target = [&](const HeadRows& to, std::int64_t dim) {
    return GlobalRows(to, batch, (kOwnQueries ? s.q_begin : s.k_begin) + warp_row, at.head, dim);
  };
  if constexpr (kDs) {
    const float scale = static_cast<float>(p.scale);
    dx.for_each([&](float& x, int, int) { x *= scale; });
    store_rows<T>(dx, leave, target(kOwnQueries ? p.dq : p.dk, p.dim), rows - warp_row);
  }
  if constexpr (kDv) {
    if constexpr (kExtras) dv.for_each([&](float& x, int, int) { x *= grown; });
    store_rows<T>(dv, leave + kRows * kPitch, target(p.dv, p.value_dim), rows - warp_row);
  }
}

template <class T, class Plan, BackwardPart kPart, bool kExtras>
void launch_tensor_core_backward(const char* op, const Context& context,
                                 const TensorCoreBackward& a) {
  constexpr TensorCoreTile kTile = Plan::tile;
  const AttentionBackwardProblem& p = a.problem;
  const std::int64_t ctas = kPart == BackwardPart::kDq
                                ? p.heads * query_blocks(p, kTile.rows()).count()
                                : p.kv_heads * key_blocks(p, kTile.rows()).count();
  if (ctas == 0) return;
  launch(op, context,
         LaunchShape{.ctas = ctas,
                     .threads = kTile.threads(),
                     .shared_bytes = static_cast<std::size_t>(kTile.shared_bytes(2, 2))},
         &tensor_core_backward_kernel<T, Plan, kPart, kExtras>, a);
}

}  // namespace transformer_kernels::cuda
