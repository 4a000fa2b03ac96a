#include "runtime/sequence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "runtime/runtime_test_engine.h"

namespace headrace {
namespace {

// -------------------------------------------------------------------------------------- append()

using SequenceAppend = TinyEngineTest;

TEST_F(SequenceAppend, RefusesTokensThatCannotBeReadAndGoesOn) {
  EngineOptions options = roomy();
  options.context = 64;
  Engine& engine = open(options);
  const auto sequence = new_sequence(engine);
  EXPECT_TRUE(sequence->logits().empty());
  ASSERT_TRUE(sequence->append(test::random_tokens(10, 1), nullptr, nullptr).ok());
  const std::vector<float> logits(sequence->logits().begin(), sequence->logits().end());
  ASSERT_EQ(logits.size(), 288U);

  const auto expect_refused = [&](const std::vector<TokenId>& tokens, const std::string& mentions) {
    const auto outcome = sequence->append(tokens, nullptr, nullptr);
    ASSERT_FALSE(outcome.ok()) << mentions;
    expect_helpful(outcome.error(), ErrorCode::invalid_argument, mentions);
    EXPECT_EQ(sequence->tokens().size(), 10U);
    EXPECT_TRUE(std::equal(logits.begin(), logits.end(), sequence->logits().begin()));
  };
  expect_refused({}, "no text");
  expect_refused({-1}, "token -1 is not in the vocabulary of 288");
  expect_refused({5, 288}, "token 288");
  expect_refused({2'147'483'647}, "token 2147483647");
  expect_refused(test::random_tokens(55, 2), "65 tokens and the context has room for 64");

  const auto outcome = sequence->append(test::random_tokens(54, 3), nullptr, nullptr);
  EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  EXPECT_EQ(sequence->tokens().size(), 64U);
  EXPECT_FALSE(sequence->append({{1}}, nullptr, nullptr).ok()) << "the context is full";
}

TEST_F(SequenceAppend, AdviceOnALongTextDependsOnWhetherTheContextCanGrow) {
  for (const std::uint32_t most : {512U, 1024U}) {
    EngineOptions options = roomy();
    options.context = most;
    Engine& engine = open(options);
    const auto outcome =
        new_sequence(engine)->append(test::random_tokens(1'025, 1), nullptr, nullptr);
    ASSERT_FALSE(outcome.ok());
    expect_helpful(outcome.error(), ErrorCode::invalid_argument,
                   most == 1024 ? "all that this model was trained for; shorten"
                                : "raise --context (this model: up to 1024)");
  }
}

TEST_F(SequenceAppend, ReportsProgressByChunkAndLogitsOfEveryPosition) {
  Engine& engine = open(roomy());
  const auto sequence = new_sequence(engine);
  std::vector<std::uint32_t> progress;
  std::vector<std::uint32_t> positions;
  const std::vector<TokenId> tokens = test::random_tokens(70, 1);
  for (const auto part : {std::span(tokens).first(65), std::span(tokens).subspan(65)}) {
    const auto outcome = sequence->append(
        part,
        [&](std::uint32_t done, std::uint32_t total) {
          EXPECT_EQ(total, part.size());
          progress.push_back(done);
          return true;
        },
        [&](std::uint32_t position, const float*) {
          positions.push_back(position);
          return true;
        });
    ASSERT_TRUE(outcome.ok());
  }
  EXPECT_EQ(progress, (std::vector<std::uint32_t>{32, 64, 65, 5}));
  ASSERT_EQ(positions.size(), 70U);
  for (std::uint32_t i = 0; i < 70; ++i) EXPECT_EQ(positions[i], i);
  EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), sequence->tokens().begin(),
                         sequence->tokens().end()));
}

TEST_F(SequenceAppend, LogitsAreThoseOfTheLastTokenWithAndWithoutACallback) {
  Engine& engine = open(roomy());
  const std::vector<TokenId> tokens = test::random_tokens(45, 1);
  std::vector<float> last;
  const auto with = new_sequence(engine);
  ASSERT_TRUE(with->append(tokens, nullptr,
                           [&](std::uint32_t, const float* logits) {
                             last.assign(logits, logits + 288);
                             return true;
                           })
                  .ok());
  const auto without = new_sequence(engine);
  ASSERT_TRUE(without->append(tokens, nullptr, nullptr).ok());
  EXPECT_TRUE(std::ranges::equal(last, with->logits()));
  EXPECT_TRUE(std::ranges::equal(last, without->logits()));
}

TEST_F(SequenceAppend, StopsAfterTheChunkInWhichACallbackSaysSo) {
  Engine& engine = open(roomy());
  const std::vector<TokenId> tokens = test::random_tokens(100, 1);
  const auto by_progress = new_sequence(engine);
  auto outcome = by_progress->append(
      tokens, [](std::uint32_t done, std::uint32_t) { return done < 64; }, nullptr);
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::cancelled);
  EXPECT_EQ(by_progress->tokens().size(), 64U);

  const auto by_logits = new_sequence(engine);
  int calls = 0;
  outcome = by_logits->append(tokens, nullptr, [&](std::uint32_t position, const float*) {
    ++calls;
    return position < 40;
  });
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::cancelled);
  EXPECT_EQ(calls, 41) << "not called again after it said stop";
  EXPECT_EQ(by_logits->tokens().size(), 64U);

