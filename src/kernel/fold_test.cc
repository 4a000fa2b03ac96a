// The fold over pages against softmax attention in double, and its invariances bit for bit.
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernel/kernel_test.h"

namespace headrace::kernel {
namespace {

/// K and V of one kv head of one page, with the values that a reader must find there.
struct TestPage {
  TestPage(KvType page_type, std::uint32_t page_tokens, std::uint32_t dim)
      : type(page_type),
        tokens(page_tokens),
        head_dim(dim),
        k_bytes(std::size_t{page_tokens} * dim * bytes_per_element(page_type)),
        v_bytes(k_bytes.size()),
        k(std::size_t{page_tokens} * dim),
        v(k.size()) {}

  void store(const KernelTable& table, std::uint32_t token, std::span<const float> key,
             std::span<const float> value) {
    table.store_kv(key.data(), value.data(), token, head_dim, type, k_bytes.data(), v_bytes.data());
    const auto kept = [&](float x) {
      return type == KvType::f32 ? x : ggml_fp16_to_fp32(ggml_fp32_to_fp16(x));
    };
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      k[std::size_t{token} * head_dim + d] = kept(key[d]);
      v[std::size_t{token} * head_dim + d] = kept(value[d]);
    }
  }

  void fill(const KernelTable& table, TestRandom& random) {
    for (std::uint32_t token = 0; token < tokens; ++token) {
      store(table, token, random.normals(head_dim), random.normals(head_dim));
    }
  }

