#include "cli/eval_task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

namespace headrace {
namespace {

std::vector<std::string> hay() {
  return {"The cat sat.", "The dog ran away.", "It rained.", "Nobody came to the old mill."};
}

/// Every byte is a token.
EvalTaskSetup setup_of(const std::vector<std::string>& sentences) {
  return {.sentences = sentences,
          .context_tokens = 4000,
          .items = 8,
          .seed = 3,
          .count_tokens = [](std::string_view text) { return text.size(); }};
}

EvalTask make(const std::string& name, const EvalTaskSetup& setup) {
  Result<EvalTask> task = make_eval_task(name, setup);
  EXPECT_TRUE(task.ok()) << name;
  return task.ok() ? *task : EvalTask();
}

bool same(const EvalTask& a, const EvalTask& b) {
  return std::ranges::equal(a.contexts, b.contexts, [](const EvalContext& x, const EvalContext& y) {
    return x.text == y.text &&
           std::ranges::equal(
               x.questions, y.questions, [](const EvalQuestion& p, const EvalQuestion& q) {
                 return p.text == q.text && p.answers == q.answers && p.right == q.right;
               });
  });
}

TEST(EvalTask, IsTheSameForTheSameSeedAndAnotherForAnother) {
  const std::vector<std::string> sentences = hay();
  EvalTaskSetup setup = setup_of(sentences);
  for (const std::string& name : eval_task_names()) {
    SCOPED_TRACE(name);
    setup.seed = 3;
    const EvalTask task = make(name, setup);
    EXPECT_TRUE(same(task, make(name, setup)));
    setup.seed = 4;
    EXPECT_FALSE(same(task, make(name, setup)));
  }
}

TEST(EvalTask, HasAsManyQuestionsAsAskedForAndFillsTheContext) {
  const std::vector<std::string> sentences = hay();
  EvalTaskSetup setup = setup_of(sentences);
  for (const std::string& name : eval_task_names()) {
    for (const std::uint32_t items : {1U, 7U, 8U}) {
      SCOPED_TRACE(name + " " + std::to_string(items));
      setup.items = items;
      const EvalTask task = make(name, setup);
      EXPECT_EQ(task.questions(), items);
      for (const EvalContext& context : task.contexts) {
        std::size_t longest = 0;
        for (const EvalQuestion& question : context.questions) {
          for (const std::string& answer : question.answers) {
            longest = std::max(longest, question.text.size() + answer.size());
          }
        }
        EXPECT_LE(context.text.size() + longest, 4000U);
        EXPECT_GT(context.text.size() + longest, 3800U);
      }
    }
  }
}

TEST(EvalTask, TheContextHasWhatTheQuestionAsksFor) {
  const std::vector<std::string> sentences = hay();
  for (const std::string name : {"passkey", "needle", "variables", "induction"}) {
    SCOPED_TRACE(name);
    for (const EvalContext& context : make(name, setup_of(sentences)).contexts) {
      for (const EvalQuestion& question : context.questions) {
        ASSERT_EQ(question.answers.size(), 1U);
        std::string fact = question.text + question.answers[0];
        // A question of variables has the way so far before it, that of a pass key is put in words.
        if (name == "variables") fact = fact.substr(question.text.rfind(" VAR"));
        if (name == "passkey") fact = " The pass key is" + question.answers[0];
        fact = fact.substr(1);
        EXPECT_NE(context.text.find(fact), std::string::npos) << fact;
      }
    }
  }
}

TEST(EvalTask, PasskeysLieAtEveryDepth) {
  const std::vector<std::string> sentences = hay();
  const EvalTask task = make("passkey", setup_of(sentences));
  std::size_t before = 0;
  for (std::size_t i = 0; i < task.contexts.size(); ++i) {
    const std::string& text = task.contexts[i].text;
    const double depth =
        static_cast<double>(text.find("The pass key is")) / static_cast<double>(text.size());
    EXPECT_NEAR(depth, (static_cast<double>(i) + 0.5) / 8, 0.09) << i;
    EXPECT_GT(text.find("The pass key is"), before);
    before = text.find("The pass key is");
  }
}

TEST(EvalTask, AChainOfVariablesIsFollowedToItsValue) {
  const std::vector<std::string> sentences = hay();
  const EvalTask task = make("variables", setup_of(sentences));
  const std::vector<EvalQuestion>& questions = task.contexts[0].questions;
  ASSERT_EQ(questions.size(), 6U);
  EXPECT_EQ(questions[0].text + questions[0].answers[0] + "." +
                questions[1].text.substr(questions[1].text.rfind(" VAR")),
            questions[1].text);
  EXPECT_EQ(questions[2].answers[0].find_first_not_of(" 0123456789"), std::string::npos)
      << "the last link is the value: " << questions[2].answers[0];
}

TEST(EvalTask, FrequentWordsAreMoreFrequentThanTheOthersToChooseFrom) {
  const std::vector<std::string> sentences = hay();
  for (const EvalContext& context : make("words", setup_of(sentences)).contexts) {
    std::map<std::string, int> counts;
    std::istringstream text(context.text.substr(context.text.find('.') + 1));
    for (std::string word; text >> word;) ++counts[word];
    for (const EvalQuestion& question : context.questions) {
      ASSERT_EQ(question.answers.size(), 4U);
      for (std::size_t i = 0; i < 4; ++i) {
        if (i == question.right) continue;
        EXPECT_GT(counts[question.answers[question.right]], 2 * counts[question.answers[i]]);
      }
    }
  }
}

TEST(EvalTask, AContextThatIsTooSmallSaysHowManyTokensItNeeds) {
  const std::vector<std::string> sentences = hay();
  EvalTaskSetup setup = setup_of(sentences);
  setup.context_tokens = 60;
  for (const std::string& name : eval_task_names()) {
    const Result<EvalTask> task = make_eval_task(name, setup);
    ASSERT_FALSE(task.ok()) << name;
    EXPECT_EQ(task.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(task.error().message.find("give at least"), std::string::npos);
  }
}

TEST(SplitSentences, KeepsWordsAndNoLineBreaks) {
  EXPECT_EQ(split_sentences("One two.  Three\nfour!\n\nFive\tsix"),
            (std::vector<std::string>{"One two.", "Three four!", "Five six"}));
  EXPECT_EQ(split_sentences(" \n "), std::vector<std::string>{});
}

TEST(SplitSentences, CutsWhatHasNoEnd) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "word ";
  const std::vector<std::string> sentences = split_sentences(text);
  EXPECT_EQ(sentences.size(), 4U);
  for (const std::string& sentence : sentences) EXPECT_LE(sentence.size(), 404U);
}

TEST(MadeUpSentences, DependOnTheSeedAlone) {
  EXPECT_EQ(made_up_sentences(20, 1), made_up_sentences(20, 1));
  EXPECT_NE(made_up_sentences(20, 1), made_up_sentences(20, 2));
  EXPECT_EQ(made_up_sentences(1, 1)[0].back(), '.');
}

}  // namespace
}  // namespace headrace
