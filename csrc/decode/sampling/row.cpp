// SPDX-License-Identifier: MIT
#include "decode/sampling/row.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <numeric>

namespace transformer_kernels::cpu {
namespace {

constexpr float kInfinity = Weighing::kInfinity;

// Selection by mass walks keys, of which larger ones come first, from their highest bits down.
constexpr int kBuckets = 4096;
constexpr int kFirstShift = 20;

std::uint32_t key_of(float number) {
  return key_of_bits(std::bit_cast<std::uint32_t>(number == 0 ? 0.0f : number));
}
std::int32_t signed_key_of(float number) {
  return static_cast<std::int32_t>(key_of(number) ^ kSign);
}
float number_of(std::uint32_t key) { return std::bit_cast<float>(bits_of_key(key)); }
// Smaller distances come first.
std::uint32_t key_of_distance(float distance) { return ~std::bit_cast<std::uint32_t>(distance); }
float distance_of(std::uint32_t key) { return std::bit_cast<float>(~key); }

// The bucket, from the highest down, with which the mass is reached; adds those above to `above`.
std::uint32_t bucket_of(const std::vector<std::int64_t>& histogram, std::int64_t mass,
                        std::int64_t& above) {
  std::uint32_t bucket = kBuckets - 1;
  while (bucket > 0 && above + histogram[bucket] < mass) above += histogram[bucket--];
  return bucket;
}

}  // namespace

const SamplingKernels& sampling() {
  constexpr const SamplingKernels* kTables[] = TFK_PER_ISA(sampling_kernels);
  return *kTables[static_cast<int>(isa())];
}

Row::Row(Team team, const float* z, std::int64_t count) : team_(team), z_(z), count_(count) {}

bool Row::look() {
  tops_.resize(blocks());
  std::atomic<bool> has_nan = false;
  team_.for_blocks(blocks(), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t count = std::min(end * kBlock, count_) - begin * kBlock;
    if (sampling().largest(block_of(begin), count, tops_.data() + begin)) has_nan = true;
  });
  top_ = *std::ranges::max_element(tops_);
  return has_nan;
}

std::int64_t Row::first_largest() const {
  const std::int64_t block = std::ranges::find(tops_, top_) - tops_.begin();
  return std::find(block_of(block), z_ + count_, top_) - z_;
}

std::int64_t Row::first_nan() const {
  return std::find_if(z_, z_ + count_, [](float v) { return v != v; }) - z_;
}

// A number that k at least are not less than, and hardly more of the blocks' largest. Halving
// counts without branches that depend on the numbers.
float Row::bound_of_largest(std::int64_t k) const {
  if (k > blocks()) return -kInfinity;
  std::vector<std::int32_t> keys(tops_.size());
  std::ranges::transform(tops_, keys.begin(), signed_key_of);
  std::int64_t low = *std::ranges::min_element(keys);  // k numbers are not less than it
  std::int64_t high = std::int64_t{1} + std::numeric_limits<std::int32_t>::max();
  std::int64_t count = blocks();
  while (high - low > 1 && count > k + k / 8) {
    const std::int64_t middle = (low + high) >> 1;
    const auto bound = static_cast<std::int32_t>(middle);
    std::int32_t above = 0;
    for (const std::int32_t key : keys) above += key >= bound ? 1 : 0;
    if (above >= k) {
      low = middle;
      count = above;
    } else {
      high = middle;
    }
  }
  return number_of(static_cast<std::uint32_t>(low) ^ kSign);
}

// The numbers that are not less than a bound.
Row::Part Row::part(float bound) const {
  Part part;
  for (std::int64_t block = 0; block < blocks(); ++block) {
    if (tops_[block] < bound) continue;
    float numbers[kBlock];
    std::int32_t places[kBlock];
    const std::int64_t found =
        sampling().above(block_of(block), elements(block), bound, numbers, places);
    part.numbers.insert(part.numbers.end(), numbers, numbers + found);
    for (std::int64_t i = 0; i < found; ++i) {
      part.index.push_back(static_cast<std::int32_t>(token(block * kBlock + places[i])));
    }
  }
  return part;
}

void Row::adopt(Part part) {
  kept_ = std::move(part);
  z_ = kept_.numbers.data();
  count_ = std::ssize(kept_.numbers);
  look();
}

void Row::keep_largest(std::int64_t k, bool with_impossible) {
  if (k >= count_) return;
  const float least = with_impossible ? -kInfinity : std::numeric_limits<float>::lowest();
  Part kept = part(std::max(least, bound_of_largest(k)));
  if (std::ssize(kept.numbers) > k) {
    std::vector<float> sorted = kept.numbers;
    std::ranges::nth_element(sorted, sorted.begin() + (k - 1), std::greater{});
    std::size_t left = 0;
    for (std::size_t i = 0; i < kept.numbers.size(); ++i) {
      if (kept.numbers[i] < sorted[k - 1]) continue;
      kept.numbers[left] = kept.numbers[i];
      kept.index[left++] = kept.index[i];
    }
    kept.numbers.resize(left);
    kept.index.resize(left);
  }
  adopt(std::move(kept));
}

