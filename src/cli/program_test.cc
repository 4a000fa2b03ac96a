#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

using Program = CommandTest;

TEST_F(Program, PrintsItsVersionOnStandardOutput) {
  EXPECT_EQ(run({"--version"}), exit_ok);
  EXPECT_EQ(out.str().find("headrace "), 0U);
  EXPECT_EQ(err.str(), "");
}

TEST_F(Program, HelpOfEveryCommandHasExamples) {
  for (const std::string command :
       {"run", "chat", "perplexity", "eval", "inspect", "bench", "trace"}) {
    out.str("");
    EXPECT_EQ(run({command, "--help"}), exit_ok);
    EXPECT_NE(out.str().find("Examples:"), std::string::npos) << command;
    EXPECT_NE(out.str().find("headrace " + command + " "), std::string::npos) << command;
  }
}

TEST_F(Program, WithoutACommandItNamesThem) {
  EXPECT_EQ(run({}), exit_usage);
  EXPECT_EQ(
      err.str(),
      "headrace: error: which command? run, chat, sessions, perplexity, eval, calibrate, inspect, "
      "bench, trace or verify; see `headrace --help`\n");
}

TEST_F(Program, AnOptionThatIsMissingPointsToTheHelpOfItsCommand) {
  EXPECT_EQ(run({"run", "-p", "x"}), exit_usage);
  EXPECT_EQ(err.str(), "headrace: error: --model is required; see `headrace run --help`\n");
}

TEST_F(Program, ErrorsOfOpeningEndWithTheExitCodeOfTheirKind) {
  struct Case {
    ErrorCode code;
    int exit_code;
  };
  const std::vector<Case> cases = {
      {ErrorCode::invalid_argument, exit_usage}, {ErrorCode::not_found, exit_usage},
      {ErrorCode::unsupported, exit_usage},      {ErrorCode::out_of_budget, exit_usage},
      {ErrorCode::corrupt, exit_failure},        {ErrorCode::io, exit_failure},
      {ErrorCode::internal, exit_failure},
  };
  for (const Case& c : cases) {
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"run", "-m", "m", "-p", "x"},
          {"chat", "-m", "m"},
          {"inspect", "m"}}) {
      err.str("");
      open_error = {c.code, "first line\nsecond line\n"};
      EXPECT_EQ(run(arguments), c.exit_code) << to_string(c.code);
      EXPECT_EQ(err.str(), "headrace: error: first line second line\n");
    }
  }
  EXPECT_EQ(out.str(), "");
}

TEST_F(Program, RunningOutOfDiskWhileRunningIsAFailureNotAUsageError) {
  EXPECT_EQ(exit_code_of({ErrorCode::out_of_budget, ""}, Phase::opening), exit_usage);
  EXPECT_EQ(exit_code_of({ErrorCode::out_of_budget, ""}, Phase::running), exit_failure);
}

}  // namespace
}  // namespace headrace
