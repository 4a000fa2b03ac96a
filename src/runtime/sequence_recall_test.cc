// Steps that recall: a part of the tokens, the same bits wherever they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/runtime_test_engine.h"

namespace headrace {
namespace {

class SequenceRecall : public DecodingTest {
 protected:
  static EngineOptions roomy_recall(std::uint32_t tokens = 64) {
    EngineOptions options = roomy();
    options.attention = small_recall(tokens);
    return options;
  }
};

TEST_F(SequenceRecall, GivesTheSameBitsWithAnyThreadsChunksAndMemory) {
  const test::LogitsTrace expected = decoded(open(roomy_recall()));
  for (const std::uint32_t threads : {2U, 3U}) {
    EngineOptions options = roomy_recall();
    options.threads = threads;
    options.chunk_tokens = 7;
    test::expect_same_trace(expected, decoded(open(options)));
  }
  Engine& engine = open(tight(1, small_recall(64)));
  test::expect_same_trace(expected, decoded(engine));
  EXPECT_GT(engine.kv_stats().pages_filled_from_disk, 0U);
  EXPECT_LE(engine.kv_stats().kv_bytes_peak, engine.kv_stats().kv_bytes_limit);
}

TEST_F(SequenceRecall, KeepsGroupsInMemoryAndGivesTheSameBitsWithAnyNumberOfThem) {
  for (const bool by_layer : {false, true}) {
    for (const std::uint32_t group : {4U, 16U}) {
      AttentionOptions attention = small_recall(64);
      attention.recall_by_layer = by_layer;
      attention.recall_group = group;
      EngineOptions options = roomy();
      options.attention = attention;
      const test::LogitsTrace expected = decoded(**try_open(options));
      options = tight(1, attention);
      const std::uint64_t page = layers * 16 * std::uint64_t{1} << 10;
      for (int more = 0; more < 4; ++more, options.kv.memory_bytes += page) {
        SCOPED_TRACE(more);
        const auto engine = try_open(options);
        ASSERT_TRUE(engine.ok()) << engine.error().message;
        test::expect_same_trace(expected, decoded(**engine));
        const KvStats stats = (*engine)->kv_stats();
        EXPECT_LE(stats.kv_bytes_peak, stats.kv_bytes_limit);
        EXPECT_GT(stats.recall_groups_read, 0U);
        EXPECT_LT(stats.recall_groups_loaded, stats.recall_groups_read);
        if (more > 0) {
          EXPECT_GT(stats.recall_bytes_loaded, 0U);
        }
      }
    }
  }
}

TEST_F(SequenceRecall, CertifiedStepsGiveTheSameBitsAndTellTheSameWithAnyMemory) {
  for (const AttentionMode mode :
       {AttentionMode::recall, AttentionMode::window, AttentionMode::sparse}) {
    SCOPED_TRACE(to_string(mode));
    AttentionOptions attention = small_recall();
    attention.mode = mode;
    attention.window_tokens = 60;
    attention.sparse_tokens = 64;
    EngineOptions options = roomy();
    options.attention = attention;
    Engine& plain = open(options);
    const test::LogitsTrace expected = decoded(plain);
    EXPECT_FALSE(plain.kv_stats().certified);
    options.attention.certify = true;
    const auto in_memory = try_open(options);
    ASSERT_TRUE(in_memory.ok()) << in_memory.error().message;
    test::expect_same_trace(expected, decoded(**in_memory));
    const auto certified = (*in_memory)->kv_stats().certified;
    ASSERT_TRUE(certified);
    EXPECT_GT(certified->mass_not_read, 0.0);
    EXPECT_GT(certified->mass_not_read_most, certified->mass_not_read);
    EXPECT_GT(certified->error, 0.0);
    EXPECT_GT(certified->error_most, certified->error);
    attention.certify = true;
    Engine& in_part = open(tight(1, attention));
    test::expect_same_trace(expected, decoded(in_part));
    ASSERT_TRUE(in_part.kv_stats().certified);
    EXPECT_EQ(in_part.kv_stats().certified->mass_not_read, certified->mass_not_read);
    EXPECT_EQ(in_part.kv_stats().certified->error, certified->error);
  }
}

TEST_F(SequenceRecall, TellsWhatLeavesMemoryAndWhy) {
  EngineOptions options = tight(1, small_recall(64));
  options.kv.memory_bytes += std::uint64_t{layers} * 2 * 16 << 10;
  std::map<std::string, std::uint64_t> tokens_by_reason;
  options.on_eviction = [&](const KvEviction& eviction) {
    ASSERT_LT(eviction.layer, layers);
    ASSERT_EQ(std::string(eviction.to), "disk");
    ASSERT_TRUE(std::ranges::equal(
        eviction.tokens,
        std::span(tokens_).subspan(eviction.first_position, eviction.tokens.size())));
    tokens_by_reason[eviction.reason] += eviction.tokens.size();
    if (std::string(eviction.reason) == "least mass") {
      ASSERT_EQ(eviction.tokens.size(), 8U);
    }
  };
  const auto engine = try_open(options);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  decoded(**engine);
  EXPECT_GT(tokens_by_reason["newest first"], 0U) << "of the prompt, page by page";
  EXPECT_GT(tokens_by_reason["least mass"], 0U);
}

/// Memory for a step and for a few groups.
class SequenceRecallInLittleMemory : public SequenceRecall {
 protected:
  static EngineOptions options(std::uint32_t load_tokens) {
    AttentionOptions attention = small_recall(64);
    attention.recall_load_tokens = load_tokens;
    EngineOptions options = tight(1, attention);
    options.kv.memory_bytes += std::uint64_t{layers} * 5 * 16 << 10;
    return options;
  }

