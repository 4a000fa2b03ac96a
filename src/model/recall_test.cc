// What recall chooses, against the true shares of attention.
#include "model/recall.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>

#include "base/serial_parallel.h"
#include "kernel/kernels.h"
#include "kernel/test_parallel.h"

namespace headrace {
namespace {

constexpr std::uint32_t query_heads = 6;
constexpr std::uint32_t kv_heads = 2;
constexpr std::uint32_t group_heads = query_heads / kv_heads;
constexpr std::uint32_t head_dim = 64;
constexpr std::uint32_t page_tokens = 32;
constexpr std::uint32_t blocks = 24;        // with sketches
constexpr std::uint32_t newest_tokens = 9;  // in the open block behind them
constexpr std::uint32_t layers = 50;
constexpr std::uint32_t position = blocks * page_tokens + newest_tokens - 1;

/// A text's keys, and what a row's query heads truly give to each token.
class RecallTest : public testing::Test {
 protected:
  void SetUp() override { make_text(91); }

  /// The smaller the keys the more tokens are looked at alike.
  void make_text(unsigned seed, double key_size = 3) {
    std::printf("seed=%u\n", seed);
    sketches_.clear();
    views_.clear();
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    const auto normals = [&](std::size_t count, double size) {
      std::vector<float> values(count);
      for (float& value : values) value = static_cast<float>(size * normal(random));
      return values;
    };
    shape_ = {page_tokens, kv_heads, head_dim, KvType::f32};
    model_.query_heads = query_heads;
    model_.kv_heads = kv_heads;
    model_.head_dim = head_dim;
    model_.layers = layers;
    queries_ = normals(std::size_t{query_heads} * head_dim, 1);
    const std::size_t sketch_bytes = kernel::key_sketch_bytes(page_tokens, head_dim);
    std::vector<float> scratch(std::size_t{3} * head_dim * kernel::lanes);
    weights_.assign(query_heads, std::vector<double>(blocks * page_tokens));
    for (std::uint32_t block = 0; block < blocks; ++block) {
      std::vector<std::byte> page(shape_.bytes());
      sketches_.emplace_back(kv_heads * sketch_bytes);
      for (std::uint32_t head = 0; head < kv_heads; ++head) {
        const kernel::PageHead at = {page.data() + shape_.k_offset(head),
                                     page.data() + shape_.v_offset(head), KvType::f32, page_tokens,
                                     head_dim};
        for (std::uint32_t t = 0; t < page_tokens; ++t) {
          const std::vector<float> key = normals(head_dim, key_size);
          kernel::kernels().store_kv(key.data(), key.data(), head_dim, t, 1, at);
          for (std::uint32_t i = 0; i < group_heads; ++i)
            weights_[head * group_heads + i][block * page_tokens + t] =
                weight(head * group_heads + i, key);
        }
        kernel::kernels().sketch_keys(at, scratch.data(),
                                      sketches_.back().data() + head * sketch_bytes);
      }
      views_.push_back(sketches_.back().data());
    }
    views_.push_back(nullptr);
  }

  double weight(std::uint32_t query_head, std::span<const float> key) const {
    const float* const query = queries_.data() + std::size_t{query_head} * head_dim;
    return std::exp2(scale * std::inner_product(key.begin(), key.end(), query, 0.0));
  }

  static AttentionOptions options(std::uint32_t tokens, float mass = 1) {
    AttentionOptions options;
    options.mode = AttentionMode::recall;
    options.recall_tokens = tokens;
    options.recall_mass = mass;
    options.recall_share = 0;
    options.recall_first = 8;
    options.recall_newest = 40;
    return options;
  }

  /// The newest tokens weigh nothing, so that all of the attention is in blocks with sketches.
  RecallChooser choose(const AttentionOptions& options, Parallel& parallel,
                       std::uint32_t layer = 0) {
    RecallChooser chooser =
        RecallChooser::create(parallel, model_, shape_, blocks * page_tokens + page_tokens).value();
    RecallView view = {&options, views_, {}};
    view.zones = zones_;
    chooser.begin(queries_.data(), scale, layer, view);
    for (std::uint32_t head = 0; head < query_heads; ++head) chooser.set_newest(head, -1000, 1);
    parallel.run(views_.size(), [&](std::size_t block, std::size_t worker) {
      chooser.score_block(static_cast<std::uint32_t>(block), worker);
    });
    chooser.choose(position);
    return chooser;
  }
  RecallChooser choose(const AttentionOptions& options, std::uint32_t layer = 0) {
    SerialParallel serial;
    return choose(options, serial, layer);
  }

