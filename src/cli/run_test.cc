#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

class Run : public CommandTest {
 protected:
  Run() {
    prepare = [this](FakeEngine& engine, int) {
      engine.answers = {bytes("Done.")};
      if (more) more(engine);
    };
  }
  // What the engine was given to read, as text.
  std::string read_by_engine() {
    std::string text;
    for (const TokenId token : read) text += FakeEngine().token_bytes(token);
    return text;
  }
  std::function<void(FakeEngine&)> more;
  std::vector<TokenId> read;
  void keep_what_is_read() {
    more = [this](FakeEngine& engine) {
      engine.fill_logits = [this](std::vector<float>&, std::span<const TokenId> tokens) {
        read.assign(tokens.begin(), tokens.end());
      };
    };
  }
};

TEST_F(Run, StreamsTheAnswerOnStandardOutputAndFiguresOnStandardError) {
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi"}), exit_ok);
  EXPECT_EQ(out.str(), "Done.\n");
  EXPECT_NE(err.str().find("KV needed"), std::string::npos);
}

TEST_F(Run, UsesTheChatTemplateUnlessToldOtherwise) {
  keep_what_is_read();
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi"}), exit_ok);
  EXPECT_EQ(read_by_engine(), "<start>user\nHi<end><start>assistant\n");
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi", "--raw"}), exit_ok);
  EXPECT_EQ(read_by_engine(), "Hi");
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi", "--raw", "--chat"}), exit_usage);
}

TEST_F(Run, AModelWithoutATemplateReadsPlainText) {
  keep_what_is_read();
  const auto keep = more;
  more = [keep](FakeEngine& engine) {
    engine.model_info.has_chat_template = false;
    keep(engine);
  };
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi"}), exit_ok);
  EXPECT_EQ(read_by_engine(), "Hi");
}

TEST_F(Run, AFileComesBeforeThePromptWithABlankLineBetween) {
  keep_what_is_read();
  write_file("/text", "Line one.\n");
  EXPECT_EQ(run({"run", "-m", "m", "--raw", "-f", "/text", "-p", "Why?"}), exit_ok);
  EXPECT_EQ(read_by_engine(), "Line one.\n\nWhy?");
  EXPECT_EQ(run({"run", "-m", "m", "--raw", "-f", "/text"}), exit_ok);
  EXPECT_EQ(read_by_engine(), "Line one.\n");
  in.str("from a pipe");
  EXPECT_EQ(run({"run", "-m", "m", "--raw", "-f", "-", "-p", "Why?"}), exit_ok);
  EXPECT_EQ(read_by_engine(), "from a pipe\n\nWhy?");
}

TEST_F(Run, NothingToReadIsAUsageErrorBeforeTheModelIsOpened) {
  EXPECT_EQ(run({"run", "-m", "m"}), exit_usage);
  EXPECT_EQ(run({"run", "-m", "m", "-f", "/missing"}), exit_usage);
  EXPECT_EQ(run({"run", "-m", "m", "-f", "-"}), exit_usage);
  EXPECT_TRUE(opened.empty());
}

TEST_F(Run, JsonIsTheOnlyThingOnStandardOutput) {
  more = [](FakeEngine& engine) {
    engine.stats = {.kv_bytes_needed = 8000,
                    .kv_bytes_peak = 990,
                    .kv_bytes_limit = 1000,
                    .pages_sealed = 9,
                    .pages_written = 7,
                    .pages_filled_from_disk = 5,
                    .pages_filled_by_replay = 1,
                    .pages_damaged = 2,
                    .disk_bytes_peak = 7000};
  };
  EXPECT_EQ(run({"run", "-m", "m.gguf", "--raw", "-p", "Hi", "--json", "--kv-type", "f32"}),
            exit_ok);
  const nlohmann::json summary = json();
  EXPECT_EQ(out.str().find('\n'), out.str().size() - 1);
  EXPECT_NE(err.str().find("Done."), std::string::npos);
  EXPECT_EQ(summary["text"], "Done.");
  EXPECT_EQ(summary["tokens"], nlohmann::json(bytes("Done.")));
  EXPECT_EQ(summary["finish_reason"], "stop");
  EXPECT_EQ(summary["prompt_tokens"], 2);
  EXPECT_EQ(summary["prefill_seconds"], 2.0);
  EXPECT_EQ(summary["decode_seconds"], 2.5);
  EXPECT_EQ(summary["prefill_tokens_per_second"], 1.0);
  EXPECT_DOUBLE_EQ(summary["decode_tokens_per_second"], 4.0 / 2.5);
  EXPECT_EQ(summary["kv_bytes_needed"], 8000);
  EXPECT_EQ(summary["kv_bytes_peak"], 990);
  EXPECT_EQ(summary["kv_bytes_limit"], 1000);
  EXPECT_EQ(summary["pages_filled"], nlohmann::json({{"disk", 5}, {"host", 0}, {"replay", 1}}));
  EXPECT_EQ(summary["pages_damaged"], 2);
  EXPECT_EQ(summary["pages_written"], 7);
  EXPECT_EQ(summary["disk_bytes_peak"], 7000);
  EXPECT_EQ(summary["model"], "m.gguf");
  EXPECT_EQ(summary["context"], 1000);
  EXPECT_EQ(summary["threads"], 2);  // the cores of MemoryEnv's machine
  EXPECT_EQ(summary["kv_type"], "f32");
  EXPECT_EQ(summary["instruction_set"], "scalar");
  EXPECT_GT(summary["peak_rss_bytes"], 0);
}

