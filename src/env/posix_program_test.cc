#include "env/posix_program.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

namespace headrace {
namespace {

Result<ProgramOutput> run_shell(const std::string& script) {
  return posix_env().run_program({{"sh", "-c", script}});
}

TEST(PosixProgram, TellsWhatTheProgramWroteAndHowItEnded) {
  const auto output = run_shell("echo hello; echo trouble >&2; exit 3");
  ASSERT_TRUE(output.ok()) << output.error().message;
  EXPECT_EQ(output->out, "hello\n");
  EXPECT_EQ(output->err, "trouble\n");
  EXPECT_EQ(output->exit_code, 3);
}

TEST(PosixProgram, PassesArgumentsAsTheyAre) {
  const auto output = posix_env().run_program({{"printf", "<%s>", "two words", "$HOME", "*", ""}});
  ASSERT_TRUE(output.ok()) << output.error().message;
  EXPECT_EQ(output->out, "<two words><$HOME><*><>");
}

TEST(PosixProgram, ReadsMoreThanAPipeHoldsFromBothStreams) {
  const auto output = run_shell(
      "for i in 1 2 3 4; do head -c 100000 /dev/zero; head -c 100000 /dev/zero >&2; done; "
      "echo the end >&2");
  ASSERT_TRUE(output.ok()) << output.error().message;
  EXPECT_EQ(output->out.size(), 400'000U);
  EXPECT_EQ(output->err.size(), 4096U) << "the end of it";
  EXPECT_EQ(output->err.substr(4088), "the end\n");
}

TEST(PosixProgram, FindsNothingOnItsStandardInput) {
  EXPECT_EQ(run_shell("cat; echo done")->out, "done\n");
}

TEST(PosixProgram, ASignalIsAnExitCode) {
  EXPECT_EQ(run_shell("kill -TERM $$")->exit_code, 128 + SIGTERM);
}

TEST(PosixProgram, ABrokenPipeEndsItAsUsual) {
  std::signal(SIGPIPE, SIG_IGN);  // as the command does
  EXPECT_EQ(run_shell("kill -PIPE $$; echo ignored")->out, "");
  std::signal(SIGPIPE, SIG_DFL);
}

TEST(PosixProgram, OneThatIsNotThereIsNotFound) {
  const Error error = posix_env().run_program({{"/nowhere/at/all"}}).error();
  EXPECT_EQ(error.code, ErrorCode::not_found);
  EXPECT_EQ(error.message, "cannot run '/nowhere/at/all': No such file or directory");
}

TEST(PosixProgram, EndsWhenItIsCancelled) {
  Env& env = posix_env();
  const auto start = env.now();
  const auto output =
      env.run_program({.arguments = {"sleep", "100"}, .is_cancelled = [] { return true; }});
  EXPECT_EQ(output.error().code, ErrorCode::cancelled);
  EXPECT_LT(env.now() - start, std::chrono::seconds(50));
}

// A program begins as a copy of the process that starts it, whose memory does not count.
TEST(PosixProgram, TellsTheMemoryOfAProgramThatHeldMoreThanItsParent) {
  const auto large = posix_env().run_program(
      {.arguments = {"dd", "if=/dev/zero", "of=/dev/null", "bs=600M", "count=1"}});
  ASSERT_TRUE(large.ok()) << large.error().message;
  ASSERT_EQ(large->exit_code, 0) << large->err;
  EXPECT_GT(large->peak_rss_bytes, 500U << 20U);
  const auto small = posix_env().run_program({.arguments = {"true"}});
  ASSERT_TRUE(small.ok()) << small.error().message;
  EXPECT_EQ(small->peak_rss_bytes, 0U);
}

}  // namespace
}  // namespace headrace
