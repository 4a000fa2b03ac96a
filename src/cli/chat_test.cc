#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

class Chat : public CommandTest {
 protected:
  Chat() {
    prepare = [this](FakeEngine& engine, int) {
      engine.answers = {bytes("One."), bytes("Two.")};
      if (more) more(engine);
    };
  }
  std::function<void(FakeEngine&)> more;
};

TEST_F(Chat, AnswersEachLineUntilTheInputEnds) {
  in.str("Hi\n\nMore\r\n");
  EXPECT_EQ(run({"chat", "-m", "m"}), exit_ok);
  EXPECT_EQ(out.str(), "One.\nTwo.\n");
  EXPECT_EQ(err.str(), "") << "no prompt where nobody types";
}

TEST_F(Chat, ATerminalGetsAPrompt) {
  in_is_terminal = true;
  in.str("Hi\n/exit\nMore\n");
  EXPECT_EQ(run({"chat", "-m", "m"}), exit_ok);
  EXPECT_EQ(out.str(), "One.\n");
  EXPECT_NE(err.str().find("> "), std::string::npos);
}

TEST_F(Chat, CommandsAreNotSentToTheModel) {
  in.str("/help\n/nonsense\n/reset\nHi\n");
  EXPECT_EQ(run({"chat", "-m", "m"}), exit_ok);
  EXPECT_EQ(out.str(), "One.\n");
  EXPECT_NE(err.str().find("there is no /nonsense here"), std::string::npos);
  EXPECT_NE(err.str().find("a new conversation"), std::string::npos);
}

TEST_F(Chat, CtrlCStopsTheAnswerAndNotTheProgram) {
  int tokens = 0;
  more = [&](FakeEngine& engine) {
    engine.before_each_token = [&] {
      if (++tokens == 2) interrupts.notice(SIGINT);
    };
  };
  in.str("Hi\nMore\n");
  EXPECT_EQ(run({"chat", "-m", "m"}), exit_ok);
  EXPECT_EQ(out.str(), "On\nTwo.\n");
  EXPECT_NE(err.str().find("(stopped)"), std::string::npos);
}

TEST_F(Chat, CtrlCAtThePromptEndsAndSoDoesAKill) {
  in.str("Hi\n");
  interrupts.notice(SIGINT);
  EXPECT_EQ(run({"chat", "-m", "m"}), exit_ok);
  interrupts.notice(SIGTERM);
  EXPECT_EQ(run({"chat", "-m", "m"}), 128 + SIGTERM);
  EXPECT_EQ(out.str(), "");
}

TEST_F(Chat, ATurnThatDoesNotFitEndsAScriptButNotAPersonsConversation) {
  more = [](FakeEngine& engine) { engine.context_tokens = 40; };
  const std::string lines = "A question that is far too long for this context\nHi\n";
  in.str(lines);
  EXPECT_EQ(run({"chat", "-m", "m"}), exit_usage);
  EXPECT_EQ(out.str(), "");
  in_is_terminal = true;
  in.clear();
  in.str(lines);
  EXPECT_EQ(run({"chat", "-m", "m"}), exit_ok);
  EXPECT_EQ(out.str(), "One.\n");
}

TEST_F(Chat, WarnsOnceOfALineThatRepeatsItself) {
  in.str(std::string(70, 'x') + "\nMore\n");
  EXPECT_EQ(run({"chat", "-m", "m"}), exit_ok);
  EXPECT_EQ(out.str(), "One.\nTwo.\n");
  const std::string warning = "warning: the text repeats";
  const std::size_t first = err.str().find(warning);
  ASSERT_NE(first, std::string::npos) << err.str();
  EXPECT_EQ(err.str().find(warning, first + 1), std::string::npos) << err.str();
}

TEST_F(Chat, AModelWithoutATemplateIsRefused) {
  more = [](FakeEngine& engine) { engine.model_info.has_chat_template = false; };
  EXPECT_EQ(run({"chat", "-m", "m"}), exit_usage);
}

}  // namespace
}  // namespace headrace
