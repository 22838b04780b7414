// SPDX-License-Identifier: MIT
// A row of logits or probabilities, on the CPU. It is read in blocks, by one thread or by all. Sums
// are of whole numbers, so that who reads which block does not matter.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cpu/parallel.h"
#include "decode/sampling/kernels.h"

namespace transformer_kernels::cpu {

const SamplingKernels& sampling();

// The threads that compute a row: all where there is a context, else the caller alone.
struct Team {
  const Context* context = nullptr;

  // Calls body(first block, behind the last).
  template <class Body>
  void for_blocks(std::int64_t blocks, Body&& body) const {
    constexpr std::int64_t kPieceBlocks = 64;
    if (context == nullptr) return body(std::int64_t{0}, blocks);
    parallel_for(*context, blocks, kPieceBlocks, body);
  }
};

// Calls body(team, first row, behind the last): rows side by side, or one row by all threads.
template <class Body>
void for_rows(const Context& context, std::int64_t rows, Body&& body) {
  if (rows == 1) return body(Team{&context}, std::int64_t{0}, std::int64_t{1});
  parallel_for(context, rows, 1,
               [&](std::int64_t begin, std::int64_t end) { body(Team{}, begin, end); });
}

class Row {
 public:
  Row(Team team, const float* z, std::int64_t count);

  // Finds the largest number of each block, which top() and the filters read; returns whether there
  // is NaN.
  bool look();
  float top() const { return top_; }
  std::int64_t count() const { return count_; }

  // The place in the whole row of the number at a place of what is left.
  std::int64_t token(std::int64_t place) const {
    return kept_.index.empty() ? place : kept_.index[place];
  }
  float number(std::int64_t place) const { return z_[place]; }
  // The first place of the largest number, or of NaN.
  std::int64_t first_largest() const;
  std::int64_t first_nan() const;

  // Takes out what has k larger numbers or more. Where not all are wanted, -infinity may go as
  // well.
  void keep_largest(std::int64_t k, bool with_impossible);
  // Takes out small numbers where the others have a mass, of the last sum, without them.
  void keep_mass(const Weighing& by, std::int64_t mass);
  // Sums weights; find() reads the sums of blocks that this leaves.
  std::int64_t sum(const Weighing& by);
  // The place on which a part of the sum of the last call falls.
  std::int64_t find(const Weighing& by, std::int64_t part) const;
  // The sum of weight times its logarithm, a multiple of 2^-32.
  std::int64_t moment(const Weighing& by) const;
  // The least number, or the largest distance from the mean, that is kept where all before it have
  // less than `mass` together. The sum of all is `mass` at least.
  float least_of(const Weighing& by, std::int64_t mass) const;
  float reach_of(const Weighing& by, std::int64_t mass) const;
  // Calls body(place, weight), in order.
  template <class Body>
  void for_weights(const Weighing& by, Body&& body) const {
    for (std::int64_t block = 0; block < blocks(); ++block) {
      float w[kBlock];
      sampling().weigh(block_of(block), elements(block), by, w);
      for (std::int64_t i = 0; i < elements(block); ++i)
        body(block * kBlock + i, whole_weight(w[i]));
    }
  }

 private:
  struct Entry {
    std::uint32_t key;
    std::int64_t weight;
  };

  std::int64_t blocks() const { return (count_ + kBlock - 1) / kBlock; }
  const float* block_of(std::int64_t block) const { return z_ + block * kBlock; }
  std::int64_t elements(std::int64_t block) const {
    return std::min(kBlock, count_ - block * kBlock);
  }
  float bound_of_largest(std::int64_t k) const;
  // Some numbers of a row, with the places that they had.
  struct Part {
    std::vector<float> numbers;
    std::vector<std::int32_t> index;
  };
  Part part(float bound) const;
  void adopt(Part part);
  template <class KeysOf>
  std::uint32_t last_kept(const Weighing& by, std::int64_t mass, KeysOf keys_of) const;

  Team team_;
  const float* z_;
  std::int64_t count_;
  float top_ = 0;
  std::vector<float> tops_;         // of blocks
  std::vector<std::int64_t> sums_;  // of blocks
  Part kept_;                       // the numbers that are left; empty: all are
};

}  // namespace transformer_kernels::cpu
