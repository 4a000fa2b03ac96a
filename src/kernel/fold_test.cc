// The fold over pages against softmax attention in double, and its invariances bit for bit.
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include "kernel/kernel_test.h"

namespace headrace::kernel {
namespace {

float bf16(float x) { return ggml_bf16_to_fp32(ggml_fp32_to_bf16(x)); }
float f16(float x) { return ggml_fp16_to_fp32(ggml_fp32_to_fp16(x)); }

/// Integers up to `largest` times a common step, rounded by `round_step`, for each `block` values.
std::vector<float> in_steps(std::span<const float> x, std::size_t block, float largest,
                            const std::function<float(float)>& round_step) {
  std::vector<float> kept;
  for (std::size_t first = 0; first < x.size(); first += block) {
    const auto values = x.subspan(first, std::min(block, x.size() - first));
    float most = 0;
    for (const float value : values) most = std::max(most, std::fabs(value));
    const float step = round_step(most / largest);
    const float inverse = step > 0 ? 1.0F / step : 0.0F;
    for (const float value : values)
      kept.push_back(std::clamp(std::rint(value * inverse), -largest, largest) * step);
  }
  return kept;
}

std::vector<float> each(std::span<const float> x, float (*f)(float)) {
  std::vector<float> kept;
  for (const float value : x) kept.push_back(f(value));
  return kept;
}

/// The least bf16 that is not below.
float bf16_above(float x) {
  const float rounded = bf16(x);
  return rounded >= x ? rounded : bf16(x * 1.00390625F);
}

/// What a page of that type keeps of a key.
std::vector<float> kept_key(KvType type, std::span<const float> key) {
  switch (type) {
    case KvType::f32:
      return {key.begin(), key.end()};
    case KvType::f16:
      return each(key, f16);
    case KvType::bf16:
      return each(key, bf16);
    case KvType::q8:
      return in_steps(key, 32, 127, f16);
    case KvType::i16:
      return in_steps(key, key.size(), 4095, bf16_above);
  }
  return {};
}

std::vector<float> kept_value(KvType type, std::span<const float> value) {
  return kept_key(type == KvType::i16 ? KvType::bf16 : type, value);
}

/// What the fold reads of a query.
std::vector<float> kept_query(KvType type, std::span<const float> query) {
  const auto exactly = [](float x) { return x; };
  if (type == KvType::bf16) return each(query, bf16);
  if (type == KvType::q8) return in_steps(query, 32, 127, exactly);
  if (type == KvType::i16) return in_steps(query, query.size(), 4095, exactly);
  return {query.begin(), query.end()};
}

/// K and V of one kv head of one page, with the values that a reader must find there.
struct TestPage {
  TestPage(KvType page_type, std::uint32_t page_tokens, std::uint32_t dim)
      : type(page_type),
        tokens(page_tokens),
        head_dim(dim),
        k_bytes(page_tokens * key_bytes(page_type, dim)),
        v_bytes(page_tokens * value_bytes(page_type, dim)),
        k(std::size_t{page_tokens} * dim),
        v(k.size()) {}

  /// The fold only reads it.
  PageHead head() const {
    return {const_cast<std::byte*>(k_bytes.data()), const_cast<std::byte*>(v_bytes.data()), type,
            tokens, head_dim};
  }

  void store(const KernelTable& table, std::uint32_t token, std::span<const float> key,
             std::span<const float> value) {
    table.store_kv(key.data(), value.data(), head_dim, token, 1, head());
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(token) * head_dim;
    std::ranges::copy(kept_key(type, key), k.begin() + at);
    std::ranges::copy(kept_value(type, value), v.begin() + at);
  }

  void fill(const KernelTable& table, TestRandom& random) {
    for (std::uint32_t token = 0; token < tokens; ++token) {
      store(table, token, random.normals(head_dim), random.normals(head_dim));
    }
  }

