// SPDX-License-Identifier: MIT
// A step against a model in double, of weights in every format.
#include "transformer_kernels/decode/step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "backend.h"
#include "core/math/convert.h"
#include "core/types.h"
#include "error_of.h"
#include "numbers.h"
#include "parallel_hooks.h"

namespace transformer_kernels::testing {
namespace {

enum class Format { kFloat32, kFloat16, kBFloat16, kInt8, kInt4, kInt4Minimum };
constexpr Format kFormats[] = {Format::kFloat32, Format::kFloat16, Format::kBFloat16,
                               Format::kInt8,    Format::kInt4,    Format::kInt4Minimum};

float random_number(double from, double to) {
  return static_cast<float>(std::uniform_real_distribution<double>(from, to)(random_engine()));
}

// A random matrix in a format, and the numbers that it stands for.
struct Matrix {
  std::int64_t rows, cols, group;
  std::vector<std::byte> values;
  std::vector<Half> scales, minimums;
  std::vector<double> number;
  DType dtype;

  Matrix(std::int64_t n, std::int64_t k, Format format, std::int64_t blocks = 32)
      : rows(n),
        cols(k),
        group(blocks),
        number(n * k) {
    constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                                 DType::kInt8,    DType::kUInt8,   DType::kUInt8};
    dtype = kDTypes[static_cast<int>(format)];
    values.resize(n * k * 4);
    const double size = 1 / std::sqrt(static_cast<double>(k));
    for (std::int64_t i = 0; format >= Format::kInt8 && i < n * k / group; ++i) {
      const double levels = format == Format::kInt8 ? 127 : 8;
      narrow(random_number(size / levels, 2 * size / levels), scales.emplace_back());
      if (format == Format::kInt4Minimum) {
        narrow(random_number(-2 * size, -size), minimums.emplace_back());
      }
    }
    for (std::int64_t i = 0; i < n * k; ++i) number[i] = put(format, i, size);
  }

  double put(Format format, std::int64_t i, double size) {
    const float x = random_number(-2 * size, 2 * size);
    switch (format) {
      case Format::kFloat32: return as<float>()[i] = x;
      case Format::kFloat16: narrow(x, as<Half>()[i]); return widen(as<Half>()[i]);
      case Format::kBFloat16: narrow(x, as<BFloat16>()[i]); return widen(as<BFloat16>()[i]);
      default: break;
    }
    const double scale = widen(scales[i / group]);
    if (format == Format::kInt8) {
      const int code = std::uniform_int_distribution<int>(-128, 127)(random_engine());
      as<std::int8_t>()[i] = static_cast<std::int8_t>(code);
      return code * scale;
    }
    const int nibble = std::uniform_int_distribution<int>(0, 15)(random_engine());
    as<std::uint8_t>()[i / 2] |= static_cast<std::uint8_t>(i % 2 == 0 ? nibble : nibble << 4);
    if (format == Format::kInt4) return ((nibble ^ 8) - 8) * scale;
    return nibble * scale + widen(minimums[i / group]);
  }

  template <class T>
  T* as() {
    return reinterpret_cast<T*>(values.data());
  }

  StepWeight weight() {
    StepWeight w;
    const std::int64_t width = dtype == DType::kUInt8 ? cols / 2 : cols;
    w.values = TensorView::contiguous(values.data(), dtype, {}, {rows, width});
    const auto blocks = [&](std::vector<Half>& of) {
      return TensorView::contiguous(of.data(), DType::kFloat16, {}, {rows, cols / group});
    };
    if (!scales.empty()) w.scales = blocks(scales);
    if (!minimums.empty()) w.minimums = blocks(minimums);
    return w;
  }

  std::vector<double> times(const std::vector<double>& x) const {
    std::vector<double> y(rows);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) y[i] += number[i * cols + j] * x[j];
    }
    return y;
  }
};

// One layer, with four heads of queries to one of keys, and a head dim that is no whole vector: a
// part may begin inside a block of the weight behind the heads.
struct Model {
  static constexpr std::int64_t kHidden = 64, kHeads = 8, kKvHeads = 2, kDim = 20, kInner = 96;
  static constexpr std::int64_t kVocabulary = 53, kPositions = 150, kPairs = 8;
  static constexpr double kEps = 1e-5;
  static constexpr std::int64_t kWidth = kHeads * kDim, kKvWidth = kKvHeads * kDim;

