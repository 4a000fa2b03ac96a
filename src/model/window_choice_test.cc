// What window and sparse attention choose.
#include "model/window_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>

#include "base/serial_parallel.h"
#include "kernel/test_parallel.h"

namespace headrace {
namespace {

constexpr std::uint32_t kv_heads = 2;
constexpr std::uint32_t page_tokens = 32;
constexpr std::uint32_t context = 40 * page_tokens;
constexpr std::uint32_t groups = context / kernel::group_tokens;

AttentionOptions window_of(std::uint32_t first, std::uint32_t newest) {
  AttentionOptions options;
  options.mode = AttentionMode::window;
  options.recall_first = first;
  options.window_tokens = newest;
  return options;
}

AttentionOptions sparse_of(std::uint32_t tokens, float sample, float heavy) {
  AttentionOptions options;
  options.mode = AttentionMode::sparse;
  options.recall_first = 8;
  options.sparse_tokens = tokens;
  options.sparse_sample = sample;
  options.sparse_heavy = heavy;
  return options;
}

class WindowChoice : public testing::Test {
 protected:
  WindowChoice() {
    std::printf("seed=%u\n", seed);
    std::mt19937 random(seed);
    std::exponential_distribution<float> mass;
    for (float& value : mass_) value = mass(random);
  }

  WindowChooser choose(const AttentionOptions& options, std::uint32_t position,
                       Parallel& parallel) {
    ModelShape model;
    model.query_heads = 3 * kv_heads;
    model.kv_heads = kv_heads;
    model.head_dim = 16;
    const PageShape page = {page_tokens, kv_heads, 16, KvType::f32};
    WindowChooser chooser = WindowChooser::create(parallel, model, page, context, options).value();
    sketches_.assign(position / page_tokens + 1, nullptr);
    view_ = {.options = &options, .sketches = sketches_, .newest = {}};
    view_.zones = zones_;
    if (notes_mass(options)) {
      view_.mass = mass_;
      view_.next_mass = next_mass_;
      view_.is_mass_known = is_mass_known_;
    }
    chooser.choose(position, view_);
    return chooser;
  }
  WindowChooser choose(const AttentionOptions& options, std::uint32_t position) {
    SerialParallel serial;
    return choose(options, position, serial);
  }

  /// The tokens that a kv head reads, ascending, each once.
  static std::vector<std::uint32_t> read(const WindowChooser& chooser, std::uint32_t position,
                                         std::uint32_t kv_head = 0) {
    std::vector<std::uint32_t> tokens;
    for (std::uint32_t block = 0; block * page_tokens <= position; ++block) {
      const std::uint32_t first = block * page_tokens;
      for (const std::uint16_t group : chooser.groups(block, kv_head)) {
        for (std::uint32_t t = 0; t < kernel::group_tokens; ++t)
          tokens.push_back(first + group * kernel::group_tokens + t);
      }
      const std::uint32_t end = std::min(first + page_tokens, position + 1);
      const std::uint32_t whole_from = chooser.block(block, kv_head).whole_from;
      if (whole_from == BlockChoice::none) continue;
      for (std::uint32_t token = first + whole_from; token < end; ++token) tokens.push_back(token);
    }
    for (std::size_t i = 1; i < tokens.size(); ++i) EXPECT_LT(tokens[i - 1], tokens[i]);
    EXPECT_EQ(chooser.counters().tokens_read, kv_heads * tokens.size()) << "all read as many";
    return tokens;
  }

  static std::vector<std::uint32_t> range(std::uint32_t begin, std::uint32_t end) {
    std::vector<std::uint32_t> tokens(end - begin);
    std::iota(tokens.begin(), tokens.end(), begin);
    return tokens;
  }

  /// The groups that are read between the first `first` tokens and the token `end`.
  static std::vector<std::uint32_t> groups_between(const std::vector<std::uint32_t>& tokens,
                                                   std::uint32_t first, std::uint32_t end) {
    std::vector<std::uint32_t> result;
    for (const std::uint32_t token : tokens) {
      if (token >= first && token < end && token % kernel::group_tokens == 0)
        result.push_back(token / kernel::group_tokens);
    }
    return result;
  }