  // Both can go on.
  ASSERT_TRUE(by_progress->append(std::span(tokens).subspan(64), nullptr, nullptr).ok());
  ASSERT_TRUE(by_logits->append(std::span(tokens).subspan(64), nullptr, nullptr).ok());
  EXPECT_TRUE(std::ranges::equal(by_progress->logits(), by_logits->logits()));
}

// ------------------------------------------------------------------------------------ generate()

class SequenceGenerate : public TinyEngineTest {
 protected:
  static GenerateOptions options(std::uint32_t max_tokens) {
    GenerateOptions options;
    options.max_tokens = max_tokens;
    options.ignore_end = true;
    return options;
  }

  const std::vector<TokenId> prompt_ = test::random_tokens(40, 6);
};

TEST_F(SequenceGenerate, EndsWithLengthAfterTheTokensThatWereAskedFor) {
  Engine& engine = open(roomy());
  const auto sequence = new_sequence(engine);
  for (const std::uint32_t most : {1U, 2U, 20U}) {
    const std::size_t before = sequence->tokens().size();
    const auto answer = sequence->generate(prompt_, options(most));
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(answer->finish_reason, "length");
    EXPECT_EQ(answer->tokens.size(), most);
    EXPECT_EQ(answer->prompt_tokens, prompt_.size());
    EXPECT_EQ(sequence->tokens().size(), before + prompt_.size() + most - 1)
        << "the last one is not read: nothing follows it";
    EXPECT_GE(answer->prefill_seconds, 0.0);
    EXPECT_GE(answer->decode_seconds, 0.0);
  }
}

TEST_F(SequenceGenerate, TheAnswerIsTheSameWithTheLeastMemory) {
  const auto answer = [&](const EngineOptions& engine_options) {
    Engine& engine = open(engine_options);
    auto generated = new_sequence(engine)->generate(prompt_, options(60));
    EXPECT_TRUE(generated.ok()) << generated.error().message;
    return std::move(generated).value();
  };
  const Generation roomy_answer = answer(roomy());
  const Generation tight_answer = answer(tight());
  EXPECT_EQ(roomy_answer.tokens, tight_answer.tokens);
  EXPECT_EQ(roomy_answer.text, tight_answer.text);
}

TEST_F(SequenceGenerate, WithoutALimitGoesOnUntilTheContextIsFull) {
  EngineOptions engine_options = tight();
  engine_options.context = 256;
  Engine& engine = open(engine_options);
  const auto sequence = new_sequence(engine);
  const auto answer = sequence->generate(prompt_, options(0));
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->finish_reason, "length");
  EXPECT_EQ(sequence->tokens().size(), 256U);
  // The last one has no place in the context any more, and needs none.
  EXPECT_EQ(answer->tokens.size(), 256 - prompt_.size() + 1);
}