void Row::keep_mass(const Weighing& by, std::int64_t mass) {
  constexpr std::int64_t kShare = 8;  // of the blocks is looked into
  if (blocks() < 2 * kShare) return;
  const float bound = bound_of_largest(blocks() / kShare);
  std::int64_t most = 0;
  for (std::int64_t block = 0; block < blocks(); ++block) {
    if (tops_[block] >= bound) most += sums_[block];
  }
  if (most < mass) return;
  Part kept = part(bound);
  Row smaller({}, kept.numbers.data(), std::ssize(kept.numbers));
  if (smaller.sum(by) >= mass) adopt(std::move(kept));
}

std::int64_t Row::sum(const Weighing& by) {
  sums_.resize(blocks());
  team_.for_blocks(blocks(), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t count = std::min(end * kBlock, count_) - begin * kBlock;
    sampling().sums(block_of(begin), count, by, sums_.data() + begin);
  });
  return std::reduce(sums_.begin(), sums_.end());
}

std::int64_t Row::find(const Weighing& by, std::int64_t part) const {
  std::int64_t block = 0;
  while (part >= sums_[block]) part -= sums_[block++];
  float w[kBlock];
  sampling().weigh(block_of(block), elements(block), by, w);
  std::int64_t i = 0;
  while (part >= whole_weight(w[i])) part -= whole_weight(w[i++]);
  return block * kBlock + i;
}

std::int64_t Row::moment(const Weighing& by) const {
  std::atomic<std::int64_t> sum = 0;
  team_.for_blocks(blocks(), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t count = std::min(end * kBlock, count_) - begin * kBlock;
    sum += sampling().moment(block_of(begin), count, by);
  });
  return sum;
}

template <class KeysOf>
std::uint32_t Row::last_kept(const Weighing& by, std::int64_t mass, KeysOf keys_of) const {
  const auto for_entries = [&](std::int64_t begin, std::int64_t end, auto&& body) {
    for (std::int64_t block = begin; block < end; ++block) {
      float w[kBlock];
      std::uint32_t keys[kBlock];
      sampling().weigh(block_of(block), elements(block), by, w);
      keys_of(block_of(block), elements(block), keys);
      for (std::int64_t i = 0; i < elements(block); ++i) body(Entry{keys[i], whole_weight(w[i])});
    }
  };
  std::mutex mutex;
  std::vector<std::int64_t> histogram(kBuckets);
  team_.for_blocks(blocks(), [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> own(kBuckets);
    for_entries(begin, end, [&](Entry e) { own[e.key >> kFirstShift] += e.weight; });
    const std::lock_guard lock(mutex);
    std::ranges::transform(own, histogram, histogram.begin(), std::plus{});
  });
  std::int64_t above = 0;
  std::uint32_t bucket = bucket_of(histogram, mass, above);
  std::vector<Entry> entries;
  team_.for_blocks(blocks(), [&](std::int64_t begin, std::int64_t end) {
    std::vector<Entry> own;
    for_entries(begin, end, [&](Entry e) {
      if (e.key >> kFirstShift == bucket && e.weight > 0) own.push_back(e);
    });
    const std::lock_guard lock(mutex);
    entries.insert(entries.end(), own.begin(), own.end());
  });
  for (const int shift : {8, 0}) {
    const auto part = [=](Entry e) { return e.key >> shift & (shift == 0 ? 0xff : 0xfff); };
    std::ranges::fill(histogram, 0);
    for (const Entry e : entries) histogram[part(e)] += e.weight;
    bucket = bucket_of(histogram, mass, above);
    std::erase_if(entries, [&](Entry e) { return part(e) != bucket; });
  }
  return entries.front().key;
}

float Row::least_of(const Weighing& by, std::int64_t mass) const {
  return number_of(last_kept(by, mass, [](const float* z, std::int64_t n, std::uint32_t* keys) {
    std::transform(z, z + n, keys, key_of);
  }));
}

float Row::reach_of(const Weighing& by, std::int64_t mass) const {
  return distance_of(last_kept(by, mass, [&](const float* z, std::int64_t n, std::uint32_t* keys) {
    float d[kBlock];
    sampling().distances(z, n, by, d);
    std::transform(d, d + n, keys, key_of_distance);
  }));
}

}  // namespace transformer_kernels::cpu