  /// [token]: how often it counts for a kv head.
  std::vector<double> factors(const RecallChooser& chooser, std::uint32_t kv_head) const {
    std::vector<double> tokens(std::size_t{blocks} * page_tokens);
    for (std::uint32_t block = 0; block < blocks; ++block) {
      const std::span<const std::uint16_t> groups = chooser.groups(block, kv_head);
      const std::span<const float> factors = chooser.factors(block, kv_head);
      for (std::size_t i = 0; i < groups.size(); ++i) {
        std::fill_n(tokens.begin() + block * page_tokens + groups[i] * kernel::group_tokens,
                    kernel::group_tokens, static_cast<double>(factors[i]));
      }
    }
    return tokens;
  }

  /// [token]: whether a kv head reads it.
  std::vector<bool> read(const RecallChooser& chooser, std::uint32_t kv_head) const {
    std::vector<bool> tokens(std::size_t{blocks} * page_tokens);
    for (std::uint32_t block = 0; block < blocks; ++block) {
      std::uint16_t next = 0;
      for (const std::uint16_t group : chooser.groups(block, kv_head)) {
        EXPECT_GE(group, next) << "ascending";
        next = static_cast<std::uint16_t>(group + 1);
        for (std::uint32_t t = 0; t < kernel::group_tokens; ++t)
          tokens[block * page_tokens + group * kernel::group_tokens + t] = true;
      }
    }
    return tokens;
  }

  /// The share of the attention of a kv head's queries that is not read.
  double left_out(const RecallChooser& chooser, std::uint32_t kv_head) const {
    const std::vector<bool> tokens = read(chooser, kv_head);
    double left = 0;
    for (std::uint32_t i = 0; i < group_heads; ++i) {
      const std::vector<double>& weights = weights_[kv_head * group_heads + i];
      const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (std::size_t t = 0; t < weights.size(); ++t)
        left += tokens[t] ? 0 : weights[t] / all / group_heads;
    }
    return left;
  }

  /// [token]: 1 in the groups to which a kv head's queries truly give most, 0 elsewhere.
  std::vector<double> heaviest(std::uint32_t kv_head, std::uint32_t tokens) const {
    std::vector<std::pair<double, std::size_t>> groups(weights_[0].size() / kernel::group_tokens);
    for (std::size_t group = 0; group < groups.size(); ++group)
      groups[group] = {share(kv_head, group * kernel::group_tokens), group};
    std::ranges::sort(groups, std::greater<>());
    std::vector<double> chosen(weights_[0].size());
    for (std::size_t i = 0; i < tokens / kernel::group_tokens; ++i)
      std::fill_n(chosen.begin() + static_cast<std::ptrdiff_t>(groups[i].second) * 4, 4, 1.0);
    return chosen;
  }

  /// What a kv head's queries truly give to a group, on average.
  double share(std::uint32_t kv_head, std::size_t first_token) const {
    double sum = 0;
    for (std::uint32_t i = 0; i < group_heads; ++i) {
      const std::vector<double>& weights = weights_[kv_head * group_heads + i];
      const auto at = weights.begin() + static_cast<std::ptrdiff_t>(first_token);
      sum += std::accumulate(at, at + kernel::group_tokens, 0.0) /
             std::accumulate(weights.begin(), weights.end(), 0.0) / group_heads;
    }
    return sum;
  }