  struct Run {
    test::LogitsTrace trace;  // of the steps behind the prompt
    KvStats stats;
  };
  Run run(const EngineOptions& options, std::size_t steps) {
    const auto engine = try_open(options);
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    const auto sequence = new_sequence(**engine);
    EXPECT_TRUE(sequence->append(std::span(tokens_).first(prompt_tokens), nullptr, nullptr).ok());
    Run run;
    for (std::size_t i = 0; i < steps; ++i) {
      EXPECT_TRUE(sequence->decode(tokens_[prompt_tokens + i]).ok());
      run.trace.push_back(hash_bytes(std::as_bytes(sequence->logits())));
    }
    run.stats = (*engine)->kv_stats();
    return run;
  }
};

TEST_F(SequenceRecallInLittleMemory, AStepBringsBackNoMoreThanItMayAndSaysWhatWaits) {
  const Run first = run(options(8), 1);
  EXPECT_EQ(first.stats.recall_groups_deferred, 0U) << "the first step behind a prompt";
  test::expect_same_trace(run(options(0), 1).trace, first.trace);
  constexpr std::size_t steps = 20;
  const Run limited = run(options(8), steps);
  EXPECT_GT(limited.stats.recall_groups_deferred, 0U);
  EXPECT_GT(limited.stats.recall_mass_deferred_most, 0.0);
  EXPECT_LT(limited.stats.recall_mass_deferred_most, 1.0);
  const PageShape shape = {block_tokens, 2, 16, KvOptions().type};
  const std::uint64_t group_bytes = shape.bytes() / (block_tokens / 8);
  EXPECT_LE(limited.stats.recall_bytes_loaded - first.stats.recall_bytes_loaded,
            (steps - 1) * layers * group_bytes);
  test::expect_same_trace(limited.trace, run(options(8), steps).trace);
}

TEST_F(SequenceRecallInLittleMemory, WithALimitThatItNeverComesToNothingWaits) {
  const Run unlimited = run(options(0), 60);
  const Run limited = run(options(context), 60);
  test::expect_same_trace(unlimited.trace, limited.trace);
  EXPECT_EQ(limited.stats.recall_groups_deferred, 0U);
  EXPECT_GT(limited.stats.recall_bytes_loaded, 0U);
}

TEST_F(SequenceRecallInLittleMemory, WhatWasReadOfAPageThatLeavesIsNotLoadedAgain) {
  // The step that fills a block, and the next one, for which the block makes room and of which it
  // reads both groups in each layer.
  constexpr std::size_t fills = block_tokens - prompt_tokens % block_tokens;
  const KvStats before = run(options(0), fills).stats;
  const KvStats after = run(options(0), fills + 1).stats;
  EXPECT_LE(after.recall_groups_loaded - before.recall_groups_loaded, 2 * layers);
}

TEST_F(SequenceRecall, ReadsZonesAndGivesTheSameBitsWithAnyMemory) {
  AttentionOptions attention = small_recall(96);
  EngineOptions options = roomy();
  options.attention = attention;
  const auto decoded_with_zone = [&](Engine& engine) {
    const auto sequence = new_sequence(engine);
    EXPECT_TRUE(sequence->keep(96, 24).ok());
    return decode(engine, *sequence).value();
  };
  const test::LogitsTrace expected = decoded_with_zone(**try_open(options));
  EXPECT_NE(expected, decoded(**try_open(options)));
  options = tight(1, attention);
  for (int more = 0; more < 3; ++more) {
    SCOPED_TRACE(more);
    test::expect_same_trace(expected, decoded_with_zone(**try_open(options)));
    options.kv.memory_bytes += std::uint64_t{layers} * 16 << 10;
  }
}

TEST_F(SequenceRecall, AZoneAndTheFirstTokensStayInMemoryWhileOthersCanLeave) {
  AttentionOptions attention = small_recall(64);
  EngineOptions options = tight(1, attention);
  options.kv.memory_bytes += std::uint64_t{layers} * 14 * 4 << 10;
  const auto left_of_them = [&](std::uint32_t retained, bool has_zone) {
    std::uint64_t left = 0;
    options.attention.retain_first = retained;
    options.on_eviction = [&](const KvEviction& eviction) {
      const std::uint32_t first = eviction.first_position;
      if (std::string(eviction.reason) != "least mass") return;
      left += first < 32 || (first >= 96 && first < 112) ? 1 : 0;
    };
    const auto engine = try_open(options);
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    const auto sequence = new_sequence(**engine);
    if (has_zone) {
      EXPECT_TRUE(sequence->keep(96, 16).ok());
    }
    EXPECT_TRUE(decode(**engine, *sequence).ok());
    return left;
  };
  EXPECT_GT(left_of_them(0, false), 0U);
  EXPECT_EQ(left_of_them(32, true), 0U);
}

TEST_F(SequenceRecall, GivesItsSlotsBackWhenOthersNeedThem) {
  EngineOptions options = tight(2, small_recall(64));
  options.kv.memory_bytes += std::uint64_t{layers} * 4 * 16 << 10;
  const test::LogitsTrace expected = decoded(open(roomy_recall()));
  const test::LogitsTrace exact = expected_trace(tokens_);
  Engine& engine = open(options);
  const auto recalling = new_sequence(engine);
  const auto reading = new_sequence(engine);
  ASSERT_TRUE(recalling->append(std::span(tokens_).first(prompt_tokens), nullptr, nullptr).ok());
  test::LogitsTrace trace;
  test::LogitsTrace others;
  std::span<const TokenId> left = tokens_;
  for (const TokenId token : std::span(tokens_).subspan(prompt_tokens)) {
    ASSERT_TRUE(recalling->decode(token).ok());
    trace.push_back(hash_bytes(std::as_bytes(recalling->logits())));
    const auto rows = static_cast<std::uint32_t>(std::min<std::size_t>(left.size(), 17));
    if (rows == 0) continue;
    ASSERT_TRUE(test::append_traced(engine, *reading, left.first(rows), rows, others).ok());
    left = left.subspan(rows);
  }
  test::expect_same_trace(expected, trace);
  test::expect_same_trace(exact, others);
}

TEST_F(SequenceRecall, GivesTheSameBitsToATextWhosePagesWereThereAlready) {
  Engine& engine = open(roomy_recall());
  const test::LogitsTrace expected = decoded(engine);
  test::expect_same_trace(expected, decoded(engine));
}

TEST_F(SequenceRecall, ReadsNoMoreThanItWasAllowedAndSaysWhatItLeftOut) {
  Engine& engine = open(roomy_recall(64));
  const auto some = decoded(engine);
  const KvStats stats = engine.kv_stats();
  EXPECT_EQ(stats.recall_choices, std::uint64_t{60} * layers * 2) << "2 kv heads";
  EXPECT_GT(stats.recall_tokens_read, 48);
  EXPECT_LE(stats.recall_tokens_read, 64);
  EXPECT_GT(stats.recall_mass_left_out, 0);
  EXPECT_LT(stats.recall_mass_left_out, 1);
  EXPECT_NE(some, decoded(open(roomy()))) << "what was left out counts";
}

TEST_F(SequenceRecall, OfATextThatIsNoLongerThanWhatItMayReadIsExact) {
  test::expect_same_trace(decoded(open(roomy())), decoded(open(roomy_recall(context))));
}

TEST_F(SequenceRecall, ThatStopsAtAShareOfTheAttentionReadsLess) {
  EngineOptions options = roomy_recall(200);
  Engine& all = open(options);
  decoded(all);
  const double most = all.kv_stats().recall_tokens_read;
  options.attention.recall_mass = 0.5;
  Engine& some = open(options);
  decoded(some);
  EXPECT_LT(some.kv_stats().recall_tokens_read, most);
  EXPECT_LE(some.kv_stats().recall_mass_left_out, 0.5 + 0.01);
}

// What a step that leaves something out writes is no other text's, however alike they are.
TEST_F(SequenceRecall, ItsPagesNeverAnswerForAnExactReading) {
  const test::LogitsTrace exact = expected_trace(tokens_);
  Engine& engine = open(roomy_recall());
  const auto first = new_sequence(engine);
  ASSERT_TRUE(decode(engine, *first).ok());
  const auto expect_exact = [&](const std::string& when) {
    SCOPED_TRACE(when);
    test::LogitsTrace trace;
    const auto second = new_sequence(engine);
    ASSERT_TRUE(test::append_traced(engine, *second, tokens_, 1, trace).ok());
    test::expect_same_trace(exact, trace);
  };
  expect_exact("while the other one lives");
}

TEST_F(SequenceRecall, AForkGoesOnWithTheSameBits) { expect_fork_goes_on(open(roomy_recall())); }

TEST_F(SequenceRecall, GoesOnWhenAPageIsDamaged) {
  Engine& engine = open(tight(1, small_recall(64)));
  for (const std::uint64_t at : {1U, 40U, 200U}) {
    const auto sequence = new_sequence(engine);
    ASSERT_TRUE(decode(engine, *sequence).ok());
    const KvStats before = engine.kv_stats();
    env_.set_plan({{.operation = EnvOperation::read,
                    .at = at,
                    .kind = FaultKind::flip_bit,
                    .bit = 9'000 + at * 131}});
    for (const TokenId token : test::random_tokens(60, 7))
      ASSERT_TRUE(sequence->decode(token).ok());
    // Of a prompt, whose steps read everything, also what recall has written.
    ASSERT_TRUE(sequence->append(test::random_tokens(3, 8), nullptr, nullptr).ok());
    env_.set_plan({});
    EXPECT_EQ(engine.kv_stats().pages_filled_by_replay, before.pages_filled_by_replay + 1);
  }
}

TEST_F(SequenceRecall, ASavedConversationIsReadAgainExactly) {
  const test::TemporaryDirectory directory;
  EngineOptions options = roomy_recall();
  options.kv.keep_disk = true;
  options.kv.disk_bytes = std::uint64_t{64} << 20;
  options.kv.disk_directory = directory.path_of("kept");
  {
    const auto engine = try_open(options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    const auto sequence = new_sequence(**engine);
    ASSERT_TRUE(decode(**engine, *sequence).ok());
    const auto saved = (*engine)->save_session("talk", *sequence, "");
    ASSERT_TRUE(saved.ok()) << saved.error().message;
  }
  const auto engine = try_open(options);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const auto session = (*engine)->read_session("talk");
  ASSERT_TRUE(session.ok()) << session.error().message;
  EXPECT_EQ(session->tokens, tokens_);
  const auto sequence = new_sequence(**engine);
  ASSERT_TRUE(sequence->append(session->tokens, nullptr, nullptr).ok());
  const Digest128 logits = hash_bytes(std::as_bytes(sequence->logits()));
  EXPECT_EQ(logits, expected_trace(tokens_).back());
}

TEST_F(SequenceRecall, OptionsThatCannotBeUsedAreRefused) {
  expect_refused(roomy_recall(30), "--recall-tokens 30");
  EngineOptions options = roomy_recall();
  options.attention.recall_group = 5;
  expect_refused(options, "--recall-group 5");
  options = roomy_recall();
  options.attention.recall_mass = 1.5;
  expect_refused(options, "--recall-mass");
  options = roomy_recall();
  options.attention.recall_share = -1;
  expect_refused(options, "--recall-share");
  options = roomy_recall();
  options.attention.recall_load_tokens = 7;
  expect_refused(options, "--recall-load-tokens 7");
  options.attention.recall_load_tokens = 64;
  options.attention.certify = true;
  expect_refused(options, "--certify");
}

}  // namespace
}  // namespace headrace
