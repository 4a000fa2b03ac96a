// Key sketches against the keys that they stand for.
#include <algorithm>
#include <cmath>

#include "kernel/kernel_test.h"

namespace headrace::kernel {
namespace {

constexpr std::uint32_t head_dims[] = {16, 32, 64, 80, 96, 128, 256};

/// Keys as models have them: a part that all share, larger than what tells them apart.
std::vector<float> keys_with_a_mean(std::uint32_t tokens, std::uint32_t head_dim,
                                    TestRandom& random) {
  const std::vector<float> mean = random.normals(head_dim);
  std::vector<float> keys = random.normals(std::size_t{tokens} * head_dim);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] += 5 * mean[i % head_dim];
  return keys;
}

class Sketch : public KernelTest {
 protected:
  std::vector<std::byte> sketch_of(KvType type, std::uint32_t tokens, std::uint32_t head_dim,
                                   std::span<const float> keys) const {
    std::vector<std::byte> k(tokens * key_bytes(type, head_dim));
    std::vector<std::byte> v(tokens * value_bytes(type, head_dim));
    const PageHead page = {k.data(), v.data(), type, tokens, head_dim};
    const std::vector<float> value(head_dim);
    for (std::uint32_t t = 0; t < tokens; ++t) {
      table.store_kv(keys.data() + std::size_t{t} * head_dim, value.data(), head_dim, t, 1, page);
    }
    std::vector<float> scratch(std::size_t{3} * head_dim * lanes);
    std::vector<std::byte> sketch(key_sketch_bytes(tokens, head_dim), std::byte{0x55});
    table.sketch_keys(page, scratch.data(), sketch.data());
    return sketch;
  }

  /// [query][token]
  std::vector<float> scores_of(std::span<const std::byte> sketch, std::uint32_t tokens,
                               std::uint32_t head_dim, std::span<const std::vector<float>> queries,
                               float scale) const {
    std::vector<std::vector<std::byte>> prepared;
    std::vector<const std::byte*> pointers;
    for (const std::vector<float>& query : queries) {
      prepared.emplace_back(sketch_query_bytes(head_dim));
      table.prepare_sketch_query(query.data(), scale, head_dim, prepared.back().data());
      pointers.push_back(prepared.back().data());
    }
    std::vector<float> scores(queries.size() * tokens);
    table.sketch_scores({sketch.data(), tokens, head_dim,
                         static_cast<std::uint32_t>(queries.size()), pointers.data()},
                        scores.data(), tokens);
    return scores;
  }
};
HEADRACE_TEST_EVERY_TABLE(Sketch);

TEST_P(Sketch, EstimatesHowScoresDiffer) {
  TestRandom random(63);
  constexpr std::uint32_t tokens = 256;
  for (const KvType type : kv_types) {
    for (const std::uint32_t head_dim : head_dims) {
      if (type == KvType::q8 && head_dim % 32 != 0) continue;
      const std::vector<float> keys = keys_with_a_mean(tokens, head_dim, random);
      const std::vector<float> query = random.normals(head_dim);
      const std::vector<float> scores =
          scores_of(sketch_of(type, tokens, head_dim, keys), tokens, head_dim, {&query, 1}, 0.5F);
      double squares = 0;
      double mean = 0;
      double mean_square = 0;
      for (std::uint32_t t = 0; t < tokens; ++t) {
        double score = 0;
        for (std::uint32_t d = 0; d < head_dim; ++d) {
          score += 0.5 * static_cast<double>(query[d]) *
                   static_cast<double>(keys[std::size_t{t} * head_dim + d]);
        }
        squares += std::pow(static_cast<double>(scores[t]) - score, 2) / tokens;
        mean += score / tokens;
        mean_square += score * score / tokens;
      }
      // 4 bits with a step of 2/15 of the largest of `head_dim` values.
      EXPECT_LT(std::sqrt(squares / (mean_square - mean * mean)), 0.14)
          << to_string(type) << ", head_dim " << head_dim;
    }
  }
}

TEST_P(Sketch, OfKeysThatAreAllAlikeIsTheirScore) {
  TestRandom random(64);
  const std::vector<float> key(64, 0.25F);
  std::vector<float> keys;
  for (int i = 0; i < 32; ++i) keys.insert(keys.end(), key.begin(), key.end());
  const std::vector<float> query = random.normals(64);
  double score = 0;
  for (const float q : query) score += 0.25 * static_cast<double>(q);
  for (const float estimate :
       scores_of(sketch_of(KvType::f32, 32, 64, keys), 32, 64, {&query, 1}, 1.0F)) {
    EXPECT_NEAR(static_cast<double>(estimate), score, 1e-5);
  }
}

TEST_P(Sketch, AScoreHasTheSameBitsAloneAndAmongOthers) {
  TestRandom random(65);
  const std::vector<std::byte> sketch =
      sketch_of(KvType::f16, 80, 96, keys_with_a_mean(80, 96, random));
  std::vector<std::vector<float>> queries(fold_vectors_max);
  for (std::vector<float>& query : queries) query = random.normals(96);
  const std::vector<float> together = scores_of(sketch, 80, 96, queries, 1.0F);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    expect_same_bits(scores_of(sketch, 80, 96, {&queries[i], 1}, 1.0F),
                     std::span(together).subspan(i * 80, 80), "scores");
  }
}

TEST_P(Sketch, WeightsAreAddedUpByGroups) {
  TestRandom random(66);
  const std::vector<float> scores = random.normals(48);
  std::vector<float> sums(12);
  float maximum = 0;
  const float sum = table.sketch_weights(scores.data(), 48, sums.data(), &maximum);
  EXPECT_EQ(maximum, *std::ranges::max_element(scores));
  double all = 0;
  for (std::size_t group = 0; group < sums.size(); ++group) {
    double expected = 0;
    for (std::size_t i = 0; i < group_tokens; ++i)
      expected += std::exp2(static_cast<double>(scores[group * group_tokens + i] - maximum));
    EXPECT_NEAR(static_cast<double>(sums[group]), expected, 1e-6 * expected);
    all += expected;
  }
  EXPECT_NEAR(static_cast<double>(sum), all, 1e-6 * all);
}

TEST_P(Sketch, HasEveryByteWritten) {
  const std::vector<float> keys(std::size_t{32} * 64);
  for (const std::byte byte : sketch_of(KvType::f16, 32, 64, keys))
    EXPECT_NE(byte, std::byte{0x55});
}

}  // namespace
}  // namespace headrace::kernel
