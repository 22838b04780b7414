// SPDX-License-Identifier: MIT
// The backward pass on tensor cores. With p = exp(score - lse - lse_rest), f the factors of dropout
// and delta = sum(out * dout) - dlse of a row:
//
//   dv = (f p)^T dout     dz = p (f (dout v^T) - delta)     ds = dz * slope of the cap
//   dk = scale ds^T q     dq = scale ds k                   dbias = sum of dz
//
// One kernel owns keys and makes dk and dv, over the queries of all heads of its group; another
// owns queries and makes dq; bias_gradient/ has one for dbias. All recompute p and ds: 7
// products instead of 5, but each gradient is a sum in registers with a fixed order. One kernel for
// all would add up dq in memory, in float32, by atomics or in turns. A head dim of 256 leaves room
// for one gradient at a time: dv and dk have a kernel each, 8 products.
#pragma once

#include "attention/common/row_gradients.cuh"
#include "attention/sm80/scores.cuh"
#include "attention/sm80/tile.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/sm80/product.cuh"

namespace transformer_kernels::cuda {

struct TensorCoreBackward {
  AttentionBackwardProblem problem;
  const RowStatistics<float>* statistics;  // in the order of lse
};

enum class BackwardPart : std::uint8_t { kDq, kDk, kDv, kDkAndDv };

// q and dout of a head, or k and v.
template <class T>
struct OperandRows {
  GlobalRows<T> first;
  GlobalRows<T> second;

  OperandRows() = default;
  __device__ OperandRows(const AttentionBackwardProblem& p, const Sequence& s, bool queries,
                         int batch, int head)
      : first(rows_of_head<T>(queries ? p.q : p.k, p.q_offsets ? 0 : batch,
                              queries ? s.q_begin : s.k_begin, head, p.dim)),
        second(rows_of_head<T>(queries ? p.dout : p.v, p.q_offsets ? 0 : batch,
                               queries ? s.q_begin : s.k_begin, head, p.value_dim)) {}
};

// A tile of the other side of one query head. Owners of keys see all heads of their group.
struct Step {
  int head;
  int tile;

  __device__ __forceinline__ Step next(int first_tile, int end_tile) const {
    return tile + 1 < end_tile ? Step{head, tile + 1} : Step{head + 1, first_tile};
  }
};

// A warp's rows of a gradient. Of the CTA's rows in `shared` a warp writes those it alone reads.
template <class T, bool kOwnQueries, int kDim, int kRows>
__device__ __forceinline__ void store_gradient(const AttentionBackwardProblem& p,
                                               const OwnBlock& at, const HeadRows& to,
                                               std::int64_t dim, Fragment<kRows, kDim>& values,
                                               unsigned char* shared) {
  const int warp = Lane().warp;
  const Sequence s = p.sequence(at.batch);
  const int warp_row = at.first + warp * kRows;
  const GlobalRows<T> target =
      rows_of_head<T>(to, p.q_offsets ? 0 : at.batch,
                      (kOwnQueries ? s.q_begin : s.k_begin) + warp_row, at.head, dim);
  store_rows<T>(values, shared + warp * kRows * SharedRows<T, kDim>::kPitch, target,
                static_cast<int>(kOwnQueries ? s.queries : s.keys) - warp_row);
}

template <class T, class Plan, BackwardPart kPart, bool kHasFeatures>
__global__ void __launch_bounds__(Plan::tile.threads(), kBackwardCtas<T>)
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
  constexpr int kPitch = SharedRows<T, kDim>::kPitch;
  constexpr int kMatrixBytes = kCols * kPitch;
  using Kept = KeptScores<kWarpRows, kCols, kOwnQueries>;

  // The own q and dout (k and v), then the streamed k and v (q and dout) of two stages.
  extern __shared__ __align__(128) unsigned char shared[];
  // Registers are scarce: values that the loop seldom needs wait here.
  __shared__ Walk walk;
  __shared__ int end_head;
  __shared__ float grown;              // what dropout multiplies with
  __shared__ OperandRows<T> streamed;  // of the first head
  // Own ones lie first.
  __shared__ RowStatistics<float> query_statistics[2][kOwnQueries ? kRows : kCols];
  __shared__ std::uint16_t kept_words[kHasFeatures ? kTile.warps * Kept::kBytes / 2 : 1];

