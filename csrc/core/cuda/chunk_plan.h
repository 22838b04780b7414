// SPDX-License-Identifier: MIT
// The layout of a kernel that takes chunks of whole rows: teams of threads, and rows without gaps
// between them. Host-only, as row_plan.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/check.h"
#include "core/cuda/device.h"
#include "core/rounding.h"

namespace transformer_kernels::cuda {

struct ChunkPlan {
  int lanes;        // neighbours that share a row
  int packs;        // 16-byte packs of its row that a lane owns
  int threads;      // of a team, which takes a chunk at a time
  int teams;        // of a CTA
  int ctas;         // that share an SM at most; the registers leave room for them
  int stages;       // chunks that the ring of a team holds
  int chunk_bytes;  // of one operand; a chunk is larger where one row a group takes more

  constexpr int groups() const { return threads / lanes; }  // of a team, each with its own row
  constexpr int cta_threads() const { return threads * teams; }
  // Packs that a row may reach into. With fewer, a lane's slots between its first and its last one
  // would not all lie inside of the row.
  constexpr int most_packs() const { return lanes * packs; }
  constexpr int least_packs() const { return lanes * (packs - 2) + 3; }
};

// Packs that a row of `row_bytes` reaches into, the most over the places where rows start when the
// first one starts at a multiple of 16 bytes.
constexpr std::int64_t packs_of_row(std::int64_t row_bytes) {
  const std::int64_t step = (row_bytes | 16) & -(row_bytes | 16);  // between such places
  return row_bytes > 0 ? (row_bytes - 1 + 16 - step) / 16 + 1 : 0;
}

// Whether the compiler can keep the elements of a lane in registers, all at a time.
constexpr bool registers_hold(const ChunkPlan& plan, int element_bytes) {
  constexpr int kMostElements = 40;
  return plan.packs * 16 / element_bytes <= kMostElements;
}

// The load that a plan must fit: the matrices of one call, all of one shape.
struct ChunkLoad {
  std::int64_t rows;
  std::int64_t cols;
  int element_bytes;
  bool seamless;         // each matrix starts at a multiple of 16 bytes, without gaps between rows
  int in;                // matrices that are read
  int out;               // ... and written
  int column_bytes = 0;  // of what a kernel keeps of each column in shared memory
  bool sums_columns = false;  // parameter gradients meet in shared memory

  constexpr std::int64_t row_bytes() const { return cols * element_bytes; }
};

// Whether a matrix starts at a multiple of 16 bytes and has no gaps between its rows.
inline bool is_seamless(const void* data, std::int64_t stride, std::int64_t cols) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride == cols;
}

// ------------------------------------------------------------------ shared memory

// A table of columns (row_chunk.cuh) has a row for each element of a pack, and again for all but
// the last one. From one row to the next there is an odd number of halves of all banks, so that
// rows an odd number apart meet in different banks.
constexpr int column_pitch(const ChunkPlan& plan, int column_bytes) {
  const int half = 64 / column_bytes;
  const int places = plan.lanes * (plan.packs + 1) + 1;
  return (places - half + 2 * half - 1) / (2 * half) * (2 * half) + half;
}

constexpr int column_rows(int element_bytes) { return 2 * (16 / element_bytes) - 1; }

constexpr int column_table_bytes(const ChunkPlan& plan, int element_bytes, int column_bytes) {
  return column_bytes == 0
             ? 0
             : column_rows(element_bytes) * column_pitch(plan, column_bytes) * column_bytes;
}

// The sums of all groups of a CTA on their way to one: [group][2][column].
constexpr int fold_pitch(const ChunkPlan& plan, int element_bytes) {
  return plan.most_packs() * (16 / element_bytes) + 1;
}

inline constexpr int kChunksOut = 2;  // results of chunks that a team holds, of each output

// The part of the layout that depends on the load as well as on the plan.
struct ChunkShape {
  int rounds;       // rows of a group in a chunk
  int chunk_bytes;  // of one operand
  int table_bytes;  // in front of the ring
  int shared_bytes;
};