  KvType type;
  std::uint32_t tokens;
  std::uint32_t head_dim;
  std::vector<std::byte> k_bytes;  // in the layout of page/shape.h
  std::vector<std::byte> v_bytes;
  std::vector<float> k;  // [token][dim]
  std::vector<float> v;
};

/// Query vectors, not yet prepared.
std::vector<std::vector<float>> random_queries(std::uint32_t count, std::uint32_t head_dim,
                                               TestRandom& random) {
  const auto scale = static_cast<float>(std::numbers::log2e / std::sqrt(head_dim));
  std::vector<std::vector<float>> queries;
  for (std::uint32_t i = 0; i < count; ++i) {
    queries.push_back(random.normals(head_dim));
    for (float& value : queries.back()) value *= scale;
  }
  return queries;
}

/// Tokens that a vector reads, as [begin, end) of a page.
struct Reads {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

/// The first tokens of each page.
std::vector<Reads> first_tokens(std::span<const std::uint32_t> counts) {
  std::vector<Reads> reads;
  for (const std::uint32_t count : counts) reads.push_back({0, count});
  return reads;
}

struct Attended {
  std::vector<double> out;
  double loudest = 0;  // largest sum of |query * key| of a token
};

/// Softmax attention of one query over reads[i] of each page.
Attended attend(std::span<const TestPage> pages, std::span<const Reads> reads,
                std::span<const float> unprepared) {
  const std::uint32_t head_dim = pages[0].head_dim;
  const std::vector<float> query = kept_query(pages[0].type, unprepared);
  Attended result = {std::vector<double>(head_dim), 0};
  std::vector<double> scores;
  for (std::size_t page = 0; page < pages.size(); ++page) {
    for (std::uint32_t t = reads[page].begin; t < reads[page].end; ++t) {
      const float* key = pages[page].k.data() + std::size_t{t} * head_dim;
      double score = 0;
      double loudness = 0;
      for (std::uint32_t d = 0; d < head_dim; ++d) {
        const double term = static_cast<double>(query[d]) * static_cast<double>(key[d]);
        score += term;
        loudness += std::fabs(term);
      }
      scores.push_back(score);
      result.loudest = std::max(result.loudest, loudness);
    }
  }
  const double maximum = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  auto score = scores.begin();
  for (std::size_t page = 0; page < pages.size(); ++page) {
    for (std::uint32_t t = reads[page].begin; t < reads[page].end; ++t, ++score) {
      const double weight = std::exp2(*score - maximum);
      const float* value = pages[page].v.data() + std::size_t{t} * head_dim;
      sum += weight;
      for (std::uint32_t d = 0; d < head_dim; ++d)
        result.out[d] += weight * static_cast<double>(value[d]);
    }
  }
  for (double& value : result.out) value /= sum;
  return result;
}

class Fold : public KernelTest {
 protected:
  using Queries = std::vector<std::vector<float>>;

  /// Partial of one page for each query: [query][state]. Of these groups, each so many times if
  /// there are factors, or, with none, of what each one reads.
  std::vector<float> partials(const TestPage& page, std::span<const std::vector<float>> queries,
                              std::span<const Reads> reads,
                              std::span<const std::uint16_t> groups = {},
                              const float* factors = nullptr) const {
    const std::size_t query_bytes = prepared_query_bytes(page.head_dim);
    std::vector<std::byte> prepared(queries.size() * query_bytes);
    std::vector<const std::byte*> pointers;
    std::vector<std::uint32_t> begin;
    std::vector<std::uint32_t> end;
    for (std::size_t i = 0; i < queries.size(); ++i) {
      std::byte* out = prepared.data() + i * query_bytes;
      table.prepare_query(queries[i].data(), 1.0F, page.head_dim, page.type, out);
      pointers.push_back(out);
      begin.push_back(reads[i].begin);
      end.push_back(reads[i].end);
    }
    std::vector<float> scratch(fold_scratch_floats(page.tokens), 1e30F);
    std::vector<float> states(queries.size() * fold_state_floats(page.head_dim), -3.0F);
    const FoldInput in = {page.head(),     static_cast<std::uint32_t>(queries.size()),
                          pointers.data(), begin.data(),
                          end.data(),      factors};
    if (groups.empty()) {
      table.fold_page(in, scratch.data(), states.data());
    } else {
      const auto count = static_cast<std::uint32_t>(groups.size());
      table.ask_for_groups(in.page, groups.data(), count);
      table.fold_groups(in, groups.data(), count, scratch.data(), states.data());
    }
    return states;
  }

