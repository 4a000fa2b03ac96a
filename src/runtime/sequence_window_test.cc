// Sequences in window and sparse attention.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "runtime/runtime_test_engine.h"

namespace headrace {
namespace {

class SequenceInPart : public DecodingTest {
 protected:
  static AttentionOptions window(std::uint32_t newest) {
    AttentionOptions attention;
    attention.mode = AttentionMode::window;
    attention.recall_first = 4;
    attention.window_tokens = newest;
    return attention;
  }

  static AttentionOptions sparse(std::uint32_t tokens, float sample = 0.2F, float heavy = 0.3F) {
    AttentionOptions attention;
    attention.mode = AttentionMode::sparse;
    attention.recall_first = 4;
    attention.sparse_tokens = tokens;
    attention.sparse_sample = sample;
    attention.sparse_heavy = heavy;
    return attention;
  }

  static std::vector<AttentionOptions> modes() {
    return {window(60), sparse(64), sparse(64, 0.2F, 0)};
  }

  static EngineOptions roomy_in(const AttentionOptions& attention) {
    EngineOptions options = roomy();
    options.attention = attention;
    return options;
  }
};

TEST_F(SequenceInPart, GivesTheSameBitsWithAnyThreadsChunksAndMemory) {
  for (const AttentionOptions& attention : modes()) {
    SCOPED_TRACE(to_string(attention.mode));
    const test::LogitsTrace expected = decoded(open(roomy_in(attention)));
    for (const std::uint32_t threads : {2U, 3U}) {
      EngineOptions options = roomy_in(attention);
      options.threads = threads;
      options.chunk_tokens = 7;
      test::expect_same_trace(expected, decoded(open(options)));
    }
    Engine& engine = open(tight(1, attention));
    test::expect_same_trace(expected, decoded(engine));
    EXPECT_GT(engine.kv_stats().pages_filled_from_disk, 0U);
    EXPECT_LE(engine.kv_stats().kv_bytes_peak, engine.kv_stats().kv_bytes_limit);
  }
}

TEST_F(SequenceInPart, GivesTheSameBitsToATextWhosePagesWereThereAlready) {
  for (const AttentionOptions& attention : modes()) {
    Engine& engine = open(roomy_in(attention));
    const test::LogitsTrace expected = decoded(engine);
    test::expect_same_trace(expected, decoded(engine));
  }
}

TEST_F(SequenceInPart, ThatCoversTheTextIsExact) {
  const test::LogitsTrace exact = decoded(open(roomy()));
  const std::uint32_t all = prompt_tokens + 60;
  for (const AttentionOptions& attention : {window(all), window(0xFFFFFFFF), sparse(all)}) {
    Engine& engine = open(roomy_in(attention));
    test::expect_same_trace(exact, decoded(engine));
    EXPECT_EQ(engine.kv_stats().recall_choices, 0U);
  }
}

TEST_F(SequenceInPart, SaysWhatItReadAndNothingOfWhatItLeftOut) {
  for (const AttentionOptions& attention : modes()) {
    Engine& engine = open(roomy_in(attention));
    decoded(engine);
    const KvStats stats = engine.kv_stats();
    EXPECT_EQ(stats.recall_choices, std::uint64_t{60} * layers * 2) << "2 kv heads";
    const bool looks_once = attention.mode == AttentionMode::sparse && attention.sparse_heavy > 0;
    EXPECT_EQ(stats.recall_tokens_read, looks_once ? (59 * 64.0 + 301) / 60 : 64.0);
    EXPECT_FALSE(stats.recall_mass_left_out.has_value());
  }
}

TEST_F(SequenceInPart, WhatItWritesNeverAnswersForAnExactReading) {
  const test::LogitsTrace exact = expected_trace(tokens_);
  for (const AttentionOptions& attention : modes()) {
    Engine& engine = open(roomy_in(attention));
    const auto first = new_sequence(engine);
    ASSERT_TRUE(decode(engine, *first).ok());
    test::LogitsTrace trace;
    const auto second = new_sequence(engine);
    ASSERT_TRUE(test::append_traced(engine, *second, tokens_, 1, trace).ok());
    test::expect_same_trace(exact, trace);
  }
}

TEST_F(SequenceInPart, AForkGoesOnWithTheSameBits) {
  for (const AttentionOptions& attention : modes()) {
    expect_fork_goes_on(open(roomy_in(attention)));
  }
}

// A step that is repeated must not count twice what it gave to tokens.
TEST_F(SequenceInPart, AStepThatIsRepeatedChangesNothing) {
  for (const AttentionOptions& attention : modes()) {
    SCOPED_TRACE(to_string(attention.mode));
    const test::LogitsTrace expected = decoded(open(roomy_in(attention)));
    Engine& engine = open(tight(1, attention));
    const auto sequence = new_sequence(engine);
    ASSERT_TRUE(sequence->append(std::span(tokens_).first(prompt_tokens), nullptr, nullptr).ok());
    test::LogitsTrace trace;
    const std::uint64_t replayed = engine.kv_stats().pages_filled_by_replay;
    for (std::size_t i = 0; i < 12; ++i) {
      // A page of the prompt, which a replay gives the same bits.
      env_.set_plan({{.operation = EnvOperation::read,
                      .at = 1 + i % 3,
                      .kind = FaultKind::flip_bit,
                      .bit = 9'000 + i * 131}});
      ASSERT_TRUE(sequence->decode(tokens_[prompt_tokens + i]).ok());
      trace.push_back(hash_bytes(std::as_bytes(sequence->logits())));
      env_.set_plan({});
    }
    EXPECT_GT(engine.kv_stats().pages_filled_by_replay, replayed);
    test::expect_same_trace({expected.begin(), expected.begin() + 12}, trace);
  }
}

TEST_F(SequenceInPart, AfterAnotherPromptSparseReadsAllOnceMore) {
  Engine& engine = open(roomy_in(sparse(64)));
  const auto sequence = new_sequence(engine);
  ASSERT_TRUE(sequence->append(std::span(tokens_).first(prompt_tokens), nullptr, nullptr).ok());
  const auto tokens_read = [&] {
    const KvStats stats = engine.kv_stats();
    return stats.recall_tokens_read * static_cast<double>(stats.recall_choices) / (layers * 2);
  };
  ASSERT_TRUE(sequence->decode(tokens_[0]).ok());
  EXPECT_EQ(tokens_read(), 301);
  ASSERT_TRUE(sequence->decode(tokens_[1]).ok());
  EXPECT_EQ(tokens_read(), 301 + 64);
  ASSERT_TRUE(sequence->append(std::span(tokens_).first(5), nullptr, nullptr).ok());
  ASSERT_TRUE(sequence->decode(tokens_[2]).ok());
  EXPECT_EQ(tokens_read(), 301 + 64 + 308);
}

TEST_F(SequenceInPart, ReadsZonesInEveryStep) {
  for (const AttentionOptions& attention : {window(60), sparse(64, 0.2F, 0)}) {
    SCOPED_TRACE(to_string(attention.mode));
    const auto decoded_with_zone = [&](Engine& engine) {
      const auto sequence = new_sequence(engine);
      EXPECT_TRUE(sequence->keep(100, 14).ok()) << "96 to 119";
      return decode(engine, *sequence).value();
    };
    Engine& plain = open(roomy_in(attention));
    const test::LogitsTrace without = decoded(plain);
    const double read_without = plain.kv_stats().recall_tokens_read;
    Engine& engine = open(roomy_in(attention));
    const test::LogitsTrace expected = decoded_with_zone(engine);
    EXPECT_NE(expected, without);
    const double sampled = attention.mode == AttentionMode::sparse ? 4 : 0;  // of the zone
    EXPECT_GE(engine.kv_stats().recall_tokens_read, read_without + 24 - sampled);
    EXPECT_LE(engine.kv_stats().recall_tokens_read, read_without + 24);
    EngineOptions other = roomy_in(attention);
    other.threads = 3;
    other.chunk_tokens = 7;
    test::expect_same_trace(expected, decoded_with_zone(open(other)));
    test::expect_same_trace(expected, decoded_with_zone(open(tight(1, attention))));
  }
}

TEST_F(SequenceInPart, AZoneCountsFromTheNextStepOnAndOnce) {
  Engine& engine = open(roomy_in(window(60)));
  const auto sequence = new_sequence(engine);
  ASSERT_TRUE(sequence->append(std::span(tokens_).first(prompt_tokens), nullptr, nullptr).ok());
  std::uint64_t choices = 0;
  double read = 0;
  const auto read_by_next_step = [&](Sequence& by) {
    EXPECT_TRUE(by.decode(tokens_[0]).ok());
    const KvStats stats = engine.kv_stats();
    const double all = stats.recall_tokens_read * static_cast<double>(stats.recall_choices);
    const double mean = (all - read) / static_cast<double>(stats.recall_choices - choices);
    choices = stats.recall_choices;
    read = all;
    return mean;
  };
  EXPECT_EQ(read_by_next_step(*sequence), 64);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(sequence->keep(104, 1).ok());
    EXPECT_EQ(read_by_next_step(*sequence), 72);
  }
  const auto fork = sequence->fork();
  ASSERT_TRUE(fork.ok());
  EXPECT_EQ(read_by_next_step(**fork), 72) << "a fork has it too";
  ASSERT_TRUE((*fork)->keep(200, 8).ok());
  EXPECT_EQ(read_by_next_step(**fork), 80);
  EXPECT_EQ(read_by_next_step(*sequence), 72) << "and zones of its own";
}

TEST_F(SequenceInPart, AZoneOutsideTheContextIsRefused) {
  for (const AttentionOptions& attention : {AttentionOptions(), window(60)}) {
    Engine& engine = open(roomy_in(attention));
    const auto sequence = new_sequence(engine);
    EXPECT_TRUE(sequence->keep(context - 1, 1).ok()) << "tokens may come later";
    expect_helpful(sequence->keep(0, 0).error(), ErrorCode::invalid_argument, "at least one");
    for (const std::uint32_t tokens : {2U, 0xFFFF'FFFFU}) {
      expect_helpful(sequence->keep(context - 1, tokens).error(), ErrorCode::invalid_argument,
                     "room for 512");
    }
  }
}

TEST_F(SequenceInPart, ZonesDoNotChangeAnExactAnswer) {
  const test::LogitsTrace expected = decoded(open(roomy()));
  Engine& engine = open(roomy());
  const auto sequence = new_sequence(engine);
  ASSERT_TRUE(sequence->keep(8, 100).ok());
  test::expect_same_trace(expected, decode(engine, *sequence).value());
}

TEST_F(SequenceInPart, OptionsThatCannotBeUsedAreRefused) {
  expect_refused(roomy_in(window(0)), "--window-tokens 0");
  expect_refused(roomy_in(sparse(30)), "--sparse-tokens 30");
  expect_refused(roomy_in(sparse(64, 0.5F, 0.5F)), "--sparse-sample and --sparse-heavy");
  expect_refused(roomy_in(sparse(64, -0.1F)), "--sparse-sample");
  expect_refused(roomy_in(sparse(64, 0, 1)), "--sparse-heavy");
}

}  // namespace
}  // namespace headrace
