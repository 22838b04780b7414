// SPDX-License-Identifier: MIT
// Embeddings: copies and sums of rows. Compiled once per instruction set; see core/cpu/isa.h.
#include "embedding/kernels_isa.h"

#include "core/cpu/partition.h"
#include "core/cpu/row_loop.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

// ---------------------------------------------------------------------------- forward

std::int64_t index_of(const EmbeddingIndices& indices, std::int64_t token) {
  const std::int64_t i = indices.period == 1 ? 0 : token % indices.period;
  if (indices.data == nullptr) return indices.first + i;
  return indices.is_int64 ? static_cast<const std::int64_t*>(indices.data)[i]
                          : static_cast<const std::int32_t*>(indices.data)[i];
}

template <class T>
const T* table_row(const EmbeddingTable& table, std::int64_t token) {
  return row_of<const T>(table.weight, index_of(table.indices, token));
}

// A row as it is, bit by bit. Rows lie anywhere, so that no processor guesses the next one: it is
// fetched meanwhile.
TFK_FLATTEN void copy_row(const char* from, const char* next, char* to, std::int64_t bytes,
                          bool past_caches) {
  const auto* source = reinterpret_cast<const float*>(from);
  auto* const target = reinterpret_cast<float*>(to);
  const std::int64_t floats = bytes / sizeof(float);
  for_each_vector<float>(
      floats,
      [&](std::int64_t i, int, auto lanes) {
        put(target + i, load(source + i, lanes), lanes, past_caches);
      },
      PrefetchRow<float>{reinterpret_cast<const float*>(next)});
  const std::int64_t done = floats * sizeof(float);
  __builtin_memcpy(to + done, from + done, bytes - done);
}

template <class T>
TFK_FLATTEN void add_rows(const T* a, const T* b, const T* c, const T* next_a, T* y,
                          std::int64_t cols, bool past_caches) {
  for_each_store<T>(
      cols,
      [&](std::int64_t i, auto lanes) {
        auto sum = load(a + i, lanes) + load(b + i, lanes);
        if (c != nullptr) sum = sum + load(c + i, lanes);
        put(y + i, sum, lanes, past_caches);
      },
      PrefetchRow<T>{next_a});
}

template <class T>
void forward(const EmbeddingForwardTask& task, std::int64_t begin, std::int64_t end) {
  const EmbeddingForwardProblem& p = task.problem;
  const bool stream = task.stream && can_stream<T>(p.y.data, p.y.stride);
  const bool stream_copies = task.stream && p.y.stride * sizeof(T) % 64 == 0 &&
                             reinterpret_cast<std::uintptr_t>(p.y.data) % 64 == 0;
  const T* next = begin < end ? table_row<T>(p.table[0], begin) : nullptr;
  for (std::int64_t token = begin; token < end; ++token) {
    T* const y = row_of<T>(p.y, token);
    const T* const a = next;
    if (token + 1 < end) next = table_row<T>(p.table[0], token + 1);
    if (p.tables == 1) {
      copy_row(reinterpret_cast<const char*>(a), reinterpret_cast<const char*>(next),
               reinterpret_cast<char*>(y), p.cols * sizeof(T), stream_copies);
    } else {
      const T* const c = p.tables == 3 ? table_row<T>(p.table[2], token) : nullptr;
      add_rows(a, table_row<T>(p.table[1], token), c, next, y, p.cols, stream);
    }
  }
  stream_fence();
}

// ---------------------------------------------------------------------------- backward

// Adds `count` >= 1 rows in order: four at a time, as many streams from memory, to a wide row, and
// the last of them into `finish(column, sum, lanes)`. row(k) gives the loader of row k.
template <class T, class Row, class Finish>
TFK_FLATTEN void sum_rows(std::int64_t count, std::int64_t cols, accumulate_t<T>* scratch, Row row,
                          Finish finish) {
  using V = vec_t<T>;
  const auto add = [&]<int kRows>(std::int64_t first) {
    decltype(row(0)) rows[kRows];
    for (int k = 0; k < kRows; ++k) rows[k] = row(first + k);
    const bool last = first + kRows == count;
    for_each_vector<T>(cols, [&](std::int64_t i, int, auto lanes) {
      V sum = first == 0 ? V::of(-0.0f) : load_wide<T>(scratch + i, lanes);
#pragma GCC unroll 4
      for (int k = 0; k < kRows; ++k) sum = sum + rows[k](i, lanes);
      if (last) {
        finish(i, sum, lanes);
      } else {
        store_wide<T>(scratch + i, sum, lanes);
      }
    });
  };
  std::int64_t done = 0;
  for (; done + 4 <= count; done += 4) add.template operator()<4>(done);
  for (; done < count; ++done) add.template operator()<1>(done);
}