TEST_F(SequenceGenerate, APromptThatFillsTheContextStillGetsOneToken) {
  EngineOptions engine_options = roomy();
  engine_options.context = static_cast<std::uint32_t>(prompt_.size());
  Engine& engine = open(engine_options);
  const auto answer = new_sequence(engine)->generate(prompt_, options(10));
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->finish_reason, "length");
  EXPECT_EQ(answer->tokens.size(), 1U);
}

TEST_F(SequenceGenerate, RefusesAPromptThatIsEmptyOrTooLongAndGoesOn) {
  Engine& engine = open(roomy());
  const auto sequence = new_sequence(engine);
  const auto empty = sequence->generate({}, options(1));
  ASSERT_FALSE(empty.ok());
  expect_helpful(empty.error(), ErrorCode::invalid_argument, "no text");
  const auto long_prompt = test::random_tokens(context + 1, 1);
  const auto too_long = sequence->generate(long_prompt, options(1));
  ASSERT_FALSE(too_long.ok());
  expect_helpful(too_long.error(), ErrorCode::invalid_argument, "513 tokens");
  EXPECT_TRUE(sequence->tokens().empty());
  EXPECT_TRUE(sequence->generate(prompt_, options(1)).ok());
}

/// With so much variety every token comes some time, also the one that ends.
TEST_F(SequenceGenerate, EndsWithStopAtAnEndTokenUnlessThatIsIgnored) {
  Engine& engine = open(roomy());
  GenerateOptions varied = options(0);
  varied.ignore_end = false;
  varied.sampling = {.temperature = 20.0F, .top_k = 0, .top_p = 1.0F, .min_p = 0.0F};
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    varied.sampling.seed = seed;
    const auto sequence = new_sequence(engine);
    const auto answer = sequence->generate(prompt_, varied);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    if (answer->finish_reason == "length") continue;
    EXPECT_EQ(answer->finish_reason, "stop");
    for (const TokenId token : answer->tokens) EXPECT_FALSE(engine.is_end_of_generation(token));
    EXPECT_EQ(sequence->tokens().size(), prompt_.size() + answer->tokens.size());

    GenerateOptions ignoring = varied;
    ignoring.ignore_end = true;
    ignoring.max_tokens = static_cast<std::uint32_t>(answer->tokens.size()) + 2;
    const auto longer = new_sequence(engine)->generate(prompt_, ignoring);
    ASSERT_TRUE(longer.ok());
    EXPECT_EQ(longer->finish_reason, "length");
    ASSERT_EQ(longer->tokens.size(), answer->tokens.size() + 2);
    EXPECT_TRUE(engine.is_end_of_generation(longer->tokens[answer->tokens.size()]));
    return;
  }
  FAIL() << "no seed of 20 gave an end token";
}

TEST_F(SequenceGenerate, EndsWithCancelledWhenProgressIsStoppedInThePrompt) {
  Engine& engine = open(roomy());
  const auto sequence = new_sequence(engine);
  GenerateOptions stopping = options(10);
  stopping.on_progress = [](std::uint32_t, std::uint32_t) { return false; };
  stopping.on_text = [](std::string_view) {
    ADD_FAILURE() << "nothing is generated";
    return true;
  };
  const auto answer = sequence->generate(prompt_, stopping);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->finish_reason, "cancelled");
  EXPECT_TRUE(answer->tokens.empty());
  EXPECT_EQ(answer->prompt_tokens, 32U) << "the chunk that was read";
  EXPECT_EQ(sequence->tokens().size(), 32U);
  EXPECT_TRUE(sequence->generate(std::span(prompt_).subspan(32), options(1)).ok());
}

