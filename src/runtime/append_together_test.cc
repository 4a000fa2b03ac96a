// Several sequences in one step give the bits that each gives alone (invariant 2), whatever the
// memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/runtime_test_engine.h"

namespace headrace {
namespace {

class AppendTogether : public TinyEngineTest {
 protected:
  static constexpr std::size_t count = 5;

  /// Prompts of different lengths, and the tokens that follow them.
  static std::vector<TokenId> prompt(std::size_t i) {
    return test::random_tokens(7 + 23 * i, static_cast<unsigned>(i));
  }
  static TokenId follower(std::size_t i, std::size_t step) {
    return static_cast<TokenId>((31 * i + 7 * step) % 288);
  }

  static EngineOptions with_room_for_all() {
    EngineOptions options = roomy();
    options.sequences = count;
    options.kv.memory_bytes = 64 << 20;
    return options;
  }

  /// Logits of each sequence after its prompt and after every follower, read alone.
  static std::vector<std::vector<float>> alone(Engine& engine, std::size_t steps) {
    std::vector<std::vector<float>> logits;
    for (std::size_t i = 0; i < count; ++i) {
      const auto sequence = new_sequence(engine);
      EXPECT_TRUE(sequence->append(prompt(i), nullptr, nullptr).ok());
      logits.emplace_back(sequence->logits().begin(), sequence->logits().end());
      for (std::size_t step = 0; step < steps; ++step) {
        const TokenId token = follower(i, step);
        EXPECT_TRUE(sequence->append({&token, 1}, nullptr, nullptr).ok());
        logits.emplace_back(sequence->logits().begin(), sequence->logits().end());
      }
    }
    return logits;
  }

  static void expect_equal(const Sequence& sequence, const std::vector<float>& expected) {
    ASSERT_EQ(sequence.logits().size(), expected.size());
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), sequence.logits().begin()));
  }

  void expect_same_together(const EngineOptions& options, std::size_t steps) {
    const auto expected = alone(open(with_room_for_all()), steps);
    Engine& engine = open(options);
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<std::vector<TokenId>> tokens;
    for (std::size_t i = 0; i < count; ++i) {
      sequences.push_back(new_sequence(engine));
      tokens.push_back(prompt(i));
    }
    for (std::size_t step = 0; step <= steps; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      std::vector<SequenceStep> parts;
      for (std::size_t i = 0; i < count; ++i) parts.push_back({sequences[i].get(), tokens[i]});
      const auto outcome = engine.append_together(parts);
      ASSERT_TRUE(outcome.ok()) << outcome.error().message;
      for (std::size_t i = 0; i < count; ++i) {
        SCOPED_TRACE("sequence " + std::to_string(i));
        expect_equal(*sequences[i], expected[i * (steps + 1) + step]);
        tokens[i] = {follower(i, step)};
      }
    }
    stats_ = engine.kv_stats();
    EXPECT_LE(stats_.kv_bytes_peak, stats_.kv_bytes_limit);
  }

  KvStats stats_;  // of the last expect_same_together()
};

TEST_F(AppendTogether, GivesTheBitsOfEachSequenceAlone) {
  expect_same_together(with_room_for_all(), 40);
}

TEST_F(AppendTogether, GivesThemWithPagesOnDiskToo) {
  EngineOptions options = with_room_for_all();
  // Each sequence's open block, and a few pages more.
  options.kv.memory_bytes = tight(count).kv.memory_bytes;
  for (const std::uint64_t more : {60, 80, 100}) {
    SCOPED_TRACE(std::to_string(more) + " KiB more");
    options.kv.memory_bytes = tight(count).kv.memory_bytes + (more << 10);
    expect_same_together(options, 12);
    EXPECT_GT(stats_.pages_written, 0U);
  }
}

TEST_F(AppendTogether, ReplaysAPageThatOneOfThemLost) {
  EngineOptions options = with_room_for_all();
  options.kv.memory_bytes = tight(count).kv.memory_bytes + (60 << 10);
  env_.set_plan({{.operation = EnvOperation::read, .at = 20, .kind = FaultKind::flip_bit}});
  expect_same_together(options, 12);
  EXPECT_EQ(stats_.pages_filled_by_replay, 1U);
}

TEST_F(AppendTogether, ReplaysOnlyWhatWasLostWhenRepeatsLosePagesToo) {
  EngineOptions options = with_room_for_all();
  options.kv.memory_bytes = tight(count).kv.memory_bytes + (60 << 10);
  for (std::uint64_t first = 2; first < 40; first += 3) {
    SCOPED_TRACE("from read " + std::to_string(first));
    FaultPlan plan;
    for (const std::uint64_t more : {0, 1, 4, 9}) {
      plan.push_back(
          {.operation = EnvOperation::read, .at = first + more, .kind = FaultKind::flip_bit});
    }
    env_.set_plan(plan);
    expect_same_together(options, 4);
    EXPECT_EQ(stats_.pages_filled_by_replay, stats_.pages_damaged);
  }
}

TEST_F(AppendTogether, RefusesWrongArgumentsBeforeReadingAnything) {
  Engine& engine = open(with_room_for_all());
  const auto a = new_sequence(engine);
  const auto b = new_sequence(engine);
  const std::vector<TokenId> tokens = {1, 2, 3};
  const std::vector<TokenId> unknown = {1, 288};
  const auto refused = [&](std::vector<SequenceStep> steps, const std::string& mentions) {
    const auto outcome = engine.append_together(steps);
    ASSERT_FALSE(outcome.ok());
    expect_helpful(outcome.error(), ErrorCode::invalid_argument, mentions);
    EXPECT_TRUE(a->tokens().empty());
    EXPECT_TRUE(b->tokens().empty());
  };
  refused({{a.get(), tokens}, {b.get(), unknown}}, "token 288");
  refused({{a.get(), tokens}, {b.get(), {}}}, "no text");
  refused({{a.get(), tokens}, {a.get(), tokens}}, "named twice");
  EXPECT_TRUE(engine.append_together({}).ok());
}

}  // namespace
}  // namespace headrace