  const AttentionBackwardProblem& p = a.problem;
  const int group = static_cast<int>(p.group());
  const OwnBlock at(kOwnQueries ? query_blocks(p, kRows) : key_blocks(p, kRows));
  const Sequence s = p.sequence(at.batch);
  const int rows = static_cast<int>(kOwnQueries ? s.queries : s.keys);
  const int first_row = at.first;
  if (first_row >= rows) return;
  if (threadIdx.x == 0) {
    walk.begin<kRows, kCols>(at, rows, kOwnQueries ? band_of_queries(p, s) : band_of_keys(p, s));
    grown = Dropout<float>(p).kept();
    end_head = kOwnQueries ? at.head + 1 : (at.head + 1) * group;
    streamed = OperandRows<T>(p, s, !kOwnQueries, at.batch, kOwnQueries ? at.head / group : 0);
  }
  if constexpr (kOwnQueries) {
    for (int i = static_cast<int>(threadIdx.x); i < kRows; i += kThreads) {
      const int query = first_row + i;
      query_statistics[0][i] =
          query < rows ? a.statistics[p.row(at.batch, at.head) + query] : RowStatistics<float>{};
    }
  }
  __syncthreads();
  const Lane lane;

  const std::uint32_t own = shared_address(shared);
  const std::uint32_t stages = own + 2 * kRows * kPitch;
  const auto stage = [&](int parity) { return stages + parity * 2 * kMatrixBytes; };
  const auto fetch = [&](const Step& step, int parity) {
    OperandRows<T> from = streamed;
    if constexpr (!kOwnQueries) {
      constexpr int kElementBytes = sizeof(T);
      from.first.data += kElementBytes * step.head * p.q.head_stride;
      from.second.data += kElementBytes * step.head * p.dout.head_stride;
    }
    const int col = step.tile * kCols;
    copy_rows<kDim, kCols, kThreads>(stage(parity), from.first, col, walk.band.columns);
    copy_rows<kDim, kCols, kThreads>(stage(parity) + kMatrixBytes, from.second, col,
                                     walk.band.columns);
    if constexpr (!kOwnQueries) {
      static_assert(kCols <= kThreads);
      const int i = static_cast<int>(threadIdx.x);
      const bool valid = col + i < walk.band.columns;
      if (i < kCols) {
        cp_async<8>(shared_address(&query_statistics[parity][i]),
                    a.statistics + (valid ? p.row(walk.at.batch, step.head) + col + i : 0), valid);
      }
    }
    cp_async_commit_group();
  };

  Fragment<kWarpRows, kDv ? kDim : 8> dv;
  Fragment<kWarpRows, kDs ? kDim : 8> dx;  // dk or dq
  dv.clear();
  dx.clear();

