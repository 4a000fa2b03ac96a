#include "cli/eval_choices.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

constexpr const char* three =
    "{\"ctx\": \"A dog\", \"endings\": [\"barks.\", \" sings.\"], \"label\": 0}\n"
    "\n"
    "{\"ctx\": \"A cat\", \"endings\": [\"flies.\", \"sleeps.\", \"reads.\"], \"label\": \"1\"}\n"
    "{\"ctx\": \"A cow\", \"endings\": [\"eats.\", \"types.\"], \"label\": 0, \"id\": 7}";

EvalTaskSetup setup_of(std::uint32_t items, std::uint32_t context) {
  return {.sentences = {},
          .context_tokens = context,
          .items = items,
          .seed = 1,
          .count_tokens = [](std::string_view text) { return text.size(); }};
}

TEST(EvalChoices, AsksTheFirstLinesAfterTheOthersAsExamples) {
  const Result<EvalTask> task = make_choices_task(three, "f", setup_of(2, 1000));
  ASSERT_TRUE(task.ok()) << task.error().message;
  ASSERT_EQ(task->contexts.size(), 1U);
  const EvalContext& context = task->contexts[0];
  EXPECT_NE(context.text.find("\nA cow eats."), std::string::npos);
  ASSERT_EQ(context.questions.size(), 2U);
  EXPECT_EQ(context.questions[0].text, "\nA dog");
  EXPECT_EQ(context.questions[0].answers, (std::vector<std::string>{" barks.", " sings."}));
  EXPECT_EQ(context.questions[0].right, 0U);
  EXPECT_EQ(context.questions[1].right, 1U);
}

TEST(EvalChoices, ExamplesLeaveRoomForEveryQuestion) {
  const Result<EvalTask> task = make_choices_task(three, "f", setup_of(2, 50));
  ASSERT_TRUE(task.ok());
  EXPECT_EQ(task->contexts[0].text.find("cow"), std::string::npos);
  EXPECT_EQ(make_choices_task(three, "f", setup_of(2, 12)).error().code,
            ErrorCode::invalid_argument);
}

TEST(EvalChoices, ABadLineIsNamedWithItsFileAndNumber) {
  const struct {
    const char* line;
    const char* says;
  } lines[] = {
      {"not JSON", "object of JSON"},
      {"[1]", "object of JSON"},
      {R"({"endings": ["a", "b"], "label": 0})", "ctx"},
      {R"({"ctx": "x", "endings": ["a"], "label": 0})", "endings"},
      {R"({"ctx": "x", "endings": ["a", 2], "label": 0})", "endings"},
      {R"({"ctx": "x", "endings": ["a", ""], "label": 0})", "endings"},
      {R"({"ctx": "x", "endings": ["a", "b"]})", "from 0 to 1"},
      {R"({"ctx": "x", "endings": ["a", "b"], "label": 2})", "from 0 to 1"},
      {R"({"ctx": "x", "endings": ["a", "b"], "label": "b"})", "from 0 to 1"},
      {R"({"ctx": "x", "endings": ["a", "b"], "label": -1})", "from 0 to 1"},
  };
  for (const auto& [line, says] : lines) {
    const Result<EvalTask> task =
        make_choices_task(std::string(three) + "\n" + line, "my.jsonl", setup_of(2, 1000));
    ASSERT_FALSE(task.ok()) << line;
    EXPECT_EQ(task.error().code, ErrorCode::corrupt);
    EXPECT_EQ(task.error().message.find("my.jsonl:5: "), 0U) << task.error().message;
    EXPECT_NE(task.error().message.find(says), std::string::npos) << task.error().message;
  }
}

TEST(EvalChoices, AFileOfBlankLinesHasNothingToAsk) {
  const Result<EvalTask> task = make_choices_task("\n \n", "my.jsonl", setup_of(2, 1000));
  ASSERT_FALSE(task.ok());
  EXPECT_EQ(task.error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace headrace