  static constexpr unsigned seed = 93;
  std::vector<float> mass_ = std::vector<float>(std::size_t{kv_heads} * groups);
  std::vector<float> next_mass_ = mass_;
  bool is_mass_known_ = true;
  std::vector<const std::byte*> sketches_;
  RecallView view_;
  std::vector<std::uint8_t> zones_;
};

TEST_F(WindowChoice, WindowReadsTheFirstAndTheNewestTokensAndNothingElse) {
  for (const std::uint32_t first : {0U, 4U, 16U, 44U}) {
    for (const std::uint32_t newest : {1U, 7U, 32U, 101U}) {
      for (const std::uint32_t position : {150U, 159U, 160U, 161U, 1000U}) {
        std::vector<std::uint32_t> expected = range(0, first);
        const std::vector<std::uint32_t> last = range(position + 1 - newest, position + 1);
        expected.insert(expected.end(), last.begin(), last.end());
        EXPECT_EQ(read(choose(window_of(first, newest), position), position), expected)
            << first << " " << newest << " " << position;
      }
    }
  }
}

TEST_F(WindowChoice, TheFirstTokensAreReadInWholeGroups) {
  const std::vector<std::uint32_t> tokens = read(choose(window_of(5, 10), 200), 200);
  EXPECT_TRUE(std::ranges::equal(std::span(tokens).first(8), range(0, 8)));
  EXPECT_EQ(tokens.size(), 18U);
}

TEST_F(WindowChoice, AWindowThatReachesTheFirstTokensReadsAllPagesWhole) {
  for (const std::uint32_t position : {5U, 31U, 32U, 99U}) {
    const WindowChooser chooser = choose(window_of(16, 90), position);
    for (std::uint32_t block = 0; block <= position / page_tokens; ++block)
      EXPECT_TRUE(chooser.block(block, 1).is_whole);
    EXPECT_EQ(read(chooser, position), range(0, position + 1));
  }
}

TEST_F(WindowChoice, BlocksOfWhichNothingIsReadAreNotWanted) {
  const WindowChooser chooser = choose(window_of(4, 40), 639);
  std::vector<std::uint8_t> expected(20, 0);
  expected[0] = expected[18] = expected[19] = 1;
  EXPECT_TRUE(std::ranges::equal(chooser.choice().blocks, expected));
}

TEST_F(WindowChoice, SparseReadsTheFirstTheNewestAndASampleAtEvenDistances) {
  for (const std::uint32_t position : {300U, 639U, 640U, 1203U}) {
    const std::vector<std::uint32_t> tokens =
        read(choose(sparse_of(200, 0.2F, 0), position), position);
    EXPECT_EQ(tokens.size(), 200U);
    EXPECT_TRUE(std::ranges::equal(std::span(tokens).first(8), range(0, 8)));
    // 40 tokens are the sample, and 8 the first.
    EXPECT_TRUE(
        std::ranges::equal(std::span(tokens).last(152), range(position + 1 - 152, position + 1)));
    const auto sample = groups_between(tokens, 8, position + 1 - 152);
    ASSERT_EQ(sample.size(), 10U);
    const std::uint32_t between = (position + 1 - 152) / 4 - 2;
    std::uint32_t least = groups;
    std::uint32_t most = 0;
    for (std::size_t i = 1; i < sample.size(); ++i) {
      least = std::min(least, sample[i] - sample[i - 1]);
      most = std::max(most, sample[i] - sample[i - 1]);
    }
    EXPECT_GE(least, between / 10);
    EXPECT_LE(most, between / 10 + 1);
  }
}

TEST_F(WindowChoice, TheSampleComesByNearlyEveryGroup) {
  std::vector<bool> seen(groups);
  constexpr std::uint32_t end = 800;
  for (std::uint32_t position = end; position < end + 40; ++position) {
    for (const std::uint32_t token : read(choose(sparse_of(200, 0.2F, 0), position), position))
      seen[token / kernel::group_tokens] = true;
  }
  EXPECT_GE(std::ranges::count(std::vector<bool>(seen.begin(), seen.begin() + end / 4), true), 195)
      << "it moves by 1 of 17 groups a step";
}

TEST_F(WindowChoice, SparseReadsWhatEarlierStepsGaveMostAttentionTo) {
  constexpr std::uint32_t position = 1000;
  const WindowChooser chooser = choose(sparse_of(200, 0.2F, 0.3F), position);
  std::vector<std::uint32_t> of_head[kv_heads];
  for (std::uint32_t head = 0; head < kv_heads; ++head) {
    const std::vector<std::uint32_t> tokens = read(chooser, position, head);
    EXPECT_EQ(tokens.size(), 200U);
    of_head[head] = groups_between(tokens, 8, position + 1 - 92);
    EXPECT_EQ(of_head[head].size(), 25U) << "10 of the sample, 15 heavy ones";
    float lightest_read = 1000;
    float heaviest_left = 0;
    for (std::uint32_t group = 2; group < (position + 1 - 92) / 4; ++group) {
      const float mass = mass_[head * groups + group];
      if (std::ranges::binary_search(of_head[head], group)) continue;
      heaviest_left = std::max(heaviest_left, mass);
    }
    std::vector<float> read_mass;
    for (const std::uint32_t group : of_head[head])
      read_mass.push_back(mass_[head * groups + group]);
    std::ranges::sort(read_mass, std::greater<>());
    lightest_read = read_mass[14];
    EXPECT_GE(lightest_read, heaviest_left);
  }
  EXPECT_NE(of_head[0], of_head[1]) << "each kv head for itself";
}

TEST_F(WindowChoice, OfEqualMassTheOlderGroupsAreRead) {
  std::ranges::fill(mass_, 0.5F);
  const std::vector<std::uint32_t> tokens = read(choose(sparse_of(200, 0, 0.2F), 1000), 1000);
  EXPECT_TRUE(std::ranges::equal(std::span(tokens).first(48), range(0, 48)));
}

TEST_F(WindowChoice, SparseReadsAllOnceToLearnWhatMatters) {
  is_mass_known_ = false;
  EXPECT_EQ(read(choose(sparse_of(200, 0.2F, 0.3F), 1000), 1000), range(0, 1001));
  EXPECT_EQ(read(choose(sparse_of(200, 0.2F, 0), 1000), 1000).size(), 200U)
      << "a sample needs to know nothing";
}

TEST_F(WindowChoice, SparseReadsAShortTextWhole) {
  for (const std::uint32_t position : {0U, 100U, 199U})
    EXPECT_EQ(read(choose(sparse_of(200, 0.2F, 0.3F), position), position), range(0, position + 1));
  for (std::uint32_t position = 200; position < 300; ++position) {
    const auto tokens = read(choose(sparse_of(200, 0.2F, 0.3F), position), position);
    EXPECT_LE(tokens.size(), 200U);
    EXPECT_GE(tokens.size(), 197U) << "all but a part of a group";
  }
}

TEST_F(WindowChoice, ReadsWhatLiesInZonesBesides) {
  zones_.assign(context / choice_tokens, 0);
  zones_[0] = zones_[9] = zones_[60] = zones_[61] = zones_[120] = 1;  // two are read anyway
  // The newest tokens begin with each token of the zone that ends with 495 once.
  for (std::uint32_t newest = 30; newest < 50; ++newest) {
    const std::uint32_t position = 520;
    std::vector<std::uint32_t> expected = range(0, position + 1);
    std::erase_if(expected, [&](std::uint32_t token) {
      return token >= 16 && token + newest <= position && zones_[token / choice_tokens] == 0;
    });
    EXPECT_EQ(read(choose(window_of(16, newest), position), position), expected) << newest;
  }
}

TEST_F(WindowChoice, SparseReadsZonesBesidesItsSampleAndTheHeaviestGroups) {
  constexpr std::uint32_t position = 1000;
  const AttentionOptions options = sparse_of(200, 0.2F, 0.3F);
  const std::vector<std::uint32_t> without = read(choose(options, position), position);
  zones_.assign(context / choice_tokens, 0);
  for (std::uint32_t group = 20; group < 30; ++group) zones_[group] = 1;
  const std::vector<std::uint32_t> tokens = read(choose(options, position), position);
  EXPECT_TRUE(std::ranges::includes(tokens, range(160, 240)));
  EXPECT_GT(tokens.size(), 200U + 40) << "other groups are the heaviest now";
  EXPECT_LE(tokens.size(), 200U + 80);
  const auto outside = [](std::vector<std::uint32_t> all) {
    std::erase_if(all, [](std::uint32_t token) { return token >= 160 && token < 240; });
    return all;
  };
  EXPECT_TRUE(std::ranges::includes(outside(tokens), outside(without)));
}

TEST_F(WindowChoice, DoesNotDependOnWorkers) {
  const AttentionOptions options = sparse_of(200, 0.2F, 0.3F);
  const WindowChooser expected = choose(options, 1000);
  ShuffledParallel shuffled(3, 94);
  const WindowChooser chooser = choose(options, 1000, shuffled);
  for (std::uint32_t head = 0; head < kv_heads; ++head)
    EXPECT_EQ(read(chooser, 1000, head), read(expected, 1000, head));
}

}  // namespace
}  // namespace headrace