  Matrix q, k, v, o, gate, up, down, embedding;
  std::vector<float> ones = std::vector<float>(kHidden, 1.25f);
  std::vector<float> cosines, sines;
  // In double: keys and values of all positions so far.
  std::vector<std::vector<double>> keys, values;

  // A block of 48 columns and more begins in the middle of one of 32.
  explicit Model(Format format)
      : q(kWidth, kHidden, format),
        k(kKvWidth, kHidden, format),
        v(kKvWidth, kHidden, format),
        o(kHidden, kWidth, format),
        gate(kInner, kHidden, format, 64),
        up(kInner, kHidden, format),
        down(kHidden, kInner, format),
        embedding(kVocabulary, kHidden, format) {
    for (std::int64_t p = 0; p < kPositions; ++p) {
      for (std::int64_t i = 0; i < kPairs; ++i) {
        const double angle = static_cast<double>(p) * std::pow(100.0, -i / double{kPairs});
        cosines.push_back(static_cast<float>(std::cos(angle)));
        sines.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }

  TensorView table(std::vector<float>& numbers) const {
    return TensorView::contiguous(numbers.data(), DType::kFloat32, {}, {kPositions, kPairs});
  }
  TensorView norm() { return TensorView::contiguous(ones.data(), DType::kFloat32, {}, {kHidden}); }
  StepModel description(std::int64_t parts) {
    StepModel m{};
    m.hidden = kHidden;
    m.heads = kHeads;
    m.kv_heads = kKvHeads;
    m.head_dim = kDim;
    m.inner = kInner;
    m.vocabulary = kVocabulary;
    m.cosines = table(cosines);
    m.sines = table(sines);
    m.embedding_scale = 1;
    m.parts = parts;
    return m;
  }
  StepLayer layer() {
    return {norm(),     norm(),        q.weight(),  k.weight(),   v.weight(),
            o.weight(), gate.weight(), up.weight(), down.weight()};
  }
  std::shared_ptr<StepPlan> plan(std::int64_t parts) {
    auto made = std::make_shared<StepPlan>(Context{}, description(parts));
    made->add_layer({}, layer());
    made->finish({}, embedding.weight(), norm());
    return made;
  }

  std::vector<double> normed(const std::vector<double>& x) const {
    double sum = 0;
    for (const double a : x) sum += a * a;
    const double factor = 1.25 / std::sqrt(sum / kHidden + kEps);
    std::vector<double> y;
    for (const double a : x) y.push_back(a * factor);
    return y;
  }
  void turn(std::vector<double>& heads, std::int64_t position) const {
    for (std::size_t at = 0; at < heads.size(); at += kDim) {
      for (std::int64_t i = 0; i < kPairs; ++i) {
        const double c = cosines[position * kPairs + i], s = sines[position * kPairs + i];
        const double a = heads[at + i], b = heads[at + i + kPairs];
        heads[at + i] = a * c - b * s;
        heads[at + i + kPairs] = a * s + b * c;
      }
    }
  }
  std::vector<double> attended(const std::vector<double>& queries) const {
    std::vector<double> out(kWidth);
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const std::int64_t kv = h / (kHeads / kKvHeads) * kDim;
      std::vector<double> weights;
      double total = 0;
      for (const std::vector<double>& key : keys) {
        double score = 0;
        for (std::int64_t d = 0; d < kDim; ++d) score += queries[h * kDim + d] * key[kv + d];
        weights.push_back(std::exp(score / std::sqrt(double{kDim})));
        total += weights.back();
      }
      for (std::size_t p = 0; p < values.size(); ++p) {
        for (std::int64_t d = 0; d < kDim; ++d) {
          out[h * kDim + d] += weights[p] / total * values[p][kv + d];
        }
      }
    }
    return out;
  }
  std::vector<double> logits(std::int64_t token) {
    const auto position = static_cast<std::int64_t>(keys.size());
    const double* const row = embedding.number.data() + token * kHidden;
    std::vector<double> x(row, row + kHidden);
    const std::vector<double> n = normed(x);
    std::vector<double> queries = q.times(n);
    keys.push_back(k.times(n));
    values.push_back(v.times(n));
    turn(queries, position);
    turn(keys.back(), position);
    const std::vector<double> first = o.times(attended(queries));
    for (std::int64_t i = 0; i < kHidden; ++i) x[i] += first[i];
    const std::vector<double> m = normed(x);
    std::vector<double> h = gate.times(m);
    const std::vector<double> u = up.times(m);
    for (std::int64_t i = 0; i < kInner; ++i) h[i] *= u[i] / (1 + std::exp(-h[i]));
    const std::vector<double> second = down.times(h);
    for (std::int64_t i = 0; i < kHidden; ++i) x[i] += second[i];
    return embedding.times(normed(x));
  }
};

struct Results {
  std::vector<std::int64_t> best;
  std::vector<float> logits;
};

Results step(const Context& context, StepSession& session, std::vector<std::int64_t> tokens,
             int bits = 16, int threads = 3) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  Results out{std::vector<std::int64_t>(count), std::vector<float>(count * Model::kVocabulary)};
  DecodeStep call;
  call.tokens = TensorView::contiguous(tokens.data(), DType::kInt64, {}, {count});
  call.best = TensorView::contiguous(out.best.data(), DType::kInt64, {}, {count});
  call.logits =
      TensorView::contiguous(out.logits.data(), DType::kFloat32, {}, {count, Model::kVocabulary});
  call.activation_bits = bits;
  call.threads = threads;
  decode_step(context, session, call);
  return out;
}