  static constexpr double scale = 0.3;
  PageShape shape_;
  ModelShape model_;
  std::vector<float> queries_;
  std::vector<std::vector<double>> weights_;  // [query_head][token], before the softmax's division
  std::vector<std::vector<std::byte>> sketches_;
  std::vector<const std::byte*> views_;
  std::vector<std::uint8_t> zones_;
};

TEST_F(RecallTest, ReadsTheFirstAndTheNewestTokensAndNoMoreThanItMay) {
  for (const std::uint32_t most : {100U, 203U, 400U}) {
    const RecallChooser chooser = choose(options(most));
    std::int64_t all = 0;
    for (std::uint32_t head = 0; head < kv_heads; ++head) {
      const std::vector<bool> tokens = read(chooser, head);
      for (std::uint32_t t = 0; t < 8; ++t) EXPECT_TRUE(tokens[t]);
      for (std::uint32_t t = position - 39; t < tokens.size(); ++t) EXPECT_TRUE(tokens[t]);
      const auto count = std::ranges::count(tokens, true) + newest_tokens;
      EXPECT_LE(count, most);
      EXPECT_GT(count + std::int64_t{kernel::group_tokens}, most);
      all += count;
    }
    EXPECT_EQ(chooser.counters().choices, kv_heads);
    EXPECT_EQ(chooser.counters().tokens_read, all);
  }
}

TEST_F(RecallTest, ReadsWhatLiesInZonesAndNoMoreThanItMay) {
  for (const std::uint32_t unit : {4U, 8U, 16U}) {
    AttentionOptions attention = options(204);
    attention.recall_group = unit;
    std::size_t read_before = 0;
    for (const bool has_zones : {false, true}) {
      zones_.assign(has_zones ? views_.size() * page_tokens / choice_tokens : 0, 0);
      if (has_zones) zones_[21] = zones_[50] = zones_[51] = 1;
      const RecallChooser chooser = choose(attention);
      for (std::uint32_t head = 0; head < kv_heads; ++head) {
        const std::vector<bool> tokens = read(chooser, head);
        const auto is_read = [&](std::uint32_t begin, std::uint32_t end) {
          return std::find(tokens.begin() + begin, tokens.begin() + end, false) ==
                 tokens.begin() + end;
        };
        read_before += !has_zones && is_read(168, 176) && is_read(400, 416) ? 1 : 0;
        EXPECT_TRUE(!has_zones || (is_read(168, 176) && is_read(400, 416)));
        EXPECT_LE(std::ranges::count(tokens, true) + newest_tokens, 204);
      }
      EXPECT_LE(chooser.counters().tokens_read, kv_heads * 204);
    }
    EXPECT_EQ(read_before, 0U) << "they are read for the zones alone";
  }
}

TEST_F(RecallTest, ReadsZonesThatAreMoreThanItMayRead) {
  zones_.assign(views_.size() * page_tokens / choice_tokens, 0);
  std::fill_n(zones_.begin() + 10, 40, 1);
  const RecallChooser chooser = choose(options(100));
  for (std::uint32_t head = 0; head < kv_heads; ++head) {
    const std::vector<bool> tokens = read(chooser, head);
    EXPECT_EQ(std::ranges::count(tokens, true), 8 + 320 + 32) << "and the first and newest ones";
    EXPECT_EQ(std::count(tokens.begin() + 80, tokens.begin() + 400, true), 320);
  }
  EXPECT_EQ(chooser.counters().tokens_read, kv_heads * (8 + 320 + 32 + newest_tokens));
}

/// Of each query head: what `count` of the tokens come to together, as a part of all of them.
double part_of(const std::vector<double>& weights, const std::vector<double>& count) {
  return std::inner_product(weights.begin(), weights.end(), count.begin(), 0.0) /
         std::accumulate(weights.begin(), weights.end(), 0.0);
}

TEST_F(RecallTest, WhatItReadsStandsForAllThereIs) {
  make_text(94, 1);
  AttentionOptions of_shares = options(blocks * page_tokens);
  of_shares.recall_share = 0.006F;
  AttentionOptions of_large_units = of_shares;
  of_large_units.recall_group = 16;
  AttentionOptions of_layers = of_shares;
  of_layers.recall_by_layer = true;
  for (const AttentionOptions& attention : {of_shares, of_large_units, of_layers, options(200),
                                            options(400), options(blocks * page_tokens, 0.6F)}) {
    double all = 0;
    double read = 0;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const RecallChooser chooser = choose(attention, layer);
      for (std::uint32_t head = 0; head < query_heads; ++head)
        all += part_of(weights_[head], factors(chooser, head / group_heads)) / query_heads / layers;
      for (std::uint32_t head = 0; head < kv_heads; ++head)
        read += (1 - left_out(chooser, head)) / kv_heads / layers;
    }
    EXPECT_NEAR(all, 1, 0.03);
    EXPECT_LT(read, 0.9) << "or there is nothing to estimate";
  }
}

TEST_F(RecallTest, WhatLightGroupsHaveInCommonIsNotLost) {
  make_text(95, 1);
  // The share of the attention that is in the 200 heaviest tokens.
  const auto heavy_part = [&](std::uint32_t head, const std::vector<double>& count) {
    std::vector<double> heavy = heaviest(head / group_heads, 200);
    std::ranges::transform(heavy, count, heavy.begin(), std::multiplies<>());
    return part_of(weights_[head], heavy) / part_of(weights_[head], count);
  };
  const std::vector<double> all(std::size_t{blocks} * page_tokens, 1);
  double error = 0;
  double error_of_heaviest = 0;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    const RecallChooser chooser = choose(options(200), layer);
    for (std::uint32_t head = 0; head < query_heads; ++head) {
      const double truth = heavy_part(head, all);
      error += std::abs(heavy_part(head, factors(chooser, head / group_heads)) - truth);
      error_of_heaviest += 1 - truth;
    }
  }
  EXPECT_LT(error, 0.3 * error_of_heaviest);
}

