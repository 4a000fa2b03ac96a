// A purge: less in memory, the same bits.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/runtime_test_engine.h"
#include "runtime/sequence.h"

namespace headrace {
namespace {

class SequencePurge : public DecodingTest {
 protected:
  static AttentionOptions attention_of(AttentionMode mode) {
    AttentionOptions attention = small_recall();
    attention.mode = mode;
    attention.window_tokens = 60;
    attention.sparse_tokens = 64;
    attention.retain_first = 0;
    return attention;
  }

  /// Memory for about half of the text.
  EngineOptions some_memory(AttentionMode mode, std::uint32_t sequences = 1) const {
    EngineOptions options = tight(sequences, attention_of(mode));
    options.kv.memory_bytes += std::uint64_t{layers} * 10 * page_bytes;
    return options;
  }

  static std::uint32_t resident_pages(Sequence& sequence, std::uint32_t from = 0,
                                      std::uint32_t end = context) {
    PageTable& table = static_cast<RuntimeSequence&>(sequence).cache().table();
    std::uint32_t pages = 0;
    for (std::uint32_t block = from / block_tokens;
         block < std::min(table.blocks(), end / block_tokens); ++block) {
      for (const PageEntry& page : table.block(block).pages) pages += page.slot ? 1 : 0;
    }
    return pages;
  }
  static std::uint32_t free_slots(Sequence& sequence) {
    return static_cast<RuntimeSequence&>(sequence).cache().store().pool().free_slots();
  }

  /// The logits behind the prompt; `between` runs before every tenth token.
  test::LogitsTrace decoded_with(Sequence& sequence, const std::function<void()>& between) {
    EXPECT_TRUE(sequence.append(std::span(tokens_).first(prompt_tokens), nullptr, nullptr).ok());
    test::LogitsTrace trace;
    for (std::size_t i = prompt_tokens; i < tokens_.size(); ++i) {
      if (i % 10 == 0) between();
      EXPECT_TRUE(sequence.decode(tokens_[i]).ok());
      trace.push_back(hash_bytes(std::as_bytes(sequence.logits())));
    }
    return trace;
  }

