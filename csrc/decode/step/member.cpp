// SPDX-License-Identifier: MIT
#include "decode/step/member.h"

#include <algorithm>
#include <cstring>

namespace transformer_kernels::decode {
namespace {

// The first position that the row at `position` sees.
std::int64_t first_seen(std::int64_t window, std::int64_t position) {
  return window > 0 ? std::max<std::int64_t>(0, position + 1 - window) : 0;
}

}  // namespace

Member::Member(Workshop& shop, const StepKernels& kernels, const Rows& rows, cpu::Gang& gang,
               int rank)
    : s_(shop),
      p_(shop.plan->state()),
      m_(p_.model),
      kernels_(kernels),
      rows_(rows),
      gang_(gang),
      own_(shop.members[rank]),
      begin_(rank * p_.shares.size() / gang.size()),
      end_((rank + 1) * p_.shares.size() / gang.size()) {}

// A partial sum of one kind is written again only when every member has passed the barrier of the
// other kind, and so has read it.
void Member::run() {
  embed();
  for (std::size_t layer = 0; layer < p_.layers.size(); ++layer) {
    attention(layer);
    gang_.barrier();
    add_partials(0);
    mlp(layer);
    gang_.barrier();
    add_partials(1);
  }
  if (!rows_.outputs.empty()) logits();
}

void Member::embed() {
  for (std::int64_t r = 0; r < rows_.count(); ++r) {
    const std::int64_t token = rows_.tokens[r];
    std::size_t part = 0;
    while (token >= p_.shares[part].tokens.end) ++part;
    float* const x = own_.x + r * s_.wide;
    unpack_row(p_.embedding_of(part), token - p_.shares[part].tokens.begin, x);
    if (m_.embedding_scale != 1) {
      kernels_.multiply(x, static_cast<float>(m_.embedding_scale), m_.hidden, x);
    }
  }
}

// y = norm(x) of all rows.
void Member::normalize(const std::vector<float>& weight) {
  for (std::int64_t r = 0; r < rows_.count(); ++r) normalize(weight, r, y_row(r));
}

void Member::normalize(const std::vector<float>& weight, std::int64_t row, float* y) {
  kernels_.norm(own_.x + row * s_.wide, weight.data(), m_.hidden, static_cast<float>(m_.eps), y);
  std::fill(y + m_.hidden, y + s_.wide, 0.0f);
  coded_ = 0;
}

void Member::multiply(const PackedMatrix& matrix, std::int64_t rows, float* out,
                      std::int64_t stride) {
  if (matrix.rows == 0) return;
  const TileLayout& layout = matrix.layout;
  if (has_blocks(layout.format) && coded_ != layout.group) {
    const auto quantize = kernels_.quantize[rows_.exact ? 0 : 1];
    for (std::int64_t r = 0; r < rows; ++r) quantize(own_.a, r, layout.terms, layout.group);
    coded_ = layout.group;
  }
  const auto product = kernels_.product[static_cast<int>(layout.format)][rows_.exact ? 0 : 1];
  product({matrix, own_.a, rows, out, stride});
}

void Member::add_partials(int which) {
  for (std::size_t part = 0; part < p_.shares.size(); ++part) {
    const Share& share = p_.shares[part];
    if ((which == 0 ? share.heads : share.units).count() == 0) continue;
    kernels_.add(own_.x, s_.parts[part].partial[which], rows_.count() * s_.wide);
  }
}

// ---- attention ----------------------------------------------------------------------------------

void Member::attention(std::size_t layer) {
  const PackedLayer& l = p_.layers[layer];
  normalize(l.attention_norm);
  for (std::size_t part = begin_; part < end_; ++part) project(layer, part);
  for (std::size_t part = begin_; part < end_; ++part) {
    const PackedMatrix& o = l.parts[part].o;
    if (o.rows == 0) continue;
    for (const Run& run : rows_.runs) attend(layer, part, run);
    gather_heads(part, o.lead, o.layout.terms);
    multiply(o, rows_.count(), s_.parts[part].partial[0], s_.wide);
  }
}

// Queries, keys and values of a part; keys and values go to the cache.
void Member::project(std::size_t layer, std::size_t part) {
  const PartOfLayer& w = p_.layers[layer].parts[part];
  const PartMemory& own = s_.parts[part];
  multiply(w.q, rows_.count(), own.q, w.q.padded_rows());
  multiply(w.k, rows_.count(), own.k, w.k.padded_rows());
  multiply(w.v, rows_.count(), own.v, w.v.padded_rows());
  for (const Run& run : rows_.runs) {
    for (std::int64_t r = run.begin; r < run.end; ++r) append(layer, part, run, r);
  }
}

void Member::append(std::size_t layer, std::size_t part, const Run& run, std::int64_t row) {
  const PartOfLayer& w = p_.layers[layer].parts[part];
  const PartMemory& own = s_.parts[part];
  const std::int64_t position = run.position + row - run.begin;
  finish_heads(p_.layers[layer], part, row, position);
  Half* const block = s_.share_of(run.blocks[position / kBlockPositions], layer, part);
  for (std::int64_t h = 0; h < p_.shares[part].kv_heads.count(); ++h) {
    kernels_.append(own.k + row * w.k.padded_rows() + h * m_.head_dim,
                    own.v + row * w.v.padded_rows() + h * m_.head_dim, m_.head_dim,
                    position % kBlockPositions, block + h * block_numbers(m_.head_dim));
  }
}

void Member::finish_heads(const PackedLayer& layer, std::size_t part, std::int64_t row,
                          std::int64_t position) {
  const PartOfLayer& w = layer.parts[part];
  const Share& share = p_.shares[part];
  const auto add_bias = [&](float* x, const std::vector<float>& bias, Range heads) {
    if (bias.empty()) return;
    kernels_.add(x, bias.data() + heads.begin * m_.head_dim, heads.count() * m_.head_dim);
  };
  float* const q = s_.parts[part].q + row * w.q.padded_rows();
  float* const k = s_.parts[part].k + row * w.k.padded_rows();
  add_bias(q, layer.q_bias, share.heads);
  add_bias(k, layer.k_bias, share.kv_heads);
  add_bias(s_.parts[part].v + row * w.v.padded_rows(), layer.v_bias, share.kv_heads);
  turn(q, share.heads.count(), layer.q_norm, position, static_cast<float>(m_.scale));
  turn(k, share.kv_heads.count(), layer.k_norm, position, 1);
}

void Member::turn(float* heads, std::int64_t count, const std::vector<float>& norm,
                  std::int64_t position, float scale) const {
  const float* const cosines = p_.cosines.data() + position * p_.pairs;
  const float* const sines = p_.sines.data() + position * p_.pairs;
  for (std::int64_t h = 0; h < count; ++h) {
    float* const head = heads + h * m_.head_dim;
    if (!norm.empty()) {
      kernels_.norm(head, norm.data(), m_.head_dim, static_cast<float>(m_.eps), head);
    }
    kernels_.rotate(head, cosines, sines, p_.pairs, m_.interleaved);
  }
  if (scale != 1) kernels_.multiply(heads, scale, count * m_.head_dim, heads);
}

// Block by block, so that the cache is read once and in order.
void Member::attend(std::size_t layer, std::size_t part, const Run& run) {
  const PackedLayer& l = p_.layers[layer];
  const std::int64_t first = first_seen(l.window, run.position) / kBlockPositions;
  const std::int64_t last = (run.position + run.end - run.begin - 1) / kBlockPositions;
  for (std::int64_t number = first; number <= last; ++number) {
    attend_block(l, part, run, number, s_.share_of(run.blocks[number], layer, part));
  }
}

void Member::attend_block(const PackedLayer& layer, std::size_t part, const Run& run,
                          std::int64_t number, Half* block) {
  const Share& share = p_.shares[part];
  const PartMemory& own = s_.parts[part];
  const std::int64_t stride = layer.parts[part].q.padded_rows();
  const std::int64_t heads = share.heads.count();
  for (std::int64_t kv = share.kv_heads.begin; kv < share.kv_heads.end; ++kv) {
    const std::int64_t from = std::max(share.heads.begin, kv * p_.group()) - share.heads.begin;
    const std::int64_t to = std::min(share.heads.end, (kv + 1) * p_.group()) - share.heads.begin;
    for (std::int64_t r = run.begin; r < run.end; ++r) {
      const std::int64_t position = run.position + r - run.begin;
      const std::int64_t seen = first_seen(layer.window, position);
      const std::int64_t before = number * kBlockPositions;
      const AttendTask task{own.q + r * stride + from * m_.head_dim,
                            block,
                            to - from,
                            m_.head_dim,
                            std::max<std::int64_t>(0, seen - before),
                            std::min(kBlockPositions, position + 1 - before),
                            seen / kBlockPositions == number,
                            static_cast<float>(m_.softcap),
                            own.states + r * heads + from,
                            own.attended + (r * heads + from) * padded_dim(m_.head_dim)};
      if (task.begin < task.end) kernels_.attend(task);
    }
    block += block_numbers(m_.head_dim);
  }
}

// y = what the heads attended to, over the sums of their exponentials.
void Member::gather_heads(std::size_t part, std::int64_t lead, std::int64_t terms) {
  const std::int64_t heads = p_.shares[part].heads.count();
  const PartMemory& own = s_.parts[part];
  for (std::int64_t r = 0; r < rows_.count(); ++r) {
    float* y = y_row(r);
    float* const end = y + terms;
    std::fill_n(y, lead, 0.0f);
    y += lead;
    for (std::int64_t h = r * heads; h < (r + 1) * heads; ++h, y += m_.head_dim) {
      kernels_.multiply(own.attended + h * padded_dim(m_.head_dim), 1 / own.states[h].sum,
                        m_.head_dim, y);
    }
    if (y < end) std::fill(y, end, 0.0f);
  }
  coded_ = 0;
}

// ---- the rest -----------------------------------------------------------------------------------

void Member::mlp(std::size_t layer) {
  const PackedLayer& l = p_.layers[layer];
  normalize(l.mlp_norm);
  for (std::size_t part = begin_; part < end_; ++part) {
    const PartOfLayer& w = l.parts[part];
    const std::int64_t stride = w.gate.padded_rows();
    multiply(w.gate, rows_.count(), s_.parts[part].gate, stride);
    multiply(w.up, rows_.count(), s_.parts[part].up, stride);
  }
  for (std::size_t part = begin_; part < end_; ++part) {
    const PackedMatrix& down = l.parts[part].down;
    const std::int64_t units = p_.shares[part].units.count();
    if (units == 0) continue;
    const std::int64_t stride = rounded_up(units, kTileRows);
    for (std::int64_t r = 0; r < rows_.count(); ++r) {
      float* const y = y_row(r);
      std::fill_n(y, down.lead, 0.0f);
      kernels_.gate(m_.activation, s_.parts[part].gate + r * stride, s_.parts[part].up + r * stride,
                    units, y + down.lead);
      std::fill(y + down.lead + units, y + std::max(down.layout.terms, down.lead + units), 0.0f);
    }
    coded_ = 0;
    multiply(down, rows_.count(), s_.parts[part].partial[1], s_.wide);
  }
}

void Member::logits() {
  const auto outputs = static_cast<std::int64_t>(rows_.outputs.size());
  for (std::int64_t done = 0; done < outputs; done += kMostOutputs) {
    const std::int64_t count = std::min(kMostOutputs, outputs - done);
    for (std::int64_t r = 0; r < count; ++r) {
      normalize(p_.final_norm, rows_.outputs[done + r], y_row(r));
    }
    for (std::size_t part = begin_; part < end_; ++part) {
      const Range tokens = p_.shares[part].tokens;
      if (tokens.count() == 0) continue;
      const std::int64_t stride = rounded_up(tokens.count(), kTileRows);
      const PartMemory& own = s_.parts[part];
      multiply(p_.head[part], count, own.logits, stride);
      for (std::int64_t r = 0; r < count; ++r) {
        float* const row = own.logits + r * stride;
        if (m_.logit_softcap > 0) {
          kernels_.softcap(row, static_cast<float>(m_.logit_softcap), tokens.count());
        }
        own.best[done + r] = kernels_.best(row, tokens.count());
        if (rows_.logits == nullptr) continue;
        float* const out = rows_.logits + (done + r) * m_.vocabulary + tokens.begin;
        std::memcpy(out, row, tokens.count() * sizeof(float));
      }
    }
  }
}

}  // namespace transformer_kernels::decode
