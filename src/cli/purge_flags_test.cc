#include "cli/purge_flags.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

class Purges : public CommandTest {
 protected:
  Purges() {
    prepare = [this](FakeEngine& engine, int) {
      engine.answers = {bytes("A."), bytes("B."), bytes("C."), bytes("D."), bytes("E.")};
      engine.before_each_token = [this, &engine] { purges = engine.purges; };
      if (fails) engine.fail_purging = Error{ErrorCode::io, "the disk is full"};
    };
    in.str("1\n2\n3\n4\n5\n");
  }
  std::vector<std::string> chat(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"chat",   "-m",          "m",    "--attention",
                                          "recall", "--kv-memory", "64MiB"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static std::size_t count(const std::string& text, const std::string& what) {
    std::size_t times = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
      ++times;
    return times;
  }
  bool fails = false;
  std::vector<PurgeOptions> purges;
};

TEST_F(Purges, ComeAfterEverySoManyAnswers) {
  EXPECT_EQ(run(chat({"--purge-every", "2", "--purge-keep", "0.4"})), exit_ok);
  ASSERT_EQ(purges.size(), 2U);
  EXPECT_EQ(purges[0].keep_ratio, 0.4F);
  EXPECT_EQ(purges[0].tokens, 0U) << "of all";
  EXPECT_EQ(count(err.str(), "(2 MiB left memory)"), 2U) << err.str();
}

TEST_F(Purges, AreOffByDefaultAndKeepSevenTenths) {
  EXPECT_EQ(run(chat({})), exit_ok);
  EXPECT_TRUE(purges.empty());
  in.clear();
  in.str("1\n2\n");
  EXPECT_EQ(run(chat({"--purge-every", "1"})), exit_ok);
  ASSERT_FALSE(purges.empty());
  EXPECT_EQ(purges[0].keep_ratio, 0.7F);
}

TEST_F(Purges, ThatFailEndNoConversation) {
  fails = true;
  EXPECT_EQ(run(chat({"--purge-every", "4"})), exit_ok);
  EXPECT_EQ(count(err.str(), "(nothing left memory: the disk is full)"), 1U) << err.str();
  EXPECT_EQ(out.str(), "A.\nB.\nC.\nD.\nE.\n");
}

TEST_F(Purges, OfATopicAreOfItsTokensAndComeBeforeTheAnswer) {
  in.str(
      "grow tomatoes in balcony pots\nwater the tomatoes\nrecommend chess openings please\n"
      "now tournament strategies please\nneutron scattering instruments\n");
  EXPECT_EQ(run(chat({"--topic-shift"})), exit_ok);
  // Behind "A." and "B.", each without its last token; then behind "D.".
  const FakeEngine engine;
  std::vector<ChatMessage> messages = {{"user", "grow tomatoes in balcony pots"},
                                       {"assistant", "A."},
                                       {"user", "water the tomatoes"}};
  const auto length = static_cast<std::uint32_t>(engine.chat_prompt(messages)->size() + 1);
  ASSERT_EQ(purges.size(), 2U) << err.str();
  EXPECT_EQ(purges[0].first_token, 0U);
  EXPECT_EQ(purges[0].tokens, length);
  EXPECT_EQ(purges[0].keep_ratio, 0.0F);
  EXPECT_EQ(purges[1].first_token, length);
  EXPECT_EQ(count(err.str(), "(a new topic; of the one before 2 MiB left memory)"), 2U)
      << err.str();
  EXPECT_EQ(out.str(), "A.\nB.\nC.\nD.\nE.\n");
}

TEST_F(Purges, ThatCannotHelpAreRefused) {
  EXPECT_EQ(run({"chat", "-m", "m", "--attention", "recall", "--purge-every", "2"}), exit_usage);
  EXPECT_NE(err.str().find("--purge-every needs --kv-memory"), std::string::npos) << err.str();
  err.str("");
  EXPECT_EQ(run({"chat", "-m", "m", "--kv-memory", "64MiB", "--topic-shift"}), exit_usage);
  EXPECT_NE(err.str().find("--topic-shift changes nothing with --attention exact"),
            std::string::npos);
  EXPECT_EQ(run(chat({"--purge-every", "2", "--kv-evicted", "recipe"})), exit_usage);
  EXPECT_EQ(run(chat({"--purge-every", "2", "--purge-keep", "1.5"})), exit_usage);
  EXPECT_EQ(run(chat({"--purge-keep", "0.5"})), exit_usage) << "of nothing";
  EXPECT_TRUE(opened.empty());
}

}  // namespace
}  // namespace headrace
