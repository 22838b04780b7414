// SPDX-License-Identifier: MIT
// The keys that a query sees by its position, and the queries that see a key.
#include "attention/common/geometry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "attention/problem.h"

namespace transformer_kernels {
namespace {

AttentionProblem problem(std::int64_t keys) {
  AttentionProblem p{};
  p.batch = 1;
  p.queries = 20;
  p.keys = keys;
  p.window_left = p.window_right = -1;
  return p;
}

TEST(AttentionGeometry, VisibleKeysMoveWithTheQuery) {
  AttentionProblem p = problem(50);
  p.window_left = 3;
  p.window_right = 2;
  const Sequence s = p.sequence(0);
  EXPECT_EQ(p.visible(s, 10).begin, 7);
  EXPECT_EQ(p.visible(s, 10).end, 13);
  p.bottom_right = true;
  EXPECT_EQ(p.visible(s, 10).begin, 37);
  EXPECT_EQ(p.visible(s, 19).end, 50);
  EXPECT_EQ(p.visible(s, Range{10, 20}).begin, 37);
  EXPECT_EQ(p.visible(s, Range{10, 20}).end, 50);
  p.keys = 5;
  EXPECT_TRUE(p.visible(p.sequence(0), 2).empty());
}

TEST(AttentionGeometry, SeeingIsTheInverseOfVisible) {
  for (bool bottom_right : {false, true}) {
    for (auto [left, right] : {std::pair{-1, 0}, {3, -1}, {4, 2}, {0, 0}, {-1, -1}}) {
      AttentionProblem p = problem(31);
      p.window_left = left;
      p.window_right = right;
      p.bottom_right = bottom_right;
      const Sequence s = p.sequence(0);
      for (std::int64_t key = 0; key < s.keys; ++key) {
        const Range seeing = p.seeing(s, Range{key, key + 1});
        for (std::int64_t query = 0; query < s.queries; ++query) {
          const Range seen = p.visible(s, query);
          EXPECT_EQ(query >= seeing.begin && query < seeing.end,
                    key >= seen.begin && key < seen.end);
        }
      }
    }
  }
}

// A window of a problem whose sequences have these lengths; causal is {-1, 0}.
struct BandCase {
  int queries;
  int keys;
  bool bottom_right;
  int left;
  int right;

  AttentionProblem problem() const {
    AttentionProblem p{};
    p.batch = 1;
    p.queries = queries;
    p.keys = keys;
    p.bottom_right = bottom_right;
    p.window_left = left;
    p.window_right = right;
    return p;
  }
  cuda::Band of_queries() const {
    const AttentionProblem p = problem();
    return cuda::band_of_queries(p, p.sequence(0));
  }
  cuda::Band of_keys() const {
    const AttentionProblem p = problem();
    return cuda::band_of_keys(p, p.sequence(0));
  }

  // The definition.
  bool sees(int query, int key) const {
    const int place = key - query - (bottom_right ? keys - queries : 0);
    return (left < 0 || place >= -left) && (right < 0 || place <= right);
  }
};

template <class Check>
void for_each_band(Check&& check) {
  for (auto [queries, keys] : {std::pair{20, 20}, {20, 31}, {31, 20}, {1, 40}, {40, 1}, {7, 0}}) {
    for (bool bottom_right : {false, true}) {
      for (auto [left, right] :
           {std::pair{-1, -1}, {-1, 0}, {0, -1}, {0, 0}, {3, -1}, {4, 2}, {0, 9}, {100, 100}}) {
        SCOPED_TRACE(std::to_string(queries) + "x" + std::to_string(keys) + " window " +
                     std::to_string(left) + ", " + std::to_string(right) +
                     (bottom_right ? " from the end" : " from the begin"));
        check(BandCase{queries, keys, bottom_right, left, right});
      }
    }
  }
}

bool holds(int begin, int end, int place) { return place >= begin && place < end; }

TEST(AttentionBand, BoundsAreThoseOfTheDefinition) {
  for_each_band([](const BandCase& c) {
    const cuda::Band band = c.of_queries();
    const cuda::Band of_keys = c.of_keys();
    for (int query = 0; query < c.queries; ++query) {
      EXPECT_GE(band.begin(query), 0);
      EXPECT_LE(band.begin(query), band.end(query));
      EXPECT_LE(band.end(query), c.keys);
      for (int key = 0; key < c.keys; ++key) {
        const bool sees = c.sees(query, key);
        EXPECT_EQ(holds(band.begin(query), band.end(query), key), sees);
        EXPECT_EQ(holds(band.first(query), band.last(query) + 1, key), sees);
        EXPECT_EQ(holds(band.first_row(key), band.last_row(key) + 1, query), sees);
        EXPECT_EQ(holds(of_keys.begin(key), of_keys.end(key), query), sees);
      }
    }
  });
}

TEST(AttentionBand, TransposedItIsTheBandOfKeys) {
  for_each_band([](const BandCase& c) {
    const cuda::Band of_keys = c.of_keys();
    const cuda::Band transposed = c.of_queries().transposed(c.queries);
    EXPECT_EQ(transposed.shift, of_keys.shift);
    EXPECT_EQ(transposed.back, of_keys.back);
    EXPECT_EQ(transposed.ahead, of_keys.ahead);
    EXPECT_EQ(transposed.columns, of_keys.columns);
  });
}

TEST(AttentionBand, SpansOfRowsSeeWhatAnyOrAllOfThemDo) {
  constexpr int kSpan = 6;
  for_each_band([](const BandCase& c) {
    const cuda::Band band = c.of_queries();
    for (int from = 0; from < c.queries; ++from) {
      const int through = std::min(from + kSpan, c.queries) - 1;
      const cuda::IntRange any = band.seen_by_any(from, through);
      const cuda::IntRange all = band.seen_by_all(from, through);
      for (int key = 0; key < c.keys; ++key) {
        int seeing = 0;
        for (int query = from; query <= through; ++query) seeing += c.sees(query, key) ? 1 : 0;
        EXPECT_EQ(holds(any.begin, any.end, key), seeing > 0);
        EXPECT_EQ(holds(all.begin, all.end, key), seeing == through - from + 1);
      }
    }
  });
}

TEST(AttentionBand, SequencesNextToNoBoundDoNotOverflow) {
  constexpr int kRows = cuda::kNoBound - 1;
  for (bool bottom_right : {false, true}) {
    for (auto [queries, keys] : {std::pair{kRows, kRows}, {kRows, 1}, {1, kRows}}) {
      for (std::int64_t window : {std::int64_t{-1}, std::int64_t{1} << 40}) {
        AttentionProblem p = BandCase{queries, keys, bottom_right, -1, -1}.problem();
        p.window_left = p.window_right = window;
        const cuda::Band band = cuda::band_of_queries(p, p.sequence(0));
        for (int query : {0, queries - 1}) {
          EXPECT_EQ(band.begin(query), 0);
          EXPECT_EQ(band.end(query), keys);
        }
      }
    }
  }
}

}  // namespace
}  // namespace transformer_kernels
