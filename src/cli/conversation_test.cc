#include "cli/conversation.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/fake_engine.h"

namespace headrace {
namespace {

std::vector<TokenId> bytes(std::string_view text) { return {text.begin(), text.end()}; }

TEST(UnreadFrom, APrefixIsContinuedAfterIt) {
  FakeEngine engine;
  EXPECT_EQ(unread_from(engine, bytes("xy"), bytes("xyz")), 2U);
  EXPECT_EQ(unread_from(engine, {}, bytes("xyz")), 0U);
}

TEST(UnreadFrom, NothingUnreadIsNoContinuation) {
  FakeEngine engine;
  EXPECT_EQ(unread_from(engine, bytes("xyz"), bytes("xyz")), std::nullopt);
  EXPECT_EQ(unread_from(engine, bytes("xyz"), bytes("xy")), std::nullopt);
}

TEST(UnreadFrom, TheSameTextInOtherTokensIsContinuedAtTheNextBorder) {
  FakeEngine engine;
  const std::vector<TokenId> read = {'x', 'a', 'b', 'y'};
  const std::vector<TokenId> full = {'x', FakeEngine::merged_token, 'y', FakeEngine::end_token};
  EXPECT_EQ(unread_from(engine, read, full), 3U);
  EXPECT_EQ(unread_from(engine, full, read), std::nullopt);
}

TEST(UnreadFrom, ABorderInsideATokenOrAnotherTextIsNoContinuation) {
  FakeEngine engine;
  const std::vector<TokenId> full = {'x', FakeEngine::merged_token, 'y'};
  EXPECT_EQ(unread_from(engine, bytes("xa"), full), std::nullopt);
  EXPECT_EQ(unread_from(engine, bytes("q"), full), std::nullopt);
}

TEST(Conversation, ASecondTurnReadsOnlyWhatIsNew) {
  FakeEngine engine;
  engine.answers = {bytes("Hello!"), bytes("Bye.")};
  Conversation conversation(engine);
  ASSERT_TRUE(conversation.say("Hi", {}).ok());
  ASSERT_TRUE(conversation.say("End", {}).ok());
  ASSERT_EQ(engine.reads.size(), 2U);
  EXPECT_EQ(engine.sequences_made, 1);
  std::string second;
  for (const TokenId token : engine.reads[1]) second += engine.token_bytes(token);
  // The last token of the answer was not read when it was generated.
  EXPECT_EQ(second, "!<end><start>user\nEnd<end><start>assistant\n");
}

TEST(Conversation, AnAnswerInUnusualTokensIsNotReadAgain) {
  FakeEngine engine;
  engine.answers = {{'a', 'b', '!', '?'}, bytes("ok")};
  Conversation conversation(engine);
  ASSERT_TRUE(conversation.say("Hi", {}).ok());
  ASSERT_TRUE(conversation.say("End", {}).ok());
  EXPECT_EQ(engine.sequences_made, 1);
  EXPECT_EQ(engine.reads[1].front(), '?');
}

TEST(Conversation, AnAnswerThatEndsInsideATokenIsReadAnew) {
  FakeEngine engine;
  engine.answers = {{'x', 'a', 'b'}, bytes("ok")};  // 'b' unread, and the text's token is "ab"
  Conversation conversation(engine);
  ASSERT_TRUE(conversation.say("Hi", {}).ok());
  ASSERT_TRUE(conversation.say("End", {}).ok());
  EXPECT_EQ(engine.sequences_made, 2);
  EXPECT_EQ(engine.reads[1].front(), FakeEngine::start_token);
}

TEST(Conversation, ATurnStoppedBeforeItsAnswerIsTakenBack) {
  FakeEngine engine;
  Conversation conversation(engine);
  GenerateOptions stop;
  stop.on_progress = [](std::uint32_t done, std::uint32_t) { return done < 3; };
  const auto generation = conversation.say("Hi", stop);
  ASSERT_TRUE(generation.ok());
  EXPECT_EQ(generation->finish_reason, "cancelled");
  EXPECT_EQ(conversation.messages(), 0U);
}

TEST(Conversation, AStoppedAnswerStaysInTheConversation) {
  FakeEngine engine;
  engine.answers = {bytes("Hello!"), bytes("ok")};
  Conversation conversation(engine);
  int pieces = 0;
  GenerateOptions stop;
  stop.on_text = [&](std::string_view) { return ++pieces < 3; };
  ASSERT_TRUE(conversation.say("Hi", stop).ok());
  EXPECT_EQ(conversation.messages(), 2U);
  ASSERT_TRUE(conversation.say("On", {}).ok());
  EXPECT_EQ(engine.sequences_made, 1);
}

TEST(Conversation, AFullContextIsAnErrorThatKeepsTheConversation) {
  FakeEngine engine;
  engine.context_tokens = 40;
  engine.answers = {bytes("Hello!"), bytes("ok")};
  Conversation conversation(engine);
  ASSERT_TRUE(conversation.say("Hi", {}).ok());
  const auto generation = conversation.say("A very long second question", {});
  ASSERT_FALSE(generation.ok());
  EXPECT_EQ(generation.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(conversation.messages(), 2U);
}

}  // namespace
}  // namespace headrace