template <class T>
struct GradientRow {
  const T* row;
  template <class Lanes>
  TFK_INLINE vec_t<T> operator()(std::int64_t i, Lanes lanes) const {
    return load(row + i, lanes);
  }
};
template <class T>
struct WideRow {
  const accumulate_t<T>* row;
  template <class Lanes>
  TFK_INLINE vec_t<T> operator()(std::int64_t i, Lanes lanes) const {
    return load_wide<T>(row + i, lanes);
  }
};

template <class T>
auto gradient_rows(const EmbeddingBackwardTask& task, std::int64_t begin) {
  return [&task, tokens = task.sorted.tokens + begin](std::int64_t k) {
    return GradientRow<T>{row_of<const T>(task.problem.dy, tokens[k])};
  };
}

template <class T>
accumulate_t<T>* sums_of(const EmbeddingBackwardTask& task, std::int64_t piece) {
  return static_cast<accumulate_t<T>*>(task.sums) + piece * task.wide_cols;
}

template <class T>
void sum_pieces(const EmbeddingBackwardTask& task, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    const EmbeddingPiece& piece = task.pieces[i];
    const std::int64_t left = task.sorted.ends[piece.row] - piece.begin;
    accumulate_t<T>* const sums = sums_of<T>(task, i);
    sum_rows<T>(left < kPieceTokens ? left : kPieceTokens, task.problem.cols, sums,
                gradient_rows<T>(task, piece.begin), [&](std::int64_t col, auto sum, auto lanes) {
                  store_wide<T>(sums + col, sum, lanes);
                });
  }
}

// The first piece of a row that has some: pieces are in the order of rows.
std::int64_t first_piece(const EmbeddingBackwardTask& task, std::int64_t row) {
  return first_not(task.piece_count, [&](std::int64_t i) { return task.pieces[i].row < row; });
}

template <class T>
TFK_FLATTEN void clear_row(T* to, std::int64_t cols, bool past_caches) {
  if (!past_caches) {
    __builtin_memset(to, 0, cols * sizeof(T));
    return;
  }
  for_each_vector<T>(cols, [&](std::int64_t i, int, auto lanes) {
    StreamingStore::put(to + i, vec_t<T>::of(0), lanes);
  });
}

template <class T>
void backward(const EmbeddingBackwardTask& task, void* scratch, std::int64_t begin,
              std::int64_t end) {
  using A = accumulate_t<T>;
  const EmbeddingBackwardProblem& p = task.problem;
  const bool stream = task.stream && can_stream<T>(p.dweight.data, p.dweight.stride);
  A* const partial = static_cast<A*>(scratch);
  for (std::int64_t row = begin; row < end; ++row) {
    T* const to = row_of<T>(p.dweight, row);
    const std::int64_t count = task.sorted.count(row);
    if (count == 0) {
      clear_row(to, p.cols, stream);
      continue;
    }
    const A scale = p.scale_grad_by_freq ? A{1} / static_cast<A>(count) : A{1};
    const auto finish = [&](std::int64_t i, auto sum, auto lanes) {
      put(to + i, sum * vec_t<T>::of(scale), lanes, stream);
    };
    if (count <= kPieceTokens) {
      sum_rows<T>(count, p.cols, partial, gradient_rows<T>(task, task.sorted.begin(row)), finish);
    } else {
      const std::int64_t first = first_piece(task, row);
      sum_rows<T>((count + kPieceTokens - 1) / kPieceTokens, p.cols, partial,
                  [&](std::int64_t k) { return WideRow<T>{sums_of<T>(task, first + k)}; }, finish);
    }
  }
  stream_fence();
}

}  // namespace

const EmbeddingKernels embedding_kernels = {
    {forward<double>, forward<float>, forward<Half>, forward<BFloat16>},
    {sum_pieces<double>, sum_pieces<float>, sum_pieces<Half>, sum_pieces<BFloat16>},
    {backward<double>, backward<float>, backward<Half>, backward<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
