// SPDX-License-Identifier: MIT
// Rotations of rows, for sources that are compiled once per instruction set (core/cpu/isa.h).
//
// The angles of a block of tokens are computed first, as wide rows (core/cpu/simd.h), and stay in
// the first-level cache while all heads of these tokens are rotated. Where neighbours are a pair,
// the result is the row times the cosines, each repeated, plus the row with its pairs swapped times
// the sines, -sin and sin in turns.
#pragma once

#include "core/cpu/row_loop.h"
#include "core/cpu/scratch.h"
#include "rope/kernels_isa.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

// The angles of one token, as many as its style reads; null where no sequence holds the token.
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

// The angles of a block of tokens.
template <class T, class A = accumulate_t<T>>
class BlockAngles {
 public:
  BlockAngles(const RopeProblem& p, const RopeToken* tokens, int count)
      : pitch_(wide_cols(2 * p.angles.frequencies)),
        scratch_((2 * kTokensPerBlock + 3) * pitch_ * sizeof(A)) {
    A* const rows = static_cast<A*>(scratch_.data());
    A* const staged = rows + 2 * kTokensPerBlock * pitch_;
    const Stage<T> stage{staged, staged + pitch_, staged + 2 * pitch_};
    for (int i = 0; i < count; ++i) {
      of_[i] = {};
      if (!tokens[i].positions.rotates || p.angles.frequencies == 0) continue;
      A* const cos = rows + 2 * i * pitch_;
      A* const sin = cos + pitch_;
      if (p.angles.dtype == p.dtype) {
        widen<T>(p, tokens[i].positions, stage, cos, sin);
      } else {
        widen<A>(p, tokens[i].positions, stage, cos, sin);
      }
      of_[i] = {cos, sin};
    }
  }

  const WideAngles<A>& operator[](int i) const { return of_[i]; }

 private:
  template <class Element>
  static void widen(const RopeProblem& p, const Positions& positions, const Stage<T>& stage, A* cos,
                    A* sin) {
    const AngleTables& t = p.angles;
    const A direction = p.inverse ? -1 : 1;
    widen_row<T, Element>(t, t.cos, positions, A{1}, A{1}, stage, cos);
    widen_row<T, Element>(t, t.sin, positions, direction, A{-1}, stage, sin);
  }

  std::int64_t pitch_;
  RowScratch scratch_;
  WideAngles<A> of_[kTokensPerBlock];
};

// Numbers of a row of T on their way to T or to the type of sums, which never leaves the caches.
template <class T, class Out, class V, class Lanes>
TFK_INLINE void put_as(Out* p, V v, Lanes lanes, bool past_caches) {
  if constexpr (__is_same(Out, T)) {
    put(p, v, lanes, past_caches);
  } else {
    store(p, v, lanes);
  }
}

template <class T, class In, class Out, class A = accumulate_t<T>>
TFK_FLATTEN void rotate_halves(const In* x, Out* y, const WideAngles<A>& angles, std::int64_t half,
                               bool stream) {
  for_each_store<T>(half, [&](std::int64_t i, auto lanes) {
    const auto a = load_as<T>(x + i, lanes);
    const auto b = load_as<T>(x + half + i, lanes);
    const auto cos = load_wide<T>(angles.cos + i, lanes);
    const auto sin = load_wide<T>(angles.sin + i, lanes);
    put_as<T>(y + i, a * cos - b * sin, lanes, stream);
    put_as<T>(y + half + i, fma(a, sin, b * cos), lanes, stream);
  });
}

template <class T, class In, class Out, class A = accumulate_t<T>>
TFK_FLATTEN void rotate_pairs(const In* x, Out* y, const WideAngles<A>& angles, std::int64_t cols,
                              bool stream) {
  for_each_store<T>(cols, [&](std::int64_t i, auto lanes) {
    const auto a = load_as<T>(x + i, lanes);
    const auto cos = load_wide<T>(angles.cos + i, lanes);
    const auto sin = load_wide<T>(angles.sin + i, lanes);
    put_as<T>(y + i, fma(a, cos, swap_pairs(a) * sin), lanes, stream);
  });
}

// Rotates the first numbers of a row; how many, 0 where the token is not rotated.
template <class T, class In, class Out, class A = accumulate_t<T>>
std::int64_t rotate_first(const AngleTables& t, const In* x, Out* y, const WideAngles<A>& angles,
                          bool stream) {
  if (angles.cos == nullptr) return 0;
  if (t.interleaved) {
    rotate_pairs<T>(x, y, angles, 2 * t.frequencies, stream);
  } else {
    rotate_halves<T>(x, y, angles, t.frequencies, stream);
  }
  return 2 * t.frequencies;
}

template <class T>
T* head_row(const Heads& heads, const Token& at, std::int64_t head) {
  return static_cast<T*>(heads.data) + at.batch * heads.batch + at.time * heads.time +
         head * heads.head;
}

// Calls body(token's index, head) for all heads of a block, in the order of memory.
template <class Body>
TFK_INLINE void for_each_head(const Heads& of, std::int64_t heads, int count, Body&& body) {
  if (of.head <= of.time) {
    for (int i = 0; i < count; ++i) {
      for (std::int64_t head = 0; head < heads; ++head) body(i, head);
    }
  } else {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (int i = 0; i < count; ++i) body(i, head);
    }
  }
}

}  // namespace
}  // namespace transformer_kernels::cpu::TFK_ISA