TEST_F(SequenceGenerate, EndsWithCancelledWhenTheTextIsStopped) {
  Engine& engine = open(roomy());
  const auto sequence = new_sequence(engine);
  GenerateOptions stopping = options(100);
  int pieces = 0;
  std::string text;
  stopping.on_text = [&](std::string_view piece) {
    text += piece;
    return ++pieces < 3;
  };
  const auto answer = sequence->generate(prompt_, stopping);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->finish_reason, "cancelled");
  EXPECT_EQ(pieces, 3);
  EXPECT_EQ(answer->text, text);
  EXPECT_GE(answer->tokens.size(), 3U);
  EXPECT_LT(answer->tokens.size(), 100U);
  EXPECT_TRUE(sequence->generate(prompt_, options(1)).ok());
}

TEST_F(SequenceGenerate, ThePiecesOfTextMakeTheWholeText) {
  Engine& engine = open(roomy());
  GenerateOptions listening = options(100);
  std::string text;
  listening.on_text = [&](std::string_view piece) {
    EXPECT_FALSE(piece.empty());
    text += piece;
    return true;
  };
  const auto answer = new_sequence(engine)->generate(prompt_, listening);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->text, text);
}

TEST_F(SequenceGenerate, ADiskThatFailsInTheMiddleIsAnErrorAndNotAShortAnswer) {
  Engine& engine = open(tight());
  const auto sequence = new_sequence(engine);
  ASSERT_TRUE(sequence->append(test::random_tokens(64, 1), nullptr, nullptr).ok());
  env_.set_plan({{.operation = EnvOperation::write,
                  .at = 4,
                  .lasting = true,
                  .code = ErrorCode::out_of_budget}});
  const auto answer = sequence->generate(prompt_, options(100));
  ASSERT_FALSE(answer.ok());
  expect_helpful(answer.error(), ErrorCode::out_of_budget, "--kv-disk");
  env_.set_plan({});
  EXPECT_TRUE(sequence->generate(prompt_, options(10)).ok());
}

// ------------------------------------------------------------------------- guesses by prompt
// lookup

class SequenceGuesses : public SequenceGenerate {
 protected:
  /// What is left of a generation when its speed does not count.
  struct Outcome {
    std::vector<TokenId> answer;
    std::string text;
    std::string reason;
    std::vector<TokenId> read;
    std::vector<float> logits;
    bool operator==(const Outcome&) const = default;
  };

  Outcome generate(Engine& engine, GenerateOptions generate_options, std::uint32_t guesses) {
    generate_options.prompt_lookup_tokens = guesses;
    const auto sequence = new_sequence(engine);
    const auto generated = sequence->generate(prompt_, generate_options);
    EXPECT_TRUE(generated.ok()) << generated.error().message;
    EXPECT_LE(generated->guesses_kept, generated->guessed_tokens);
    EXPECT_TRUE(guesses > 0 || generated->guessed_tokens == 0);
    guessed_ += generated->guessed_tokens;
    kept_ += generated->guesses_kept;
    const auto read = sequence->tokens();
    const auto logits = sequence->logits();
    return {generated->tokens,
            generated->text,
            generated->finish_reason,
            {read.begin(), read.end()},
            {logits.begin(), logits.end()}};
  }

  void expect_the_same_with_guesses(Engine& engine, const GenerateOptions& generate_options) {
    const Outcome without = generate(engine, generate_options, 0);
    for (const std::uint32_t guesses : {1U, 3U, 10U, 100U}) {
      const Outcome with = generate(engine, generate_options, guesses);
      EXPECT_TRUE(with == without) << guesses << " guesses a step";
    }
  }

  std::uint64_t guessed_ = 0;
  std::uint64_t kept_ = 0;
};

TEST_F(SequenceGuesses, ChangeNoTokenNorLogitWhateverTheMemory) {
  // The tiny model soon repeats itself, so many guesses are right.
  expect_the_same_with_guesses(open(roomy()), options(120));
  EXPECT_GT(kept_, 50U);
  expect_the_same_with_guesses(open(tight()), options(120));
}