TEST_F(Run, SaysHowManyTokensAStepReadWhereItReadAPart) {
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi", "--json"}), exit_ok);
  EXPECT_EQ(json()["attention"]["mode"], "exact");
  EXPECT_TRUE(json()["attention"]["tokens_read"].is_null());
  more = [](FakeEngine& engine) {
    engine.stats.recall_choices = 12;
    engine.stats.recall_tokens_read = 345.6;
  };
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi", "--attention", "sparse"}), exit_ok);
  EXPECT_NE(err.str().find("sparse      346 tokens read of a layer\n"), std::string::npos)
      << err.str();
  out.str("");
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi", "--attention", "sparse", "--json"}), exit_ok);
  EXPECT_EQ(json()["attention"]["mode"], "sparse");
  EXPECT_EQ(json()["attention"]["tokens_read"], 345.6);
  EXPECT_TRUE(json()["attention"]["mass_left_out"].is_null()) << "nobody knows";
}

TEST_F(Run, SaysWhatCertifiedStepsLeftOut) {
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi", "--json"}), exit_ok);
  EXPECT_TRUE(json()["attention"]["certified"].is_null());
  more = [](FakeEngine& engine) { engine.stats.certified = {0.0125, 0.5, 0.03, 0.25}; };
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi", "--attention", "recall", "--certify"}), exit_ok);
  EXPECT_NE(err.str().find("1.25 % of attention not read, at most 50.00 % of a head\n"),
            std::string::npos)
      << err.str();
  EXPECT_NE(err.str().find("3.00 % away from exact, at most 25.00 % in a layer\n"),
            std::string::npos)
      << err.str();
  out.str("");
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi", "--attention", "recall", "--certify", "--json"}),
            exit_ok);
  EXPECT_EQ(json()["attention"]["certified"], nlohmann::json({{"mass_not_read", 0.0125},
                                                              {"mass_not_read_most", 0.5},
                                                              {"error", 0.03},
                                                              {"error_most", 0.25}}));
}

TEST_F(Run, WarnsOfATextThatRepeatsItself) {
  EXPECT_EQ(run({"run", "-m", "m", "--raw", "-p", "Hi", "--json"}), exit_ok);
  EXPECT_EQ(json()["repetitions"], nlohmann::json::array());
  EXPECT_EQ(err.str().find("warning"), std::string::npos);
  out.str("");
  EXPECT_EQ(run({"run", "-m", "m", "--raw", "-p", "Hi" + std::string(70, 'x'), "--json"}), exit_ok);
  EXPECT_EQ(json()["repetitions"],
            nlohmann::json::array({{{"first_token", 2}, {"tokens", 70}, {"period", 1}}}));
  EXPECT_NE(err.str().find("repeats a few tokens again and again, from token 2 on, 70 in all"),
            std::string::npos)
      << err.str();
}

TEST_F(Run, TokensLimitTheAnswer) {
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi", "-n", "3", "--json"}), exit_ok);
  EXPECT_EQ(json()["text"], "Don");
  EXPECT_EQ(json()["finish_reason"], "length");
}

TEST_F(Run, CtrlCStopsTheAnswerKeepsWhatThereIsAndExits130) {
  int tokens = 0;
  more = [&](FakeEngine& engine) {
    engine.before_each_token = [&] {
      if (++tokens == 3) interrupts.notice(SIGINT);
    };
  };
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi", "--json"}), 130);
  EXPECT_EQ(json()["text"], "Don");
  EXPECT_EQ(json()["finish_reason"], "cancelled");
}

TEST_F(Run, CtrlCStopsTheReadingOfThePromptToo) {
  interrupts.notice(SIGINT);
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi", "--json"}), 130);
  EXPECT_EQ(json()["finish_reason"], "cancelled");
}

TEST_F(Run, AClosedOutputStopsTheAnswerAndIsAFailure) {
  int tokens = 0;
  more = [&](FakeEngine& engine) {
    engine.before_each_token = [&] {
      if (++tokens == 2) out.setstate(std::ios::badbit);
    };
  };
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi"}), exit_failure);
  EXPECT_EQ(tokens, 2);
  EXPECT_NE(err.str().find("headrace: error: cannot write to standard output"), std::string::npos);
}

TEST_F(Run, AnErrorWhileReadingLeavesStandardOutputEmpty) {
  more = [](FakeEngine& engine) {
    engine.fail_reading = Error{ErrorCode::out_of_budget, "disk full"};
  };
  EXPECT_EQ(run({"run", "-m", "m", "-p", "Hi", "--json"}), exit_failure);
  EXPECT_EQ(out.str(), "");
  EXPECT_EQ(err.str(), "headrace: error: disk full\n");
}

TEST_F(Run, ATerminalSeesABarWhileThePromptIsReadAndALogFileSomeLines) {
  more = [this](FakeEngine& engine) {
    engine.fill_logits = [this](std::vector<float>&, std::span<const TokenId>) {
      env.advance(std::chrono::seconds(1));
    };
  };
  EXPECT_EQ(run({"run", "-m", "m", "--raw", "-p", "0123456789"}), exit_ok);
  EXPECT_EQ(err.str().find("headrace: reading 5 of 10 tokens, 1.00 tok/s, 5.00 s left\n"), 0U)
      << err.str();
  err.str("");
  err_is_terminal = true;
  EXPECT_EQ(run({"run", "-m", "m", "--raw", "-p", "0123456789"}), exit_ok);
  EXPECT_NE(err.str().find("\r\033[Kreading [############............] 5 of 10 tokens"),
            std::string::npos);
  EXPECT_NE(err.str().find("\r\033[K  prompt"), std::string::npos)
      << "the bar is gone before the summary";
}

}  // namespace
}  // namespace headrace