  /// The meaningful floats of state `i`: maximum, sum, weighted value.
  static std::vector<float> content(std::span<const float> states, std::size_t i,
                                    std::uint32_t head_dim) {
    const auto state = states.subspan(i * fold_state_floats(head_dim));
    std::vector<float> result = {state[0], state[1]};
    for (std::uint32_t d = 0; d < head_dim; ++d) result.push_back(state[lanes + d]);
    return result;
  }

  /// All pages, merged in order, for one query.
  std::vector<float> fold(std::span<const TestPage> pages, std::span<const Reads> reads,
                          const std::vector<float>& query) const {
    const std::uint32_t head_dim = pages[0].head_dim;
    std::vector<float> state(fold_state_floats(head_dim));
    fold_reset(state.data(), head_dim);
    for (std::size_t page = 0; page < pages.size(); ++page) {
      const std::vector<float> partial =
          partials(pages[page], std::span(&query, 1), reads.subspan(page, 1));
      table.fold_merge(state.data(), partial.data(), head_dim);
    }
    std::vector<float> out(head_dim);
    table.fold_finish(state.data(), head_dim, out.data());
    return out;
  }

  void expect_attention(std::span<const TestPage> pages, std::span<const Reads> reads,
                        const std::vector<float>& query) const {
    expect_near(fold(pages, reads, query), pages, reads, query);
  }

