// SPDX-License-Identifier: MIT
// Calls of attention over a cache that the kernels of all devices are checked with.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/decode/cache_run.h"

namespace transformer_kernels::testing {

inline std::vector<CacheCase> cases_of_groups_and_rows() {
  std::vector<CacheCase> cases;
  for (std::int64_t kv_heads : {1, 3, 6}) {
    for (std::int64_t queries : {1, 2, 3, 7, 16}) {
      cases.push_back({.lengths = {0, 5, 90},
                       .queries = queries,
                       .added = queries,
                       .heads = 6,
                       .kv_heads = kv_heads,
                       .page = 16,
                       .capacity = 112});
    }
  }
  return cases;
}

inline std::vector<CacheCase> cases_of_unequal_queries_and_new_tokens() {
  return {{.lengths = {0, 1, 3, 40}, .queries = 5, .added = 1},  // more queries than keys
          {.lengths = {0, 1, 3, 40}, .queries = 2, .added = 5, .causal = false},
          {.lengths = {0, 1, 3, 40}, .queries = 3, .added = 0}};
}

inline std::vector<CacheCase> cases_of_rotations() {
  std::vector<CacheCase> cases;
  for (bool interleaved : {false, true}) {
    for (std::int64_t frequencies : {1, 5, 8}) {
      cases.push_back({.lengths = {0, 9, 50},
                       .queries = 3,
                       .added = 3,
                       .page = 16,
                       .frequencies = frequencies,
                       .interleaved = interleaved});
    }
  }
  return cases;
}

inline std::vector<CacheCase> cases_of_features() {
  std::vector<CacheCase> cases;
  for (std::int64_t left : {-1, 0, 1, 70, 1000}) {
    cases.push_back({.lengths = {0, 90, 400},
                     .queries = 3,
                     .added = 3,
                     .page = 16,
                     .capacity = 416,
                     .left = left});
    cases.push_back(
        {.lengths = {0, 90, 400}, .queries = 40, .added = 40, .capacity = 440, .left = left});
  }
  CacheCase c{.lengths = {0, 70, 300}, .queries = 2, .added = 2, .page = 16, .capacity = 304};
  for (bool with_rope : {false, true}) {
    c.frequencies = with_rope ? 8 : 0;
    for (int feature = 0; feature < 4; ++feature) {
      c.softcap = feature == 0 || feature == 3 ? 2 : 0;
      c.slopes = feature == 1 || feature == 3;
      c.sinks = feature == 2 || feature == 3;
      c.left = feature == 3 ? 50 : -1;
      cases.push_back(c);
    }
  }
  return cases;
}

}  // namespace transformer_kernels::testing