// Groups are so many that all of them start equally far behind a multiple of 16 bytes.
constexpr ChunkShape chunk_shape(const ChunkPlan& plan, const ChunkLoad& load) {
  const std::int64_t round_bytes = plan.groups() * load.row_bytes();
  const std::int64_t rounds = std::max<std::int64_t>(1, plan.chunk_bytes / round_bytes);
  const std::int64_t chunk_bytes = rounds * round_bytes;
  const std::int64_t ring =
      plan.teams * (load.in * plan.stages + load.out * kChunksOut) * chunk_bytes;
  const std::int64_t fold = load.sums_columns ? std::int64_t{plan.teams} * plan.groups() * 2 *
                                                    fold_pitch(plan, load.element_bytes) * 4
                                              : 0;
  const int table = column_table_bytes(plan, load.element_bytes, load.column_bytes);
  return {static_cast<int>(rounds), static_cast<int>(chunk_bytes), table,
          static_cast<int>(table + std::max(ring, fold))};
}

// CTAs that one SM holds at a time.
constexpr int resident_chunk_ctas(const ChunkPlan& plan, const ChunkShape& shape,
                                  const DeviceLimits& device) {
  constexpr int kReserved = 1024;  // by the system, in each CTA
  constexpr int kStaticBytes = 256;
  return std::min(plan.ctas, (device.shared_bytes_per_cta + kReserved) /
                                 (shape.shared_bytes + kStaticBytes + kReserved));
}

// Each CTA stays for as many chunks as come its way. Where there are few, its teams go without
// before other SMs do.
constexpr std::int64_t chunk_grid(const ChunkPlan& plan, const ChunkShape& shape,
                                  const ChunkLoad& load, const DeviceLimits& device) {
  const std::int64_t chunk_rows = std::int64_t{plan.groups()} * shape.rounds;
  const std::int64_t resident = resident_chunk_ctas(plan, shape, device);
  return std::min(resident * device.processors, divide_up(load.rows, chunk_rows));
}

// ------------------------------------------------------------------ choice

// With fewer, what counts is how soon a row starts, not how many are under way.
inline constexpr std::int64_t kFewestChunkRows = 2000;

// Null when `plan` can run `load`, and is meant for it, else why not.
constexpr const char* chunk_refusal(const ChunkPlan& plan, const ChunkLoad& load,
                                    const DeviceLimits& device) {
  // The plans are cut to sm_90's registers to the last one; elsewhere the compiler spills.
  if (device.architecture / 10 != 9) return "needs sm_90";
  if (load.element_bytes > 4) return "float64 moves single elements";
  if (load.rows < kFewestChunkRows) return "meant for more rows";
  if (load.rows >= std::int64_t{1} << 30) return "more than 2^30 rows";
  if (load.row_bytes() % 16 == 0) return "meant for rows that are not 16-byte aligned";
  if (!load.seamless) return "a matrix has gaps or is not 16-byte aligned";
  if (load.row_bytes() > 16 * plan.most_packs()) return "row is wider";
  const std::int64_t packs = packs_of_row(load.row_bytes());
  if (packs > plan.most_packs()) return "row is wider";
  if (packs < plan.least_packs()) return "row is narrower";
  if (!registers_hold(plan, load.element_bytes)) return "row is wider than its registers hold";
  if (resident_chunk_ctas(plan, chunk_shape(plan, load), device) < 1) {
    return "row is wider than shared memory";
  }
  return nullptr;
}

// Rows of a family's table may hold more than a plan.
constexpr const ChunkPlan& plan_of(const ChunkPlan& plan) { return plan; }

// "chunk l8 p4 t64x1 s3"
inline std::string name_of(const ChunkPlan& plan) {
  return concat("chunk l", plan.lanes, " p", plan.packs, " t", plan.threads, "x", plan.teams, " s",
                plan.stages);
}

}  // namespace transformer_kernels::cuda