  const OperandRows<T> from(p, s, kOwnQueries, at.batch, at.head);
  copy_rows<kDim, kRows, kThreads>(own, from.first, first_row, rows);
  copy_rows<kDim, kRows, kThreads>(own + kRows * kPitch, from.second, first_row, rows);
  cp_async_commit_group();
  Step step{kOwnQueries ? at.head : at.head * group, walk.first_tile};
  if (walk.first_tile >= walk.end_tile) step.head = end_head;
  if (step.head < end_head) fetch(step, 0);
  for (int parity = 0; step.head < end_head; parity ^= 1) {
    cp_async_wait_group<0>();
    __syncthreads();  // all have this step's tiles, and are done with those of the one before
    const Step next = step.next(walk.first_tile, walk.end_tile);
    if (next.head < end_head) fetch(next, parity ^ 1);
    const int warp_row = walk.at.first + lane.warp * kWarpRows;
    const int head = step.head;
    const int first_col = step.tile * kCols;
    const HeadScores<T> head_scores(p, s, at.batch, head);
    const auto statistics = [&](int slot, int col) {
      return kOwnQueries ? query_statistics[0][lane.warp * kWarpRows + lane.row(slot)]
                         : query_statistics[parity][lane.col() + col];
    };
    const ScoreBlock<T, kOwnQueries> score_block{p,
                                                 head_scores,
                                                 walk.at.batch,
                                                 head,
                                                 warp_row + lane.row(0),
                                                 first_col + lane.col(),
                                                 walk.rows,
                                                 walk.band.columns};

    Fragment<kWarpRows, kCols> probability;  // q k^T at first
    probability.clear();
    multiply_rows<T, kDim>(probability, own + lane.warp * kWarpRows * kPitch, stage(parity));
    Fragment<kWarpRows, kCols> slope;
    if constexpr (kHasFeatures) {
      slope.for_each([](float& x, int, int) { x = 1; });
      score_block.finish(probability, [&](int slot, int col, float x) { slope(slot, col) = x; });
    }
    if (!walk.all_seen(first_col, kCols)) {
      probability.for_each([&](float& x, int slot, int col) {
        if (!walk.sees(warp_row + lane.row(slot), first_col + lane.col() + col)) x = -INFINITY;
      });
    }
    const float scale = kHasFeatures ? 1.0f : head_scores.scale();
    const int first_query = kOwnQueries ? lane.warp * kWarpRows : 0;
    if (has_far_row < kOwnQueries
            ? kWarpRows
            : kCols > (query_statistics[kOwnQueries ? 0 : parity] + first_query)) {
      const std::int64_t row =
          p.row(walk.at.batch, head) + (kOwnQueries ? walk.at.first : first_col) + first_query;
      probability.for_each([&](float& x, int slot, int col) {
        const int query = kOwnQueries ? lane.row(slot) : lane.col() + col;
        const FarRow<T> of_row(p, row + query, statistics(slot, col).origin);
        x = of_row.power(rounded_product(x, scale));
      });
    } else {
      const float factor = scale * Exponent<T>::kPerNatural;
      probability.for_each([&](float& x, int slot, int col) {
        x = Exponent<T>::power(fmaf(x, factor, -statistics(slot, col).origin));
      });
    }
    const Kept kept{kept_words + lane.warp * Kept::kBytes / 2};
    const bool drops = kHasFeatures && p.drop_below != 0;
    if (drops) {
      kept.draw(Dropout<float>(p),
                p.row(walk.at.batch, head) + (kOwnQueries ? warp_row : first_col),
                kOwnQueries ? first_col : warp_row);
    }

    // The factor of (f dout v^T - delta) in ds. From here on only dv needs the probability.
    Fragment<kWarpRows, kCols> weight = probability;
    if constexpr (kHasFeatures) {
      weight.for_each([&](float& x, int slot, int col) { x *= slope(slot, col); });
    }
    if constexpr (kDv) {
      if (drops) {
        probability.for_each([&](float& x, int slot, int col) {
          if (!kept(slot, col)) x = 0;
        });
      }
      multiply_fragment<T>(dv, probability, stage(parity) + kMatrixBytes);
    }
    if constexpr (kDs) {
      Fragment<kWarpRows, kCols> ds;  // dout v^T at first
      ds.clear();
      multiply_rows<T, kDim>(ds, own + (kRows + lane.warp * kWarpRows) * kPitch,
                             stage(parity) + kMatrixBytes);
      if (drops) {
        ds.for_each([&](float& x, int slot, int col) { x = kept(slot, col) ? x * grown : 0; });
      }
      ds.for_each([&](float& x, int slot, int col) { x -= statistics(slot, col).delta; });
      ds.for_each([&](float& x, int slot, int col) { x *= weight(slot, col); });
      multiply_fragment<T>(dx, ds, stage(parity));
    }
    step = next;
  }
  cp_async_wait_group<0>();
  __syncthreads();  // where there was no step, the own rows may still be on their way

  // Each warp leaves over its own rows of the operands.
  if constexpr (kDs) {
    const float scale = static_cast<float>(p.scale);
    dx.for_each([&](float& x, int, int) { x *= scale; });
    store_gradient<T, kOwnQueries>(p, walk.at, kOwnQueries ? p.dq : p.dk, p.dim, dx, shared);
  }
  if constexpr (kDv) {
    if constexpr (kHasFeatures) dv.for_each([&](float& x, int, int) { x *= grown; });
    store_gradient<T, kOwnQueries>(p, walk.at, p.dv, p.value_dim, dv, shared + kRows * kPitch);
  }
}

template <class T, class Plan, BackwardPart kPart, bool kHasFeatures>
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
                     .shared_bytes = static_cast<std::size_t>(kTile.shared_bytes(sizeof(T), 2, 2))},
         &tensor_core_backward_kernel<T, Plan, kPart, kHasFeatures>, a);
}

}  // namespace transformer_kernels::cuda
