// SPDX-License-Identifier: MIT
// Forward: each range of tokens belongs to one thread. Backward: a counting sort orders the tokens
// by index, and each range of rows of the gradient belongs to one thread.
#include <algorithm>
#include <vector>

#include "core/cpu/cache.h"
#include "core/cpu/parallel.h"
#include "core/cpu/partition.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"
#include "embedding/kernels_isa.h"
#include "transformer_kernels/index_error.h"

namespace transformer_kernels::cpu {
namespace {

const EmbeddingKernels& kernels() {
  constexpr const EmbeddingKernels* kTables[] = TFK_PER_ISA(embedding_kernels);
  return *kTables[static_cast<int>(isa())];
}

// Calls body(index type) with the indices as an array of it; not where there is no array.
template <class Body>
void dispatch_indices(const EmbeddingIndices& indices, Body&& body) {
  if (indices.data == nullptr) return;
  if (indices.is_int64) {
    body(static_cast<const std::int64_t*>(indices.data));
  } else {
    body(static_cast<const std::int32_t*>(indices.data));
  }
}

void check_range(const Context& context, const char* op, const EmbeddingIndices& indices,
                 const char* table, std::int64_t rows) {
  constexpr std::int64_t kGrain = 64 * 1024;
  dispatch_indices(indices, [&](const auto* data) {
    parallel_for(context, indices.period, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t index = data[i];
        if (index >= 0 && index < rows) [[likely]]
          continue;
        throw IndexError(concat(op, ": ", indices.name, " holds ", index, ", expected a row of ",
                                table, ", which has ", rows));
      }
    });
  });
}

// ---------------------------------------------------------------------------- backward

class TokenSort {
 public:
  TokenSort(const Context& context, const EmbeddingBackwardProblem& p)
      : ends_(context, p.rows * sizeof(std::uint32_t)),
        tokens_(context, p.tokens * sizeof(std::uint32_t)) {
    auto* const ends = static_cast<std::uint32_t*>(ends_.data());
    std::fill_n(ends, p.rows, 0);
    for_each_index(p, [&](std::uint32_t, std::int64_t row) { ++ends[row]; });
    std::uint32_t begin = 0;
    for (std::int64_t row = 0; row < p.rows; ++row) {
      const std::uint32_t count = ends[row];
      for (std::int64_t i = 0; count > kPieceTokens && i < count; i += kPieceTokens) {
        pieces_.push_back({row, begin + i});
      }
      ends[row] = begin;
      begin += count;
    }
    auto* const tokens = static_cast<std::uint32_t*>(tokens_.data());
    for_each_index(p, [&](std::uint32_t token, std::int64_t row) { tokens[ends[row]++] = token; });
  }

  SortedTokens sorted() const {
    return {static_cast<const std::uint32_t*>(ends_.data()),
            static_cast<const std::uint32_t*>(tokens_.data())};
  }
  const std::vector<EmbeddingPiece>& pieces() const { return pieces_; }

 private:
  // body(token, row) in the order of tokens.
  template <class Body>
  static void for_each_index(const EmbeddingBackwardProblem& p, Body&& body) {
    const auto each = [&](auto index_of) {
      auto token = std::uint32_t{0};
      while (token < p.tokens) {
        for (std::int64_t i = 0; i < p.indices.period; ++i, ++token) {
          const std::int64_t row = index_of(i);
          if (row != p.padding_idx) body(token, row);
        }
      }
    };
    if (p.indices.data == nullptr) {
      each([&](std::int64_t i) { return p.indices.first + i; });
    }
    dispatch_indices(p.indices, [&](const auto* data) {
      each([data](std::int64_t i) { return std::int64_t{data[i]}; });
    });
  }

  Scratch ends_;
  Scratch tokens_;
  std::vector<EmbeddingPiece> pieces_;
};

}  // namespace

void check_numbers(const Context& context, const EmbeddingForwardProblem& p) {
  constexpr const char* kTableNames[] = {"weight", "position_weight", "type_weight"};
  for (int i = 0; i < p.tables; ++i) {
    check_range(context, p.op, p.table[i].indices, kTableNames[i], p.table[i].rows);
  }
}

void check_numbers(const Context& context, const EmbeddingBackwardProblem& p) {
  check_range(context, p.op, p.indices, "the gradient", p.rows);
}

void embedding_forward(const Context& context, const EmbeddingForwardProblem& p) {
  log_cpu_kernel(p.op, p);
  const EmbeddingForwardTask task{p, exceeds_cache(p.tokens * p.cols * size_of(p.dtype))};
  const auto run = kernels().forward[static_cast<int>(p.dtype)];
  parallel_for(context, p.tokens, rows_per_range(p.cols),
               [&](std::int64_t begin, std::int64_t end) { run(task, begin, end); });
}

void embedding_backward(const Context& context, const EmbeddingBackwardProblem& p) {
  log_cpu_kernel(p.op, p);
  const TokenSort sort(context, p);
  const auto dtype = static_cast<int>(p.dtype);
  const std::int64_t wide = wide_cols(p.cols);
  const std::int64_t row_bytes = wide * size_of(accumulate_dtype(p.dtype));
  const auto pieces = static_cast<std::int64_t>(sort.pieces().size());
  const Scratch sums(context, pieces * row_bytes);
  const EmbeddingBackwardTask task{.problem = p,
                                   .sorted = sort.sorted(),
                                   .stream = leaves_cache(p),
                                   .pieces = sort.pieces().data(),
                                   .piece_count = pieces,
                                   .sums = sums.data(),
                                   .wide_cols = wide};
  parallel_for(
      context, pieces, rows_per_range(p.cols * kPieceTokens),
      [&](std::int64_t begin, std::int64_t end) { kernels().sum_pieces[dtype](task, begin, end); });
  const RowUnits units{p.rows, [&](std::int64_t row) { return task.sorted.begin(row); }};
  parallel_for(
      context, units.count(), rows_per_range(p.cols), [&](std::int64_t begin, std::int64_t end) {
        RowScratch scratch(row_bytes);
        kernels().backward[dtype](task, scratch.data(), units.row_at(begin), units.row_at(end));
      });
}

}  // namespace transformer_kernels::cpu