  const PageShape shape = {block_tokens, 2, 16, KvOptions().type};
  const std::uint64_t page_bytes = PagePool::slot_bytes(shape);
};

TEST_F(SequencePurge, LeavesLessInMemoryAndChangesNoAnswerInAnyMode) {
  for (const AttentionMode mode : attention_modes) {
    EngineOptions roomy_options = roomy();
    roomy_options.attention = attention_of(mode);
    const test::LogitsTrace expected = decoded(**try_open(roomy_options));
    for (const float keep_ratio : {0.0F, 0.5F}) {
      SCOPED_TRACE(std::string(to_string(mode)) + " " + std::to_string(keep_ratio));
      const auto engine = try_open(some_memory(mode));
      ASSERT_TRUE(engine.ok()) << engine.error().message;
      const auto sequence = new_sequence(**engine);
      std::uint64_t bytes = 0;
      const test::LogitsTrace trace = decoded_with(*sequence, [&] {
        const std::uint32_t before = free_slots(*sequence);
        const auto purged = sequence->purge(keep_ratio);
        ASSERT_TRUE(purged.ok()) << purged.error().message;
        EXPECT_EQ(*purged, (free_slots(*sequence) - before) * page_bytes);
        bytes += *purged;
      });
      test::expect_same_trace(expected, trace);
      EXPECT_GT(bytes, 0U);
      EXPECT_LE((*engine)->kv_stats().kv_bytes_peak, (*engine)->kv_stats().kv_bytes_limit);
    }
  }
}

TEST_F(SequencePurge, KeepsTheShareThatItIsTold) {
  Engine& engine = open(some_memory(AttentionMode::exact));
  const auto sequence = new_sequence(engine);
  ASSERT_TRUE(sequence->append(std::span(tokens_).first(304), nullptr, nullptr).ok());
  const std::uint32_t before = resident_pages(*sequence);
  ASSERT_GT(before, 10U);
  ASSERT_TRUE(sequence->purge(1).ok());
  EXPECT_EQ(resident_pages(*sequence), before);
  ASSERT_TRUE(sequence->purge(0.5).ok());
  EXPECT_NEAR(resident_pages(*sequence), before / 2.0, 1);
  ASSERT_TRUE(sequence->purge(0).ok());
  EXPECT_EQ(resident_pages(*sequence), 0U);
}

TEST_F(SequencePurge, OfAPartLeavesTheRestWhereItIs) {
  Engine& engine = open(some_memory(AttentionMode::exact));
  const auto sequence = new_sequence(engine);
  ASSERT_TRUE(sequence->append(std::span(tokens_).first(304), nullptr, nullptr).ok());
  const std::uint32_t before = resident_pages(*sequence);
  ASSERT_GT(resident_pages(*sequence, 32, 64), 0U);
  // Blocks from 32 to 63: others are not there as a whole.
  ASSERT_TRUE(sequence->purge({.keep_ratio = 0, .first_token = 20, .tokens = 50}).ok());
  EXPECT_EQ(resident_pages(*sequence, 32, 64), 0U);
  EXPECT_EQ(resident_pages(*sequence), before - 2 * layers);
  EXPECT_TRUE(sequence->purge({.first_token = context + 5, .tokens = 0xFFFF'FFFF}).ok())
      << "there is nothing";
}

TEST_F(SequencePurge, TakesGroupsWithTheLeastMassAndTellsOfThem) {
  EngineOptions options = some_memory(AttentionMode::recall);
  std::vector<KvEviction> purged;
  options.on_eviction = [&](const KvEviction& eviction) {
    if (std::string(eviction.reason) == "purge") purged.push_back(eviction);
  };
  const auto engine = try_open(options);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const auto sequence = new_sequence(**engine);
  ASSERT_TRUE(decode(**engine, *sequence).ok());
  ASSERT_TRUE(sequence->purge(0.5).ok());
  double most = 0;
  std::uint64_t groups = 0;
  for (const KvEviction& eviction : purged) {
    EXPECT_EQ(std::string(eviction.to), "disk");
    if (eviction.tokens.size() != 8) continue;
    most = std::max(most, eviction.mass);
    ++groups;
  }
  EXPECT_GT(groups, 0U);
  purged.clear();
  ASSERT_TRUE(sequence->purge(0).ok());
  std::uint64_t heavier = 0;
  for (const KvEviction& eviction : purged)
    heavier += eviction.tokens.size() == 8 && eviction.mass >= most ? 1 : 0;
  EXPECT_GT(heavier, 0U);
  for (const KvEviction& eviction : purged) {
    if (eviction.tokens.size() == 8) {
      EXPECT_GE(eviction.mass, most) << eviction.first_position;
    }
  }
}

TEST_F(SequencePurge, NeverTakesTheFirstTokensZonesAndTheNewestOnes) {
  EngineOptions options = some_memory(AttentionMode::recall);
  options.attention.retain_first = 32;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> purged;
  options.on_eviction = [&](const KvEviction& eviction) {
    if (std::string(eviction.reason) == "purge") {
      purged.emplace_back(
          eviction.first_position,
          eviction.first_position + static_cast<std::uint32_t>(eviction.tokens.size()));
    }
  };
  const auto engine = try_open(options);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const auto sequence = new_sequence(**engine);
  ASSERT_TRUE(sequence->keep(96, 16).ok());
  ASSERT_TRUE(decode(**engine, *sequence).ok());
  ASSERT_TRUE(sequence->purge(0).ok());
  EXPECT_FALSE(purged.empty());
  const auto length = static_cast<std::uint32_t>(tokens_.size());
  for (const auto& [first, end] : purged) {
    EXPECT_GE(first, 32U);
    EXPECT_TRUE(end <= 96 || first >= 112) << first;
    EXPECT_LE(end, length - options.attention.recall_newest);
  }
}

TEST_F(SequencePurge, LeavesWhatAForkReadsToo) {
  Engine& engine = open(some_memory(AttentionMode::exact, 2));
  const auto sequence = new_sequence(engine);
  ASSERT_TRUE(sequence->append(std::span(tokens_).first(304), nullptr, nullptr).ok());
  auto fork = sequence->fork();
  ASSERT_TRUE(fork.ok()) << fork.error().message;
  const std::uint32_t before = resident_pages(*sequence);
  const auto purged = sequence->purge(0);
  ASSERT_TRUE(purged.ok());
  EXPECT_EQ(*purged, 0U);
  EXPECT_EQ(resident_pages(*sequence), before);
  fork->reset();
  EXPECT_GT(sequence->purge(0).value(), 0U);
}

TEST_F(SequencePurge, AFullDiskIsAnErrorThatLosesNothing) {
  const test::LogitsTrace expected = expected_trace(tokens_);
  Engine& engine = open(some_memory(AttentionMode::exact));
  const auto sequence = new_sequence(engine);
  test::LogitsTrace trace;
  ASSERT_TRUE(
      test::append_traced(engine, *sequence, std::span(tokens_).first(304), 32, trace).ok());
  env_.set_plan({{.operation = EnvOperation::write, .kind = FaultKind::fail}});
  const auto purged = sequence->purge(0);
  ASSERT_FALSE(purged.ok());
  EXPECT_NE(purged.error().message.find("--kv-disk"), std::string::npos) << purged.error().message;
  env_.set_plan({});
  ASSERT_TRUE(
      test::append_traced(engine, *sequence, std::span(tokens_).subspan(304), 32, trace).ok());
  test::expect_same_trace(expected, trace);
  EXPECT_EQ(engine.kv_stats().pages_filled_by_replay, 0U);
}

TEST_F(SequencePurge, WithNoPlaceBesidesMemoryIsAnError) {
  EngineOptions recipe = some_memory(AttentionMode::exact);
  recipe.kv.memory_bytes *= 3;
  recipe.kv.evicted = "recipe";
  for (const EngineOptions& options : {roomy(), recipe}) {
    const auto engine = try_open(options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    const auto sequence = new_sequence(**engine);
    ASSERT_TRUE(sequence->append(tokens_, nullptr, nullptr).ok());
    expect_helpful(sequence->purge(0.5).error(), ErrorCode::invalid_argument, "--kv-memory");
  }
  Engine& engine = open(some_memory(AttentionMode::exact));
  const auto sequence = new_sequence(engine);
  for (const float ratio : {-0.1F, 1.1F, std::numeric_limits<float>::quiet_NaN()})
    expect_helpful(sequence->purge(ratio).error(), ErrorCode::invalid_argument, "0 to 1");
}

}  // namespace
}  // namespace headrace