std::vector<std::int64_t> some_tokens(std::int64_t count) {
  std::vector<std::int64_t> tokens(count);
  std::uniform_int_distribution<std::int64_t> any(0, Model::kVocabulary - 1);
  for (std::int64_t& token : tokens) token = any(random_engine());
  return tokens;
}

TEST(Step, cpu_is_near_a_model_in_double) {
  constexpr std::int64_t kCount = 75;
  for (const Format format : kFormats) {
    Model model(format);
    const std::vector<std::int64_t> tokens = some_tokens(kCount);
    std::vector<double> wanted;
    for (const std::int64_t token : tokens) {
      for (const double x : model.logits(token)) wanted.push_back(x);
    }
    for (const std::int64_t parts : {1, 4}) {
      StepSession session(model.plan(parts), Model::kPositions);
      for (const int bits : {16, 8}) {
        session.truncate(0);
        const Results found = step({}, session, tokens, bits);
        double error = 0, size = 0;
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          error += (found.logits[i] - wanted[i]) * (found.logits[i] - wanted[i]);
          size += wanted[i] * wanted[i];
        }
        EXPECT_LT(std::sqrt(error / size), bits == 16 ? 4e-3 : 0.15)
            << static_cast<int>(format) << " in " << parts << " parts, " << bits << " bits";
      }
    }
  }
}

TEST(Step, cpu_bits_do_not_depend_on_rows_or_threads) {
  for (const Format format : {Format::kBFloat16, Format::kInt8, Format::kInt4Minimum}) {
    Model model(format);
    const std::vector<std::int64_t> tokens = some_tokens(Model::kPositions);
    const auto plan = model.plan(3);
    StepSession session(plan, Model::kPositions);
    const Results whole = step({}, session, tokens);
    for (const Context& context : contexts_with_different_threads(*backends().front())) {
      StepSession other(plan, Model::kPositions);
      std::vector<float> found;
      for (std::size_t first = 0, count = 1; first < tokens.size(); first += count, ++count) {
        const auto end = std::min(first + count, tokens.size());
        const Results some = step(context, other, {tokens.begin() + first, tokens.begin() + end},
                                  16, 1 + static_cast<int>(count % 3));
        found.insert(found.end(), some.logits.begin(), some.logits.end());
      }
      ASSERT_EQ(found, whole.logits);
    }
  }
}