  KvType type;
  std::uint32_t tokens;
  std::uint32_t head_dim;
  std::vector<std::byte> k_bytes;  // [tile][dim][16 tokens]
  std::vector<std::byte> v_bytes;  // [token][dim]
  std::vector<float> k;            // [token][dim]
  std::vector<float> v;
};

/// Query vectors, scaled as fold_page() wants them.
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

struct Attended {
  std::vector<double> out;
  double loudest = 0;  // largest sum of |query * key| of a token
};

/// Softmax attention of one query over the first visible[i] tokens of each page.
Attended attend(std::span<const TestPage> pages, std::span<const std::uint32_t> visible,
                std::span<const float> query) {
  const std::uint32_t head_dim = pages[0].head_dim;
  Attended result = {std::vector<double>(head_dim), 0};
  std::vector<double> scores;
  for (std::size_t page = 0; page < pages.size(); ++page) {
    for (std::uint32_t t = 0; t < visible[page]; ++t) {
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
    for (std::uint32_t t = 0; t < visible[page]; ++t, ++score) {
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

  /// Partial of one page for each query: [query][state].
  std::vector<float> partials(const TestPage& page, std::span<const std::vector<float>> queries,
                              std::span<const std::uint32_t> visible) const {
    std::vector<const float*> pointers;
    for (const std::vector<float>& query : queries) pointers.push_back(query.data());
    std::vector<float> scratch(fold_scratch_floats(page.tokens), 1e30F);
    std::vector<float> states(queries.size() * fold_state_floats(page.head_dim), -3.0F);
    const FoldInput input = {.k = page.k_bytes.data(),
                             .v = page.v_bytes.data(),
                             .type = page.type,
                             .head_dim = page.head_dim,
                             .vectors = static_cast<std::uint32_t>(queries.size()),
                             .queries = pointers.data(),
                             .visible = visible.data()};
    table.fold_page(input, scratch.data(), states.data());
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
  std::vector<float> fold(std::span<const TestPage> pages, std::span<const std::uint32_t> visible,
                          const std::vector<float>& query) const {
    const std::uint32_t head_dim = pages[0].head_dim;
    std::vector<float> state(fold_state_floats(head_dim));
    fold_reset(state.data(), head_dim);
    for (std::size_t page = 0; page < pages.size(); ++page) {
      const std::vector<float> partial =
          partials(pages[page], std::span(&query, 1), visible.subspan(page, 1));
      table.fold_merge(state.data(), partial.data(), head_dim);
    }
    std::vector<float> out(head_dim);
    table.fold_finish(state.data(), head_dim, out.data());
    return out;
  }

  void expect_attention(std::span<const TestPage> pages, std::span<const std::uint32_t> visible,
                        const std::vector<float>& query) const {
    const Attended expected = attend(pages, visible, query);
    const std::vector<float> out = fold(pages, visible, query);
    // Values are standard normal, so below 5. An error of a score is a relative error of its
    // weight; it grows with the terms of the score, and sums of weights add a few units in the last
    // place.
    const double bound = 0x1p-22 * (8 + expected.loudest);
    for (std::size_t d = 0; d < out.size(); ++d) {
      ASSERT_NEAR(static_cast<double>(out[d]), expected.out[d], bound) << "dim " << d;
    }
  }
};
HEADRACE_TEST_EVERY_TABLE(Fold);

constexpr std::uint32_t head_dims[] = {16, 32, 64, 80, 96, 128, 256};
constexpr KvType types[] = {KvType::f16, KvType::f32};

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
  for (const KvType type : types) {
    for (const std::uint32_t head_dim : head_dims) {
      for (const std::uint32_t page_tokens : {16U, 64U, 256U}) {
        TestPage page(type, page_tokens, head_dim);
        page.fill(table, random);
        const std::vector<float> query = random_queries(1, head_dim, random)[0];
        for (const std::uint32_t count : border_counts(page_tokens)) {
          SCOPED_TRACE(std::string(to_string(type)) + ", head_dim " + std::to_string(head_dim) +
                       ", tokens " + std::to_string(count) + " of " + std::to_string(page_tokens));
          ASSERT_NO_FATAL_FAILURE(
              expect_attention(std::span(&page, 1), std::span(&count, 1), query));
        }
      }
    }
  }
}

TEST_P(Fold, MergesPagesIntoOneSoftmax) {
  TestRandom random(42);
  for (const KvType type : types) {
    for (const std::uint32_t head_dim : {16U, 80U, 128U}) {
      std::vector<TestPage> pages;
      for (int i = 0; i < 5; ++i) {
        pages.emplace_back(type, 48, head_dim);
        pages.back().fill(table, random);
      }
      for (std::vector<float>& query : random_queries(4, head_dim, random)) {
        for (float& value : query) value *= 4;  // a page may outweigh all others
        const std::vector<std::uint32_t> visible = {48, 48, 48, 48, 1 + random.below(48)};
        SCOPED_TRACE(std::string(to_string(type)) + ", head_dim " + std::to_string(head_dim));
        ASSERT_NO_FATAL_FAILURE(expect_attention(pages, visible, query));
      }
    }
  }
}

TEST_P(Fold, HandlesTheLargestPages) {
  TestRandom random(43);
  for (const KvType type : types) {
    TestPage page(type, 4096, 64);
    page.fill(table, random);
    const std::vector<float> query = random_queries(1, 64, random)[0];
    for (const std::uint32_t count : {4095U, 4096U}) {
      ASSERT_NO_FATAL_FAILURE(expect_attention(std::span(&page, 1), std::span(&count, 1), query));
    }
  }
}

// Invariant 2: the partial of a page depends on the page and the query alone.
TEST_P(Fold, APartialHasTheSameBitsAloneAndAmongOthers) {
  TestRandom random(44);
  for (const KvType type : types) {
    for (const std::uint32_t head_dim : head_dims) {
      constexpr std::uint32_t page_tokens = 80;
      TestPage page(type, page_tokens, head_dim);
      page.fill(table, random);
      const Queries queries = random_queries(fold_vectors_max, head_dim, random);
      std::vector<std::uint32_t> visible = border_counts(page_tokens);
      std::shuffle(visible.begin(), visible.end(), std::mt19937(random.bits()));
      ASSERT_EQ(visible.size(), fold_vectors_max);
      for (std::uint32_t count = 1; count <= fold_vectors_max; ++count) {
        const std::uint32_t first = random.below(fold_vectors_max - count + 1);
        const std::vector<float> together = partials(page, std::span(queries).subspan(first, count),
                                                     std::span(visible).subspan(first, count));
        for (std::uint32_t i = 0; i < count; ++i) {
          const std::vector<float> alone = partials(page, std::span(queries).subspan(first + i, 1),
                                                    std::span(visible).subspan(first + i, 1));
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
  for (const KvType type : types) {
    const float huge = type == KvType::f16 ? 65504.0F : std::numeric_limits<float>::max();
    for (const std::uint32_t visible : {1U, 15U, 16U, 17U, 40U}) {
      TestPage clean(type, 64, 80);
      TestPage dirty(type, 64, 80);
      for (std::uint32_t token = 0; token < 64; ++token) {
        const bool hidden = token >= visible;
        const std::vector<float> key = random.normals(80);
        const std::vector<float> value = random.normals(80);
        clean.store(table, token, hidden ? std::vector<float>(80) : key,
                    hidden ? std::vector<float>(80) : value);
        std::vector<float> rubbish(80);
        for (float& x : rubbish) x = random.below(2) == 0 ? huge : -huge;
        dirty.store(table, token, hidden ? rubbish : key, hidden ? rubbish : value);
      }
      const Queries queries = random_queries(3, 80, random);
      const std::vector<std::uint32_t> counts = {visible, 1 + random.below(visible), visible};
      const std::vector<float> expected = partials(clean, queries, counts);
      const std::vector<float> actual = partials(dirty, queries, counts);
      for (std::size_t i = 0; i < queries.size(); ++i) {
        ASSERT_NO_FATAL_FAILURE(expect_same_bits(
            content(expected, i, 80), content(actual, i, 80),
            std::string(to_string(type)) + ", " + std::to_string(visible) + " visible"));
      }
    }
  }
}

TEST_P(Fold, AFirstPartialIsTakenOverUnchanged) {
  TestRandom random(46);
  TestPage page(KvType::f32, 16, 32);
  page.fill(table, random);
  const Queries queries = random_queries(1, 32, random);
  const std::uint32_t visible = 16;
  const std::vector<float> partial = partials(page, queries, std::span(&visible, 1));
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
  constexpr std::uint32_t head_dim = 48;
  for (const KvType type : types) {
    for (const std::uint32_t token : {0U, 1U, 15U, 16U, 31U, 47U}) {
      const std::size_t count = std::size_t{48} * head_dim;
      const std::vector<float> key = random.normals(head_dim);
      const std::vector<float> value = random.normals(head_dim);
      std::vector<std::byte> k(count * bytes_per_element(type), std::byte{0x55});
      std::vector<std::byte> v = k;
      std::vector<std::byte> expected_k = k;
      std::vector<std::byte> expected_v = k;
      table.store_kv(key.data(), value.data(), token, head_dim, type, k.data(), v.data());
      const auto put = [&](std::vector<std::byte>& bytes, std::size_t index, float x) {
        const ggml_fp16_t half = ggml_fp32_to_fp16(x);
        const std::size_t size = bytes_per_element(type);
        std::memcpy(bytes.data() + index * size,
                    type == KvType::f16 ? static_cast<const void*>(&half) : &x, size);
      };
      for (std::uint32_t d = 0; d < head_dim; ++d) {
        put(expected_k, (std::size_t{token / 16} * head_dim + d) * 16 + token % 16, key[d]);
        put(expected_v, std::size_t{token} * head_dim + d, value[d]);
      }
      EXPECT_EQ(k, expected_k) << to_string(type) << ", token " << token;
      EXPECT_EQ(v, expected_v) << to_string(type) << ", token " << token;
    }
  }
}

}  // namespace
}  // namespace headrace::kernel
