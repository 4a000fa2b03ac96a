#include "runtime/sequence.h"

#include <gtest/gtest.h>

#include <algorithm>
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

}  // namespace
}  // namespace headrace