TEST(Step, cpu_sessions_run_side_by_side) {
  Model model(Format::kInt8);
  const std::vector<std::int64_t> tokens = some_tokens(90);
  const auto plan = model.plan(2);
  StepSession alone(plan, Model::kPositions);
  const Results wanted = step({}, alone, tokens);
  std::vector<Results> found(3);
  std::vector<std::thread> threads;
  for (Results& own : found) {
    threads.emplace_back([&own, &plan, &tokens] {
      StepSession session(plan, Model::kPositions);
      own = step({}, session, tokens);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Results& own : found) EXPECT_EQ(own.logits, wanted.logits);
}

// Rows of sequences that step together.
struct PagesCall {
  std::vector<std::int64_t> tokens, outputs;
  std::vector<std::int32_t> cu_seqlens = {0}, lengths, table;
  std::int64_t width = 3;  // pages of a sequence
  int bits = 16, threads = 2;

  void add(std::vector<std::int64_t> own, std::int64_t length, std::vector<std::int32_t> pages) {
    tokens.insert(tokens.end(), own.begin(), own.end());
    cu_seqlens.push_back(static_cast<std::int32_t>(tokens.size()));
    lengths.push_back(static_cast<std::int32_t>(length));
    table.insert(table.end(), pages.begin(), pages.end());
  }
  std::vector<float> run(StepPages& pages, const Context& context = {}) {
    const auto rows = static_cast<std::int64_t>(tokens.size());
    const auto count = static_cast<std::int64_t>(lengths.size());
    const auto wanted = static_cast<std::int64_t>(outputs.size());
    std::vector<float> logits(wanted * Model::kVocabulary);
    const auto of = [](auto& list, DType dtype, std::initializer_list<std::int64_t> shape) {
      return TensorView::contiguous(list.data(), dtype, {}, shape);
    };
    DecodePages call;
    call.tokens = of(tokens, DType::kInt64, {rows});
    call.cu_seqlens = of(cu_seqlens, DType::kInt32, {count + 1});
    call.lengths = of(lengths, DType::kInt32, {count});
    call.page_table = of(table, DType::kInt32, {count, width});
    call.outputs = of(outputs, DType::kInt64, {wanted});
    call.logits = of(logits, DType::kFloat32, {wanted, Model::kVocabulary});
    call.activation_bits = bits;
    call.threads = threads;
    decode_step(context, pages, call);
    return logits;
  }
};

// Sequences of different lengths, in pages that lie in no order, step together in pieces of any
// size; some logits are wanted. They are those of sessions, to the bit.
TEST(Step, cpu_rows_in_pages_have_the_bits_of_sessions) {
  constexpr std::int64_t kSequences = 4;
  for (const Format format : {Format::kFloat32, Format::kBFloat16, Format::kInt4Minimum}) {
    Model model(format);
    const auto plan = model.plan(3);
    std::vector<std::vector<std::int64_t>> texts;
    std::vector<std::vector<float>> wanted;
    for (const std::int64_t length : {1, 64, 97, 150}) {
      texts.push_back(some_tokens(length));
      StepSession session(plan, Model::kPositions);
      wanted.push_back(step({}, session, texts.back()).logits);
    }
    std::vector<std::int32_t> order(kSequences * 3);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_engine());
    StepPages pages(plan, kSequences * 3);
    std::vector<std::int64_t> done(kSequences);
    std::uniform_int_distribution<std::int64_t> any(0, 120);
    const auto left = [&](std::int64_t s) {
      return static_cast<std::int64_t>(texts[s].size()) - done[s];
    };
    while (left(0) + left(1) + left(2) + left(3) > 0) {
      PagesCall call;
      std::vector<float> expected;
      for (std::int64_t s = 0; s < kSequences; ++s) {
        const std::int64_t count = std::min(any(random_engine()), left(s));
        if (count == 0) continue;
        const auto from = texts[s].begin() + done[s];
        for (std::int64_t i = s % 2 == 0 ? 0 : count - 1; i < count; ++i) {
          const float* const row = wanted[s].data() + (done[s] + i) * Model::kVocabulary;
          call.outputs.push_back(static_cast<std::int64_t>(call.tokens.size()) + i);
          expected.insert(expected.end(), row, row + Model::kVocabulary);
        }
        call.add({from, from + count}, done[s], {order[3 * s], order[3 * s + 1], order[3 * s + 2]});
        done[s] += count;
      }
      if (call.lengths.empty()) continue;
      ASSERT_EQ(call.run(pages), expected);
    }
  }
}

TEST(Step, cpu_a_copied_page_goes_on_alone) {
  Model model(Format::kInt8);
  const auto plan = model.plan(2);
  const std::vector<std::int64_t> text = some_tokens(40);
  StepPages pages(plan, 2);
  PagesCall first;
  first.width = 1;
  first.add({text.begin(), text.begin() + 39}, 0, {0});
  EXPECT_TRUE(first.run(pages).empty());  // no row has results
  pages.copy(0, 1);
  PagesCall other;  // overwrites what was copied
  other.width = 1;
  other.add(some_tokens(39), 0, {0});
  other.run(pages);
  PagesCall last;
  last.width = 1;
  last.outputs = {0};
  last.add({text[39]}, 39, {1});
  StepSession session(plan, Model::kPositions);
  const std::vector<float> whole = step({}, session, text).logits;
  EXPECT_EQ(last.run(pages), std::vector<float>(whole.end() - Model::kVocabulary, whole.end()));
}

TEST(Step, errors_of_pages_name_what_is_wrong) {
  Model model(Format::kInt8);
  StepPages pages(model.plan(1), 2);
  const auto error = [&](auto change) {
    PagesCall call;
    call.add({1, 2}, 63, {0, 1, -1});
    call.outputs = {1};
    change(call);
    return error_of([&] { call.run(pages); });
  };
  EXPECT_EQ(error([](PagesCall&) {}), "no error");
  EXPECT_EQ(error([](PagesCall& c) { c.table[1] = 2; }),
            "decode_step: page_table has 2, expected 0 to 1");
  EXPECT_EQ(error([](PagesCall& c) { c.table[0] = -1; }),
            "decode_step: page_table has -1, expected 0 to 1");
  EXPECT_EQ(error([](PagesCall& c) { c.lengths[0] = 149; }),
            "decode_step: sequence 0 has 149 positions and 2 new ones, expected 0 to 150");
  EXPECT_EQ(error([](PagesCall& c) { c.lengths[0] = -1; }),
            "decode_step: sequence 0 has -1 positions and 2 new ones, expected 0 to 150");
  EXPECT_EQ(error([](PagesCall& c) { c.cu_seqlens[1] = 1; }),
            "decode_step: cu_seqlens is from 0 to 1, expected 0 to 2 (the tokens)");
  EXPECT_EQ(error([](PagesCall& c) {
              c.add({}, 0, {0, 0, 0});
            }),
            "decode_step: cu_seqlens has 2 behind 2, expected more");
  EXPECT_EQ(error([](PagesCall& c) {
              c.outputs = {1, 1};
            }),
            "decode_step: outputs has 1 behind 1, expected ascending rows below 2");
  EXPECT_EQ(error([](PagesCall& c) { c.outputs = {2}; }),
            "decode_step: outputs has 2 behind -1, expected ascending rows below 2");
  EXPECT_EQ(error([](PagesCall& c) { c.tokens[0] = -1; }),
            "decode_step: tokens has -1, expected numbers from 0 to 52");
  EXPECT_EQ(error([](PagesCall& c) { c.bits = 4; }),
            "decode_step: activation_bits is 4, expected 16 or 8");
  EXPECT_EQ(error_of([&] { pages.copy(0, 2); }), "decode_step: page is 2, expected 0 to 1");
  EXPECT_EQ(error_of([&] { StepPages(model.plan(1), 0); }),
            "decode_step: pages is 0, expected at least 1");
}

TEST(Step, cpu_nan_and_infinity_reach_the_logits) {
  for (const Format format : kFormats) {
    for (const float strange :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Model model(format);
      model.ones[3] = strange;
      StepSession session(model.plan(2), Model::kPositions);
      for (const int bits : {16, 8}) {
        const Results found = step({}, session, {1, 2, 3}, bits);
        for (const float x : found.logits) ASSERT_TRUE(std::isnan(x)) << static_cast<int>(format);
        EXPECT_EQ(found.best, std::vector<std::int64_t>(3));
      }
    }
  }
}

TEST(Step, a_plan_is_read_whole) {
  Model model(Format::kInt8);
  const auto plan = model.plan(3);
  EXPECT_GT(plan->packed_bytes(), std::size_t{4 * 64 * 96});
  EXPECT_EQ(plan->read_all({}), plan->read_all({}));
  EXPECT_NE(plan->read_all({}), 0u);
}

// Threads of a caller, who fails or does something else when he is asked for them.
template <class Call>
Context context_that(Call& call) {
  Context context;
  context.parallel_for.user = &call;
  context.parallel_for.run = [](void* user, std::int64_t count, std::int64_t, RangeBody body,
                                void* argument) {
    (*static_cast<Call*>(user))();
    body(argument, 0, count);
  };
  return context;
}

TEST(Step, what_is_in_use_serves_no_other_call) {
  Model model(Format::kInt8);
  StepSession session(model.plan(2), 10);
  step({}, session, {1, 2, 3});
  std::string error = "not called";
  std::int64_t seen = -1;
  auto look = [&] {
    error = error_of([&] { session.truncate(0); });
    seen = session.length();
  };
  step(context_that(look), session, {4});
  EXPECT_EQ(error, "decode_step: the session is in use, expected one call at a time");
  EXPECT_EQ(seen, 3);
  EXPECT_EQ(session.length(), 4);
  StepPages pages(model.plan(2), 2);
  auto copy = [&] { error = error_of([&] { pages.copy(0, 1); }); };
  PagesCall call;
  call.add({1}, 0, {0, -1, -1});
  call.run(pages, context_that(copy));
  EXPECT_EQ(error, "decode_step: the pages are in use, expected one call at a time");
}

TEST(Step, what_fails_leaves_a_plan_as_it_was) {
  Model model(Format::kInt4Minimum);
  Matrix head(Model::kVocabulary, Model::kHidden, Format::kInt8);
  const auto finished = [&](StepPlan& plan, const Context& context) {
    plan.finish(context, model.embedding.weight(), model.norm(), head.weight());
  };
  const auto wanted = std::make_shared<StepPlan>(Context{}, model.description(2));
  wanted->add_layer({}, model.layer());
  finished(*wanted, {});
  const auto plan = std::make_shared<StepPlan>(Context{}, model.description(2));
  int left = 0;
  auto fail = [&] {
    if (left-- == 0) throw std::bad_alloc();
  };
  const Context scarce = context_that(fail);
  for (const int packed : {0, 5, 13}) {
    left = packed;
    EXPECT_THROW(plan->add_layer(scarce, model.layer()), std::bad_alloc);
    EXPECT_EQ(plan->packed_bytes(), 0u);
  }
  plan->add_layer({}, model.layer());
  const std::size_t before = plan->packed_bytes();
  for (const int packed : {0, 1, 2, 3}) {
    left = packed;
    EXPECT_THROW(finished(*plan, scarce), std::bad_alloc);
    EXPECT_EQ(plan->packed_bytes(), before);
  }
  finished(*plan, {});
  EXPECT_EQ(plan->packed_bytes(), wanted->packed_bytes());
  EXPECT_EQ(plan->read_all({}), wanted->read_all({}));
  const std::vector<std::int64_t> tokens = some_tokens(20);
  StepSession session(plan, Model::kPositions), other(wanted, Model::kPositions);
  EXPECT_EQ(step({}, session, tokens).logits, step({}, other, tokens).logits);
}

TEST(Step, errors_name_what_is_wrong) {
  Model model(Format::kInt8);
  StepSession session(model.plan(2), 10);
  step({}, session, {1, 2, 3});
  const auto error = [&](std::vector<std::int64_t> tokens, int bits = 16, int threads = 1) {
    return error_of([&] { step({}, session, std::move(tokens), bits, threads); });
  };
  EXPECT_EQ(error({Model::kVocabulary}),
            "decode_step: tokens has 53, expected numbers from 0 to 52");
  EXPECT_EQ(error(std::vector<std::int64_t>(8)),
            "decode_step: tokens has 8 elements, expected at most 7: the session has 3 of 10 "
            "positions");
  EXPECT_EQ(error({1}, 7), "decode_step: activation_bits is 7, expected 16 or 8");
  EXPECT_EQ(error({1}, 8, -1), "decode_step: threads is -1, expected 0 or more");
  EXPECT_EQ(session.length(), 3);
  const auto unfinished = std::make_shared<StepPlan>(Context{}, model.description(1));
  EXPECT_EQ(error_of([&] { StepSession(unfinished, 1); }),
            "decode_step: the plan is not finished, expected one that is");
  StepLayer layer = model.layer();
  layer.gate.scales = {};
  EXPECT_EQ(error_of([&] { unfinished->add_layer({}, layer); }),
            "decode_step: scales of gate are missing, expected some of int8 values");
  StepModel wrong = model.description(1);
  wrong.kv_heads = 3;
  EXPECT_EQ(error_of([&] { StepPlan({}, wrong); }),
            "decode_step: kv_heads is 3, expected a divisor of 8 (heads)");
  wrong = model.description(1);
  wrong.softcap = std::numeric_limits<double>::infinity();
  EXPECT_EQ(error_of([&] { StepPlan({}, wrong); }),
            "decode_step: softcap is inf, expected a finite number, 0 or above");
  wrong.softcap = 0;
  wrong.logit_softcap = 1e39;  // infinite in float32
  EXPECT_EQ(error_of([&] { StepPlan({}, wrong); }),
            "decode_step: logit_softcap is 1e+39, expected a finite number, 0 or above");
  Context gpu;
  gpu.device.type = DeviceType::kCuda;
  EXPECT_EQ(error_of([&] { StepPlan(gpu, model.description(1)); }),
            "decode_step: the device is cuda, expected cpu");
}

}  // namespace
}  // namespace transformer_kernels::testing
