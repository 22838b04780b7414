// SPDX-License-Identifier: MIT
// Rotary position embedding. Compiled once per instruction set; see core/cpu/isa.h.
//
// The angles of a block of tokens are made first, as wide rows (core/cpu/simd.h), and stay in the
// first-level cache while all heads of these tokens are rotated. Where neighbours are a pair, a
// row's product with cosines, each twice, and that of its pairs swapped with sines, -sin and sin in
// turns, add up to the result.
#include "rope/rope_isa.h"
#include "core/cpu/row_loop.h"
#include "core/cpu/scratch.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

// Of one token, as many as its style reads; null where no sequence holds the token.
template <class A>
struct WideAngles {
  const A* cos;
  const A* sin;
};

// The row of a table at the token's position, or its sections of three rows, from `buffer`.
template <class Element>
const Element* table_row(const AngleTables& t, const Rows& table, const Positions& positions,
                         void* buffer) {
  const auto* const data = static_cast<const Element*>(table.data);
  if (!t.has_axes()) return data + positions.at[0] * table.stride;
  auto* const row = static_cast<Element*>(buffer);
  std::int64_t first = 0;
  for (int axis = 0; axis < kRopeAxes; ++axis) {
    const std::int64_t end = axis < kRopeAxes - 1 ? t.axis_end[axis] : t.frequencies;
    const Element* const source = data + positions.at[axis] * table.stride;
    __builtin_memcpy(row + first, source + first, (end - first) * sizeof(Element));
    first = end;
  }
  return row;
}

// Each number twice in an array in order, the first of the two times `sign`.
template <class A>
void spread(const A* in, std::int64_t count, A sign, A* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[2 * i] = sign * in[i];
    out[2 * i + 1] = in[i];
  }
}

// Memory for what is between a table's row and a wide row.
template <class T, class A = accumulate_t<T>>
struct Stage {
  void* section;
  A* plain;
  A* pairs;
};

template <class T, class Element, class A = accumulate_t<T>>
TFK_FLATTEN void widen_row(const AngleTables& t, const Rows& table, const Positions& positions,
                           A factor, A first_of_pair, const Stage<T>& stage, A* wide) {
  const Element* const row = table_row<Element>(t, table, positions, stage.section);
  if (!t.interleaved) {
    return for_each_vector<T>(t.frequencies, [&](std::int64_t i, int, auto lanes) {
      store_wide<T>(wide + i, load_as<T>(row + i, lanes) * vec_t<T>::of(factor), lanes);
    });
  }
  for_each_vector<T>(t.frequencies, [&](std::int64_t i, int, auto lanes) {
    store(stage.plain + i, load_as<T>(row + i, lanes) * vec_t<T>::of(factor), lanes);
  });
  spread(stage.plain, t.frequencies, first_of_pair, stage.pairs);
  for_each_vector<T>(2 * t.frequencies, [&](std::int64_t i, int, auto lanes) {
    store_wide<T>(wide + i, load_as<T>(stage.pairs + i, lanes), lanes);
  });
}

// The heads of one tensor.
struct Side {
  Heads in;
  Heads out;
  std::int64_t heads;
  bool stream;
};

template <class T>
bool can_stream_heads(const Heads& out, std::int64_t half) {
  return can_stream<T>(out.data, out.batch) && can_stream<T>(out.data, out.time) &&
         can_stream<T>(out.data, out.head) && half % vec_t<T>::kLanes == 0;
}

template <class T>
Side side_of(const RopeTask& task, const Heads& in, const Heads& out, std::int64_t heads) {
  const bool stream = task.stream && in.data != out.data &&
                      can_stream_heads<T>(out, task.problem.angles.frequencies);
  return {in, out, heads, stream};
}

template <class T>
T* head_row(const Heads& heads, const Token& at, std::int64_t head) {
  return static_cast<T*>(heads.data) + at.batch * heads.batch + at.time * heads.time +
         head * heads.head;
}

template <class T, class A = accumulate_t<T>>
TFK_FLATTEN void rotate_halves(const T* x, T* y, const WideAngles<A>& angles, std::int64_t half,
                               bool stream) {
  for_each_vector<T>(half, [&](std::int64_t i, int, auto lanes) {
    const auto a = load(x + i, lanes);
    const auto b = load(x + half + i, lanes);
    const auto cos = load_wide<T>(angles.cos + i, lanes);
    const auto sin = load_wide<T>(angles.sin + i, lanes);
    put(y + i, a * cos - b * sin, lanes, stream);
    put(y + half + i, fma(a, sin, b * cos), lanes, stream);
  });
}