  static void expect_near(std::span<const float> out, std::span<const TestPage> pages,
                          std::span<const Reads> reads, const std::vector<float>& query) {
    const Attended expected = attend(pages, reads, query);
    // Values are standard normal, so below 5. An error of a score is a relative error of its
    // weight; it grows with the terms of the score, and sums of weights add a few units in the last
    // place.
    // Where weights are rounded to bf16 each may be off by 2^-9.
    const bool rounds_weights = pages[0].type == KvType::bf16 || pages[0].type == KvType::i16;
    const double bound = 0x1p-22 * (8 + expected.loudest) + (rounds_weights ? 5 * 0x1p-9 : 0.0);
    for (std::size_t d = 0; d < out.size(); ++d) {
      ASSERT_NEAR(static_cast<double>(out[d]), expected.out[d], bound) << "dim " << d;
    }
  }
};
HEADRACE_TEST_EVERY_TABLE(Fold);

constexpr std::uint32_t head_dims[] = {16, 32, 64, 80, 96, 128, 256};

bool can_be(KvType type, std::uint32_t head_dim) {
  return type != KvType::q8 || head_dim % 32 == 0;
}

/// Token counts on both sides of every border of a tile that matters.
std::vector<std::uint32_t> border_counts(std::uint32_t page_tokens) {
  std::vector<std::uint32_t> counts;
  for (const std::uint32_t count : {1U, 2U, 15U, 16U, 17U, 31U, 32U, 33U, page_tokens - 17,
                                    page_tokens - 16, page_tokens - 1, page_tokens}) {
    if (count >= 1 && count <= page_tokens) counts.push_back(count);
  }
  return counts;
}

TEST_P(Fold, IsSoftmaxAttention) {
  TestRandom random(41);
  for (const KvType type : kv_types) {
    for (const std::uint32_t head_dim : head_dims) {
      if (!can_be(type, head_dim)) continue;
      for (const std::uint32_t page_tokens : {16U, 64U, 256U}) {
        TestPage page(type, page_tokens, head_dim);
        page.fill(table, random);
        const std::vector<float> query = random_queries(1, head_dim, random)[0];
        for (const std::uint32_t count : border_counts(page_tokens)) {
          SCOPED_TRACE(std::string(to_string(type)) + ", head_dim " + std::to_string(head_dim) +
                       ", tokens " + std::to_string(count) + " of " + std::to_string(page_tokens));
          for (const std::uint32_t begin : {0U, random.below(count)}) {
            const Reads reads = {begin, count};
            ASSERT_NO_FATAL_FAILURE(
                expect_attention(std::span(&page, 1), std::span(&reads, 1), query));
          }
        }
      }
    }
  }
}

TEST_P(Fold, MergesPagesIntoOneSoftmax) {
  TestRandom random(42);
  for (const KvType type : kv_types) {
    for (const std::uint32_t head_dim : {16U, 80U, 128U}) {
      if (!can_be(type, head_dim)) continue;
      std::vector<TestPage> pages;
      for (int i = 0; i < 5; ++i) {
        pages.emplace_back(type, 48, head_dim);
        pages.back().fill(table, random);
      }
      for (std::vector<float>& query : random_queries(4, head_dim, random)) {
        for (float& value : query) value *= 4;  // a page may outweigh all others
        const std::vector<std::uint32_t> visible = {48, 48, 48, 48, 1 + random.below(48)};
        SCOPED_TRACE(std::string(to_string(type)) + ", head_dim " + std::to_string(head_dim));
        ASSERT_NO_FATAL_FAILURE(expect_attention(pages, first_tokens(visible), query));
      }
    }
  }
}

/// Groups of a page, each with a chance of `percent`, and at least one.
std::vector<std::uint16_t> random_groups(std::uint32_t page_tokens, std::uint32_t percent,
                                         TestRandom& random) {
  std::vector<std::uint16_t> groups;
  const std::uint32_t certain = random.below(page_tokens / group_tokens);
  for (std::uint32_t group = 0; group < page_tokens / group_tokens; ++group) {
    if (group == certain || random.below(100) < percent)
      groups.push_back(static_cast<std::uint16_t>(group));
  }
  return groups;
}

TEST_P(Fold, OfChosenGroupsIsSoftmaxAttentionOverTheirTokens) {
  TestRandom random(60);
  for (const KvType type : kv_types) {
    for (const std::uint32_t head_dim : head_dims) {
      if (!can_be(type, head_dim)) continue;
      for (const std::uint32_t page_tokens : {16U, 80U, 256U}) {
        TestPage page(type, page_tokens, head_dim);
        page.fill(table, random);
        const std::vector<float> query = random_queries(1, head_dim, random)[0];
        for (const std::uint32_t percent : {0U, 12U, 60U}) {
          const std::vector<std::uint16_t> groups = random_groups(page_tokens, percent, random);
          std::vector<Reads> reads;
          for (const std::uint32_t group : groups)
            reads.push_back({group * group_tokens, (group + 1) * group_tokens});
          const Reads all = {0, page_tokens};
          std::vector<float> state =
              partials(page, std::span(&query, 1), std::span(&all, 1), groups);
          std::vector<float> out(head_dim);
          table.fold_finish(state.data(), head_dim, out.data());
          SCOPED_TRACE(std::string(to_string(type)) + ", head_dim " + std::to_string(head_dim) +
                       ", " + std::to_string(groups.size()) + " groups of " +
                       std::to_string(page_tokens) + " tokens");
          const std::vector<TestPage> copies(reads.size(), page);
          expect_near(out, copies, reads, query);
        }
      }
    }
  }
}

TEST_P(Fold, CountsAGroupAsOftenAsItsFactorSays) {
  TestRandom random(64);
  constexpr std::uint32_t page_tokens = 80;
  for (const KvType type : kv_types) {
    TestPage page(type, page_tokens, 64);
    page.fill(table, random);
    const std::vector<float> query = random_queries(1, 64, random)[0];
    for (const std::uint32_t percent : {12U, 60U, 100U}) {
      const std::vector<std::uint16_t> groups = random_groups(page_tokens, percent, random);
      std::vector<float> factors;
      std::vector<Reads> reads;
      for (const std::uint32_t group : groups) {
        const std::uint32_t times = 1 + random.below(6);
        factors.push_back(static_cast<float>(times));
        for (std::uint32_t i = 0; i < times; ++i)
          reads.push_back({group * group_tokens, (group + 1) * group_tokens});
      }
      const Reads all = {0, page_tokens};
      const std::vector<float> state =
          partials(page, std::span(&query, 1), std::span(&all, 1), groups, factors.data());
      std::vector<float> out(64);
      table.fold_finish(state.data(), 64, out.data());
      SCOPED_TRACE(std::string(to_string(type)) + ", " + std::to_string(groups.size()) + " groups");
      expect_near(out, std::vector<TestPage>(reads.size(), page), reads, query);
    }
  }
}

TEST_P(Fold, OfAllGroupsHasTheBitsOfTheWholePage) {
  TestRandom random(61);
  for (const KvType type : kv_types) {
    for (const std::uint32_t head_dim : head_dims) {
      if (!can_be(type, head_dim)) continue;
      constexpr std::uint32_t page_tokens = 144;
      TestPage page(type, page_tokens, head_dim);
      page.fill(table, random);
      for (const std::uint32_t count : {1U, 3U, 7U, fold_vectors_max}) {
        const Queries queries = random_queries(count, head_dim, random);
        const std::vector<Reads> reads(count, {0, page_tokens});
        const std::vector<float> whole = partials(page, queries, reads);
        const std::vector<float> once(page_tokens / group_tokens, 1.0F);
        const std::vector<float> grouped =
            partials(page, queries, reads, random_groups(page_tokens, 100, random), once.data());
        for (std::size_t i = 0; i < count; ++i) {
          expect_same_bits(content(whole, i, head_dim), content(grouped, i, head_dim),
                           std::string(to_string(type)) + ", head_dim " + std::to_string(head_dim));
        }
      }
    }
  }
}

TEST_P(Fold, OfChosenGroupsHasTheSameBitsAloneAndAmongOthers) {
  TestRandom random(62);
  for (const KvType type : kv_types) {
    TestPage page(type, 128, 64);
    page.fill(table, random);
    const std::vector<std::uint16_t> groups = random_groups(128, 20, random);
    const Queries queries = random_queries(fold_vectors_max, 64, random);
    const std::vector<Reads> reads(queries.size(), {0, 128});
    const std::vector<float> together = partials(page, queries, reads, groups);
    for (std::size_t i = 0; i < queries.size(); ++i) {
      const std::vector<float> alone =
          partials(page, std::span(&queries[i], 1), std::span(&reads[i], 1), groups);
      expect_same_bits(content(alone, 0, 64), content(together, i, 64), to_string(type));
    }
  }
}

// Sums of 128 products of 13-bit integers just fit 32 bits.
TEST_P(Fold, ScoresOfTheLargestIntegersDoNotOverflow) {
  for (const std::uint32_t head_dim : head_dims) {
    for (const float sign : {1.0F, -1.0F}) {
      TestPage page(KvType::i16, 16, head_dim);
      const std::vector<float> key(head_dim, 4095.0F);  // a scale of 1
      page.store(table, 0, key, key);
      const Reads reads = {0, 1};
      const std::vector<std::vector<float>> query = {std::vector<float>(head_dim, sign * 4095.0F)};
      const float score = partials(page, query, std::span(&reads, 1))[0];
      EXPECT_EQ(score, sign * static_cast<float>(head_dim) * 4095.0F * 4095.0F) << head_dim;
    }
  }
}

TEST_P(Fold, HandlesTheLargestPages) {
  TestRandom random(43);
  for (const KvType type : kv_types) {
    TestPage page(type, 4096, 64);
    page.fill(table, random);
    const std::vector<float> query = random_queries(1, 64, random)[0];
    for (const std::uint32_t count : {4095U, 4096U}) {
      const Reads reads = {0, count};
      ASSERT_NO_FATAL_FAILURE(expect_attention(std::span(&page, 1), std::span(&reads, 1), query));
    }
  }
}

// Invariant 2: the partial of a page depends on the page and the query alone.
TEST_P(Fold, APartialHasTheSameBitsAloneAndAmongOthers) {
  TestRandom random(44);
  for (const KvType type : kv_types) {
    for (const std::uint32_t head_dim : head_dims) {
      if (!can_be(type, head_dim)) continue;
      constexpr std::uint32_t page_tokens = 80;
      TestPage page(type, page_tokens, head_dim);
      page.fill(table, random);
      const Queries queries = random_queries(fold_vectors_max, head_dim, random);
      std::vector<Reads> reads = first_tokens(border_counts(page_tokens));
      ASSERT_EQ(reads.size(), fold_vectors_max);
      for (Reads& read : reads) {
        if (random.below(2) == 0) read.begin = random.below(read.end);
      }
      std::shuffle(reads.begin(), reads.end(), std::mt19937(random.bits()));
      for (std::uint32_t count = 1; count <= fold_vectors_max; ++count) {
        const std::uint32_t first = random.below(fold_vectors_max - count + 1);
        const std::vector<float> together = partials(page, std::span(queries).subspan(first, count),
                                                     std::span(reads).subspan(first, count));
        for (std::uint32_t i = 0; i < count; ++i) {
          const std::vector<float> alone = partials(page, std::span(queries).subspan(first + i, 1),
                                                    std::span(reads).subspan(first + i, 1));
          ASSERT_NO_FATAL_FAILURE(expect_same_bits(
              content(alone, 0, head_dim), content(together, i, head_dim),
              std::string(to_string(type)) + ", head_dim " + std::to_string(head_dim) + ", query " +
                  std::to_string(i) + " of " + std::to_string(count)));
        }
      }
    }
  }
}

// What lies behind the newest token is finite, and must be nothing more than that.
TEST_P(Fold, HugeValuesOfTokensThatAreNotVisibleDoNotLeak) {
  TestRandom random(45);
  for (const KvType type : kv_types) {
    constexpr std::uint32_t head_dim = 96;
    const float huge = type == KvType::f16 ? 65504.0F : 3.3e38F;
    for (const Reads visible : {Reads{0, 1}, Reads{0, 15}, Reads{0, 16}, Reads{0, 17}, Reads{0, 40},
                                Reads{1, 2}, Reads{15, 40}, Reads{16, 40}, Reads{17, 64}}) {
      TestPage clean(type, 64, head_dim);
      TestPage dirty(type, 64, head_dim);
      for (std::uint32_t token = 0; token < 64; ++token) {
        const bool hidden = token < visible.begin || token >= visible.end;
        const std::vector<float> key = random.normals(head_dim);
        const std::vector<float> value = random.normals(head_dim);
        clean.store(table, token, hidden ? std::vector<float>(head_dim) : key,
                    hidden ? std::vector<float>(head_dim) : value);
        std::vector<float> rubbish(head_dim);
        for (float& x : rubbish) x = random.below(2) == 0 ? huge : -huge;
        dirty.store(table, token, hidden ? rubbish : key, hidden ? rubbish : value);
      }
      const Queries queries = random_queries(3, head_dim, random);
      const std::uint32_t fewer = visible.begin + 1 + random.below(visible.end - visible.begin);
      const std::vector<Reads> reads = {visible, {visible.begin, fewer}, visible};
      const std::vector<float> expected = partials(clean, queries, reads);
      const std::vector<float> actual = partials(dirty, queries, reads);
      for (std::size_t i = 0; i < queries.size(); ++i) {
        ASSERT_NO_FATAL_FAILURE(
            expect_same_bits(content(expected, i, head_dim), content(actual, i, head_dim),
                             std::string(to_string(type)) + ", [" + std::to_string(visible.begin) +
                                 ", " + std::to_string(visible.end) + ") visible"));
      }
    }
  }
}

TEST_P(Fold, AFirstPartialIsTakenOverUnchanged) {
  TestRandom random(46);
  TestPage page(KvType::f32, 16, 32);
  page.fill(table, random);
  const Queries queries = random_queries(1, 32, random);
  const Reads reads = {0, 16};
  const std::vector<float> partial = partials(page, queries, std::span(&reads, 1));
  std::vector<float> state(fold_state_floats(32));
  fold_reset(state.data(), 32);
  table.fold_merge(state.data(), partial.data(), 32);
  expect_same_bits(content(partial, 0, 32), content(state, 0, 32), "state");
}

TEST_P(Fold, AMergeWithAMuchSmallerPartialChangesNothing) {
  std::vector<float> strong(fold_state_floats(16), 2.0F);
  std::vector<float> weak(fold_state_floats(16), 5.0F);
  strong[0] = 500.0F;
  weak[0] = -500.0F;
  std::vector<float> state = strong;
  table.fold_merge(state.data(), weak.data(), 16);
  expect_same_bits(content(strong, 0, 16), content(state, 0, 16), "strong first");
  state = weak;
  table.fold_merge(state.data(), strong.data(), 16);
  expect_same_bits(content(strong, 0, 16), content(state, 0, 16), "weak first");
}

// The layout of page/shape.h, element by element.
TEST_P(Fold, ATokenIsStoredInItsColumnOfKAndItsRowOfV) {
  TestRandom random(47);
  constexpr std::uint32_t head_dim = 64;
  constexpr std::uint32_t tokens = 48;
  const auto at = [](const std::vector<std::byte>& bytes, std::size_t index, auto value) {
    std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
    return value;
  };
  const auto f16_of = [](std::uint16_t bits) { return ggml_fp16_to_fp32(bits); };
  const auto bf16_of = [](std::uint16_t bits) { return ggml_bf16_to_fp32({bits}); };
  for (const KvType type : kv_types) {
    TestPage page(type, tokens, head_dim);
    page.fill(table, random);
    for (const std::uint32_t token : {0U, 1U, 15U, 16U, 31U, 47U}) {
      for (std::uint32_t d = 0; d < head_dim; ++d) {
        const std::size_t plain_k = (std::size_t{token / 16} * head_dim + d) * 16 + token % 16;
        const std::size_t plain_v = std::size_t{token} * head_dim + d;
        const std::size_t pair_k =
            ((std::size_t{token / 16} * (head_dim / 2) + d / 2) * 16 + token % 16) * 2 + d % 2;
        const std::size_t line_k =
            ((std::size_t{token / 4} * (head_dim / 8) + d / 8) * 4 + token % 4) * 8 + d % 8;
        const std::size_t pair_v = (std::size_t{token / 2} * head_dim + d) * 2 + token % 2;
        const std::size_t q8_tile = std::size_t{token / 16} * 16 * (head_dim + head_dim / 32 * 2);
        const std::size_t four_k = q8_tile + (std::size_t{d / 4} * 16 + token % 16) * 4 + d % 4;
        const std::size_t q8_v = q8_tile + std::size_t{token % 16} * head_dim + d;
        const std::size_t scale =
            (q8_tile + std::size_t{head_dim} * 16) / 2 + std::size_t{d / 32} * 16 + token % 16;
        const std::size_t behind = std::size_t{tokens} * head_dim;
        float k = 0;
        float v = 0;
        switch (type) {
          case KvType::f32:
            k = at(page.k_bytes, plain_k, 0.0F);
            v = at(page.v_bytes, plain_v, 0.0F);
            break;
          case KvType::f16:
            k = f16_of(at(page.k_bytes, plain_k, std::uint16_t{}));
            v = f16_of(at(page.v_bytes, plain_v, std::uint16_t{}));
            break;
          case KvType::bf16:
            k = bf16_of(at(page.k_bytes, pair_k, std::uint16_t{}));
            v = bf16_of(at(page.v_bytes, pair_v, std::uint16_t{}));
            break;
          case KvType::i16:
            k = static_cast<float>(at(page.k_bytes, line_k, std::int16_t{})) *
                bf16_of(at(page.k_bytes, behind + token, std::uint16_t{}));
            v = bf16_of(at(page.v_bytes, pair_v, std::uint16_t{}));
            break;
          case KvType::q8:
            k = static_cast<float>(at(page.k_bytes, four_k, std::uint8_t{}) - 128) *
                f16_of(at(page.k_bytes, scale, std::uint16_t{}));
            v = static_cast<float>(at(page.v_bytes, q8_v, std::int8_t{})) *
                f16_of(at(page.v_bytes, scale, std::uint16_t{}));
            break;
        }
        ASSERT_EQ(k, page.k[plain_v]) << to_string(type) << ", token " << token << ", dim " << d;
        ASSERT_EQ(v, page.v[plain_v]) << to_string(type) << ", token " << token << ", dim " << d;
      }
    }
  }
}

TEST_P(Fold, TokensOfATileCanBeStoredTogether) {
  TestRandom random(48);
  constexpr std::uint32_t head_dim = 32;
  constexpr std::size_t stride = 100;
  for (const KvType type : kv_types) {
    const std::vector<float> keys = random.normals(16 * stride);
    const std::vector<float> values = random.normals(16 * stride);
    TestPage together(type, 32, head_dim);
    TestPage single(type, 32, head_dim);
    table.store_kv(keys.data(), values.data(), stride, 19, 11, together.head());
    for (std::uint32_t i = 0; i < 11; ++i) {
      table.store_kv(&keys[i * stride], &values[i * stride], 0, 19 + i, 1, single.head());
    }
    EXPECT_EQ(together.k_bytes, single.k_bytes) << to_string(type);
    EXPECT_EQ(together.v_bytes, single.v_bytes) << to_string(type);
  }
}

}  // namespace
}  // namespace headrace::kernel
