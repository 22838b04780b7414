// SPDX-License-Identifier: MIT
#include "fpga/model.h"

#include <cstring>

#include "fpga/fixed_point.h"

namespace transformer_kernels::fpga {
namespace {

// Little-endian words, with zeros up to the next whole beat.
class Writer {
 public:
  Writer(std::uint8_t* out, int beat_bytes) : begin_(out), out_(out), beat_bytes_(beat_bytes) {}

  void word(std::int64_t value) {
    *out_++ = static_cast<std::uint8_t>(value);
    *out_++ = static_cast<std::uint8_t>(value >> 8);
  }
  void pad() {
    while ((out_ - begin_) % beat_bytes_ != 0) *out_++ = 0;
  }

 private:
  std::uint8_t *begin_, *out_;
  int beat_bytes_;
};

// Keys that one query sees.
std::int64_t seen_by(const Command& command, std::int64_t query) {
  if (!command.causal) return command.keys;
  return std::clamp<std::int64_t>(query + command.offset + 1, 0, command.keys);
}

std::int64_t dot(const std::int8_t* a, const std::int8_t* b, int count) {
  std::int32_t sum = 0;
  for (int i = 0; i < count; ++i) sum += std::int32_t{a[i]} * b[i];
  return sum;
}

void rescale_and_add(std::int64_t* o, const std::int8_t* v, int count, RunningSoftmax::Step step) {
  if (step.rescale == 32) std::fill_n(o, count, 0);
  const int shift = step.rescale % 32;
  for (int d = 0; d < count; ++d) o[d] = (o[d] >> shift) + std::int64_t{step.weight} * v[d];
}

std::int16_t word_at(const std::uint8_t* bytes) {
  return static_cast<std::int16_t>(bytes[0] | bytes[1] << 8);
}

}  // namespace

Model::Model(const ParameterSet& set)
    : set_(set),
      k_(static_cast<std::size_t>(set.keys) * set.head_dim),
      v_(static_cast<std::size_t>(set.keys) * set.head_dim) {}

std::uint64_t Model::run(const Command& command, std::span<const std::uint8_t> in,
                         std::span<std::uint8_t> out) {
  const std::string reason = refusal(set_, command);
  check_value(reason.empty(), "fpga: ", reason);
  check_value(static_cast<std::int64_t>(in.size()) == input_bytes(set_, command), "fpga: in has ",
              in.size(), " bytes, expected ", input_bytes(set_, command));
  check_value(static_cast<std::int64_t>(out.size()) == output_bytes(set_, command),
              "fpga: out has ", out.size(), " bytes, expected ", output_bytes(set_, command));

  const std::uint8_t* next = in.data();
  const auto fill = [&](std::vector<std::int8_t>& buffer) {
    const std::size_t bytes = static_cast<std::size_t>(command.keys) * set_.head_dim;
    std::memcpy(buffer.data(), next, bytes);
    next += bytes;
  };
  if (command.load) fill(k_);
  if (command.load && command.operation == Operation::kAttention) fill(v_);
  const auto* queries = reinterpret_cast<const std::int8_t*>(next);
  switch (command.operation) {
    case Operation::kAttention: attention(command, queries, out.data()); break;
    case Operation::kMatmul: matmul(command, queries, out.data()); break;
    case Operation::kSoftmax: softmax(command, next, out.data()); break;
  }
  return cycles(set_, command);
}

void Model::attention(const Command& command, const std::int8_t* queries, std::uint8_t* out) const {
  const int dim = set_.head_dim;
  Writer writer(out, set_.output_beat_bytes());
  std::vector<std::int64_t> o(dim);
  for (std::int64_t i = 0; i < command.queries; ++i) {
    RunningSoftmax row;
    std::fill(o.begin(), o.end(), 0);
    for (std::int64_t j = 0; j < seen_by(command, i); ++j) {
      const std::int64_t score = dot(queries + i * dim, k_.data() + j * dim, dim);
      const auto step = row.add(logit(score, command.mantissa, command.shift));
      rescale_and_add(o.data(), v_.data() + j * dim, dim, step);
    }
    const Normaliser normaliser(row.sum);
    for (const std::int64_t value : o) writer.word(normaliser.divide(value));
    if (!command.statistics) continue;
    writer.word(row.maximum);
    writer.word(row.sum);
    writer.word(row.sum >> 16);
    for (int word = 3; word < statistics_words(set_); ++word) writer.word(0);
  }
}

void Model::matmul(const Command& command, const std::int8_t* queries, std::uint8_t* out) const {
  const int dim = set_.head_dim;
  Writer writer(out, set_.output_beat_bytes());
  for (std::int64_t tile = 0; tile < command.queries; tile += set_.rows, writer.pad())
    for (std::int64_t j = 0; j < command.keys; ++j)
      for (std::int64_t i = tile; i < tile + set_.rows; ++i) {
        const std::int64_t score = dot(queries + i * dim, k_.data() + j * dim, dim);
        writer.word(score);
        writer.word(score >> 16);
      }
}

void Model::softmax(const Command& command, const std::uint8_t* in, std::uint8_t* out) const {
  Writer writer(out, set_.output_beat_bytes());
  const int rows = set_.rows;
  const std::int64_t pass_bytes =
      detail::round_up(std::int64_t{2} * rows * command.keys, set_.lanes);
  const auto logit_of = [&](const std::uint8_t* pass, std::int64_t key, int row) {
    return logit(word_at(pass + 2 * (key * rows + row)), command.mantissa, command.shift);
  };
  std::vector<RunningSoftmax> state(rows);
  for (std::int64_t tile = 0; tile < command.queries; tile += rows, in += 2 * pass_bytes) {
    std::fill(state.begin(), state.end(), RunningSoftmax{});
    for (int row = 0; row < rows; ++row)
      for (std::int64_t j = 0; j < seen_by(command, tile + row); ++j)
        state[row].add(logit_of(in, j, row));
    for (std::int64_t j = 0; j < command.keys; ++j)
      for (int row = 0; row < rows; ++row) {
        const bool seen = j < seen_by(command, tile + row);
        const std::uint32_t weight =
            seen ? state[row].weight_of(logit_of(in + pass_bytes, j, row)) : 0;
        writer.word(Normaliser(state[row].sum).share(weight));
      }
    writer.pad();
  }
}

}  // namespace transformer_kernels::fpga