TEST_F(SequenceGuesses, ChangeNoDrawOfASeed) {
  Engine& engine = open(roomy());
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    GenerateOptions varied = options(80);
    varied.ignore_end = false;
    varied.sampling = {.temperature = 1.5F, .repeat_penalty = 1.1F, .seed = seed};
    expect_the_same_with_guesses(engine, varied);
  }
  EXPECT_GT(kept_, 0U);
  EXPECT_GT(guessed_, kept_) << "some are wrong";
}

TEST_F(SequenceGuesses, EndWithTheContext) {
  EngineOptions engine_options = tight();
  engine_options.context = 200;
  expect_the_same_with_guesses(open(engine_options), options(0));
}

TEST_F(SequenceGuesses, AreNotReadBeyondATextThatWasStopped) {
  Engine& engine = open(roomy());
  for (const int most : {5, 6, 7, 20}) {
    int pieces = 0;
    GenerateOptions stopping = options(100);
    stopping.on_text = [&](std::string_view) { return ++pieces % most != 0; };
    expect_the_same_with_guesses(engine, stopping);
  }
}

// --------------------------------------------------------------------------------------- recall

class SequenceRecall : public DecodingTest {
 protected:
  static AttentionOptions recall(std::uint32_t tokens) {
    AttentionOptions attention;
    attention.mode = AttentionMode::recall;
    attention.recall_tokens = tokens;
    attention.recall_mass = 1;
    attention.recall_share = 0;
    attention.recall_first = 4;
    attention.recall_newest = 16;
    return attention;
  }

  static EngineOptions roomy_recall(std::uint32_t tokens = 64) {
    EngineOptions options = roomy();
    options.attention = recall(tokens);
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
  Engine& engine = open(tight(1, recall(64)));
  test::expect_same_trace(expected, decoded(engine));
  EXPECT_GT(engine.kv_stats().pages_filled_from_disk, 0U);
  EXPECT_LE(engine.kv_stats().kv_bytes_peak, engine.kv_stats().kv_bytes_limit);
}

TEST_F(SequenceRecall, KeepsGroupsInMemoryAndGivesTheSameBitsWithAnyNumberOfThem) {
  for (const bool by_layer : {false, true}) {
    for (const std::uint32_t group : {4U, 16U}) {
      AttentionOptions attention = recall(64);
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

TEST_F(SequenceRecall, TellsWhatLeavesMemoryAndWhy) {
  EngineOptions options = tight(1, recall(64));
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
    AttentionOptions attention = recall(64);
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

TEST_F(SequenceRecall, GivesItsSlotsBackWhenOthersNeedThem) {
  EngineOptions options = tight(2, recall(64));
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
  Engine& engine = open(tight(1, recall(64)));
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
  EngineOptions options = roomy_recall(30);
  const auto small = try_open(options);
  ASSERT_FALSE(small.ok());
  expect_helpful(small.error(), ErrorCode::invalid_argument, "--recall-tokens 30");
  options = roomy_recall();
  options.attention.recall_group = 5;
  const auto odd = try_open(options);
  ASSERT_FALSE(odd.ok());
  expect_helpful(odd.error(), ErrorCode::invalid_argument, "--recall-group 5");
  options = roomy_recall();
  options.attention.recall_mass = 1.5;
  const auto much = try_open(options);
  ASSERT_FALSE(much.ok());
  expect_helpful(much.error(), ErrorCode::invalid_argument, "--recall-mass");
  options = roomy_recall();
  options.attention.recall_share = -1;
  const auto negative = try_open(options);
  ASSERT_FALSE(negative.ok());
  expect_helpful(negative.error(), ErrorCode::invalid_argument, "--recall-share");
  options = roomy_recall();
  options.attention.recall_load_tokens = 7;
  const auto few = try_open(options);
  ASSERT_FALSE(few.ok());
  expect_helpful(few.error(), ErrorCode::invalid_argument, "--recall-load-tokens 7");
}

}  // namespace
}  // namespace headrace
