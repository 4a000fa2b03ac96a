#include "cli/eval_run.h"

#include <gtest/gtest.h>

#include "cli/fake_engine.h"

namespace headrace {
namespace {

/// A model that goes on as its text has gone on before: after "b" what followed the last "b" but
/// one, and "?" where there is none.
void copy_what_followed(FakeEngine& engine) {
  engine.fill_logits = [](std::vector<float>& row, std::span<const TokenId> tokens) {
    row.assign(FakeEngine::vocabulary, 0.0F);
    TokenId next = '?';
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      if (tokens[i] == tokens.back()) next = tokens[i + 1];
    }
    row[static_cast<std::size_t>(next)] = 9.0F;
  };
}

class EvalRun : public testing::Test {
 protected:
  EvalRun() {
    copy_what_followed(engine_);
    options_ = {.now = [this] { return std::chrono::seconds(seconds_++); },
                .go_on = [this] { return goes_on_; }};
  }

  std::vector<bool> ask(const EvalTask& task) {
    const Result<EvalAnswers> answers = run_eval_task(engine_, task, options_);
    EXPECT_TRUE(answers.ok());
    if (!answers.ok()) return {};
    answers_ = *answers;
    return answers->right;
  }

  FakeEngine engine_;
  EvalRunOptions options_;
  EvalAnswers answers_;
  bool goes_on_ = true;
  int seconds_ = 0;
};

TEST_F(EvalRun, AnAnswerIsRightIfItsTokensAreTheLikeliest) {
  const EvalTask task = {.name = "t",
                         .contexts = {{.text = "xyz.",
                                       .questions = {{.text = "!x", .answers = {"yz"}},
                                                     {.text = "!x", .answers = {"yx"}},
                                                     {.text = "!x", .answers = {"zz"}}}}}};
  EXPECT_EQ(ask(task), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(answers_.steps, 3U * 2 + 2) << "each question, and an answer up to its last token";
  EXPECT_GT(answers_.seconds, 0);
}

TEST_F(EvalRun, OfSeveralTheLikeliestPerByteIsChosen) {
  const EvalTask task = {
      .name = "t",
      .contexts = {{.text = "xyz.",
                    .questions = {{.text = "!x", .answers = {"zz", "yz", "?"}, .right = 1},
                                  {.text = "!x", .answers = {"zz", "yz"}, .right = 0}}}}};
  EXPECT_EQ(ask(task), (std::vector<bool>{true, false}));
}

TEST_F(EvalRun, AContextIsReadAtOnceAndQuestionsAreDecodedAfterIt) {
  int decodes = 0;
  engine_.on_decode = [&] { ++decodes; };
  const EvalTask task = {.name = "t",
                         .contexts = {{.text = "xyz.",
                                       .questions = {{.text = "!x", .answers = {"y"}},
                                                     {.text = "!y", .answers = {"z"}}}}}};
  EXPECT_EQ(ask(task), (std::vector<bool>{true, true}));
  EXPECT_EQ(engine_.sequences_made, 1);
  EXPECT_EQ(engine_.reads[0], (std::vector<TokenId>{'x', 'y', 'z', '.'}));
  EXPECT_EQ(decodes, 4);
}

TEST_F(EvalRun, WhatIsNotWantedIsNotReadAndNotRight) {
  const EvalTask task = {
      .name = "t",
      .contexts = {
          {.text = "xyz.", .questions = {{.text = "!x", .answers = {"y"}}}},
          {.text = "abc.",
           .questions = {{.text = "!b", .answers = {"c"}}, {.text = "!z", .answers = {"?"}}}}}};
  options_.wanted = {false, false, true};
  EXPECT_EQ(ask(task), (std::vector<bool>{false, false, true}));
  EXPECT_EQ(engine_.sequences_made, 1);
}

TEST_F(EvalRun, TokensThatSpanQuestionAndAnswerBelongToTheAnswer) {
  // 'a' and 'b' are one token together.
  const EvalTask task = {
      .name = "t",
      .contexts = {{.text = "x!abc", .questions = {{.text = "!a", .answers = {"bc"}}}}}};
  EXPECT_EQ(ask(task), std::vector<bool>{true});
  EXPECT_EQ(answers_.steps, 2U);
}

TEST_F(EvalRun, StopsWhenToldTo) {
  goes_on_ = false;
  const EvalTask task = {
      .name = "t", .contexts = {{.text = "xyz.", .questions = {{.text = "!x", .answers = {"y"}}}}}};
  const Result<EvalAnswers> answers = run_eval_task(engine_, task, options_);
  ASSERT_FALSE(answers.ok());
  EXPECT_EQ(answers.error().code, ErrorCode::cancelled);
}

}  // namespace
}  // namespace headrace