template <class T, class A = accumulate_t<T>>
TFK_FLATTEN void rotate_pairs(const T* x, T* y, const WideAngles<A>& angles, std::int64_t cols,
                              bool stream) {
  for_each_vector<T>(cols, [&](std::int64_t i, int, auto lanes) {
    const auto a = load(x + i, lanes);
    const auto cos = load_wide<T>(angles.cos + i, lanes);
    const auto sin = load_wide<T>(angles.sin + i, lanes);
    put(y + i, fma(a, cos, swap_pairs(a) * sin), lanes, stream);
  });
}

template <class T, class A = accumulate_t<T>>
void rotate_row(const RopeTask& task, const Side& side, const Token& at, std::int64_t head,
                const WideAngles<A>& angles) {
  const T* const x = head_row<const T>(side.in, at, head);
  T* const y = head_row<T>(side.out, at, head);
  const std::int64_t rotated = angles.cos != nullptr ? task.rotary_dim : 0;
  if (rotated > 0 && task.problem.angles.interleaved) {
    rotate_pairs(x, y, angles, rotated, side.stream);
  } else if (rotated > 0) {
    rotate_halves(x, y, angles, rotated / 2, side.stream);
  }
  if (x != y && rotated < task.problem.dim) {
    __builtin_memcpy(y + rotated, x + rotated, (task.problem.dim - rotated) * sizeof(T));
  }
}

// In the order of memory.
template <class T, class A = accumulate_t<T>>
void rotate_side(const RopeTask& task, const Side& side, const RopeToken* tokens, int count,
                 const WideAngles<A>* angles) {
  if (side.in.head <= side.in.time) {
    for (int i = 0; i < count; ++i) {
      for (std::int64_t head = 0; head < side.heads; ++head) {
        rotate_row<T>(task, side, tokens[i].at, head, angles[i]);
      }
    }
  } else {
    for (std::int64_t head = 0; head < side.heads; ++head) {
      for (int i = 0; i < count; ++i) {
        rotate_row<T>(task, side, tokens[i].at, head, angles[i]);
      }
    }
  }
}

template <class T, class Element, class A = accumulate_t<T>>
void widen_tables(const RopeTask& task, const RopeToken& token, const Stage<T>& stage, A* cos,
                  A* sin) {
  const AngleTables& t = task.problem.angles;
  const A direction = task.problem.inverse ? -1 : 1;
  widen_row<T, Element>(t, t.cos, token.positions, A{1}, A{1}, stage, cos);
  widen_row<T, Element>(t, t.sin, token.positions, direction, A{-1}, stage, sin);
}

template <class T, class A = accumulate_t<T>>
void rotate(const RopeTask& task, const RopeToken* tokens, int count) {
  const RopeProblem& p = task.problem;
  const std::int64_t pitch = wide_cols(task.rotary_dim);
  RowScratch scratch((2 * kTokensPerBlock + 3) * pitch * sizeof(A));
  A* const rows = static_cast<A*>(scratch.data());
  A* const staged = rows + 2 * kTokensPerBlock * pitch;
  const Stage<T> stage{staged, staged + pitch, staged + 2 * pitch};
  WideAngles<A> angles[kTokensPerBlock];
  for (int i = 0; i < count; ++i) {
    angles[i] = {};
    if (!tokens[i].positions.rotates) continue;
    A* const cos = rows + 2 * i * pitch;
    A* const sin = cos + pitch;
    if (p.angles.dtype == p.dtype) {
      widen_tables<T, T>(task, tokens[i], stage, cos, sin);
    } else {
      widen_tables<T, A>(task, tokens[i], stage, cos, sin);
    }
    angles[i] = {cos, sin};
  }
  rotate_side<T>(task, side_of<T>(task, p.q, p.q_rotated, p.q_heads), tokens, count, angles);
  rotate_side<T>(task, side_of<T>(task, p.k, p.k_rotated, p.k_heads), tokens, count, angles);
}

}  // namespace

const RopeKernels rope_kernels = {{rotate<double>, rotate<float>, rotate<Half>, rotate<BFloat16>},
                                  stream_fence};

}  // namespace transformer_kernels::cpu::TFK_ISA