TEST_F(RecallTest, EstimatesWhatItLeavesOut) {
  for (const std::uint32_t most : {100U, 200U, 400U}) {
    const RecallChooser chooser = choose(options(most));
    double left = 0;
    for (std::uint32_t head = 0; head < kv_heads; ++head) left += left_out(chooser, head);
    EXPECT_NEAR(chooser.counters().mass_left_out, left, 0.03 * kv_heads);
  }
}

TEST_F(RecallTest, StopsWhereItHasReadItsShareOfTheAttention) {
  for (const float mass : {0.6F, 0.9F}) {
    const RecallChooser chooser = choose(options(blocks * page_tokens, mass));
    for (std::uint32_t head = 0; head < kv_heads; ++head) {
      EXPECT_LT(left_out(chooser, head), 1.03 - static_cast<double>(mass));
      EXPECT_GT(left_out(chooser, head), 0.5 * (1 - static_cast<double>(mass)));
    }
  }
}

TEST_F(RecallTest, ReadsEveryGroupThatGetsItsShareAndCountsItOnce) {
  AttentionOptions attention = options(blocks * page_tokens);
  attention.recall_share = 0.004F;
  const RecallChooser chooser = choose(attention);
  std::size_t wrong = 0;
  std::size_t in_sample = 0;
  std::size_t all = 0;
  for (std::uint32_t head = 0; head < kv_heads; ++head) {
    const std::vector<double> tokens = factors(chooser, head);
    for (std::uint32_t t = 8; t + 4 <= position - 40; t += kernel::group_tokens) {
      // A sketch errs by a tenth or two.
      const double share = this->share(head, t);
      EXPECT_TRUE(share < 0.008 || tokens[t] == 1) << share;
      EXPECT_TRUE(share > 0.002 || tokens[t] != 1) << share;
      wrong += (tokens[t] == 1) != (share >= 0.004) ? 1 : 0;
      in_sample += tokens[t] > 1 ? 1 : 0;
      ++all;
    }
  }
  EXPECT_LT(wrong, all / 10);
  EXPECT_GT(in_sample, all / 40);
}

TEST_F(RecallTest, ChoosesInUnitsOfTheSizeThatWasAskedFor) {
  for (const std::uint32_t unit : {4U, 8U, 16U}) {
    AttentionOptions attention = options(300);
    attention.recall_group = unit;
    const RecallChooser chooser = choose(attention);
    for (std::uint32_t head = 0; head < kv_heads; ++head) {
      const std::vector<bool> tokens = read(chooser, head);
      for (std::size_t t = 0; t < tokens.size(); ++t) EXPECT_EQ(tokens[t], tokens[t / unit * unit]);
    }
  }
}

TEST_F(RecallTest, ABlockWithoutASketchIsReadWhole) {
  views_[3] = nullptr;
  const RecallChooser chooser = choose(options(200));
  for (std::uint32_t head = 0; head < kv_heads; ++head) {
    EXPECT_TRUE(chooser.block(3, head).is_whole);
    EXPECT_TRUE(chooser.block(blocks, head).is_whole) << "the newest";
  }
  EXPECT_NE(chooser.choice().blocks[3], 0);
}

TEST_F(RecallTest, BlocksOfWhichNoHeadReadsAnythingAreNotWanted) {
  const RecallChooser chooser = choose(options(100));
  std::size_t unwanted = 0;
  for (std::uint32_t block = 0; block < blocks; ++block) {
    const bool is_read = !chooser.block(block, 0).is_empty() || !chooser.block(block, 1).is_empty();
    EXPECT_EQ(chooser.choice().blocks[block] != 0, is_read);
    unwanted += is_read ? 0 : 1;
  }
  EXPECT_GT(unwanted, 0U);
}

TEST_F(RecallTest, DoesNotDependOnWorkers) {
  const RecallChooser expected = choose(options(200));
  ShuffledParallel shuffled(3, 92);
  const RecallChooser chooser = choose(options(200), shuffled);
  for (std::uint32_t head = 0; head < kv_heads; ++head)
    EXPECT_EQ(read(chooser, head), read(expected, head));
}

}  // namespace
}  // namespace headrace
