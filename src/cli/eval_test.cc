#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

/// Opens models that copy: after "b" they say what followed the last "b" but one.
class Eval : public CommandTest {
 protected:
  Eval() {
    inspected.head_dim = 64;
    inspected.kv_heads = 1;
    inspected.layers = 1;
    prepare = [this](FakeEngine& engine, int nth) {
      engine.context_tokens = opened.back().context;
      const bool forgets = nth == forgetful;
      engine.fill_logits = [forgets](std::vector<float>& row, std::span<const TokenId> tokens) {
        row.assign(FakeEngine::vocabulary, 0.0F);
        TokenId next = '?';
        const std::size_t first = forgets && tokens.size() > 300 ? tokens.size() - 20 : 0;
        for (std::size_t i = first; i + 4 < tokens.size(); ++i) {
          if (std::ranges::equal(tokens.subspan(i, 4), tokens.last(4))) next = tokens[i + 4];
        }
        row[static_cast<std::size_t>(next)] = 9.0F;
      };
    };
  }
  int forgetful = 0;  // the nth engine sees only the newest tokens
  const std::vector<std::string> command = {"eval", "-m", "dir/m.gguf", "--context", "2000"};

  int eval(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
};

TEST_F(Eval, ScoresAModeOnWhatTheFullCacheSolves) {
  forgetful = 2;
  EXPECT_EQ(eval({"--tasks", "needle,induction", "--modes", "q4,recall", "--json"}), exit_ok)
      << err.str();
  EXPECT_EQ(json()["model"], "m.gguf");
  const auto modes = json()["modes"];
  ASSERT_EQ(modes.size(), 3U);
  EXPECT_EQ(modes[0]["mode"], "exact") << "it comes first, named or not";
  EXPECT_EQ(modes[0]["tasks"][1]["solved_by_exact"], 8);
  EXPECT_EQ(modes[1]["tasks"][1]["agreement"], 0.0);
  EXPECT_EQ(modes[2]["tasks"][1]["agreement"], 1.0);
  EXPECT_EQ(opened.at(1).kv.codec, "q4");
  EXPECT_EQ(opened.at(2).attention.mode, AttentionMode::recall);
  for (const EngineOptions& options : opened) EXPECT_EQ(options.context, 2000U);
}

TEST_F(Eval, WhatAModeSolvesAndTheFullCacheDoesNotCountsForNothing) {
  forgetful = 1;
  EXPECT_EQ(eval({"--tasks", "induction", "--modes", "q4", "--json"}), exit_ok) << err.str();
  const auto task = json()["modes"][1]["tasks"][0];
  EXPECT_EQ(task["solved_by_exact"], 0);
  EXPECT_EQ(task["agreed"], 0);
  EXPECT_TRUE(task["agreement"].is_null());
}

TEST_F(Eval, WithoutNamesAllTasksAreAskedInTheUsualModes) {
  EXPECT_EQ(eval({}), exit_ok) << err.str();
  for (const char* word : {"passkey", "needle", "variables", "words", "induction", "exact", "kv-q8",
                           "q4-delta", "recall-16", "recall-layer", "window", "sparse"}) {
    EXPECT_NE(out.str().find(word), std::string::npos) << word;
  }
  EXPECT_EQ(out.str().find("perplexity"), std::string::npos) << "that needs a text";
  EXPECT_EQ(out.str().find("eighth"), std::string::npos);
}

TEST_F(Eval, PerplexityIsOfTheTextAndComparedWithTheFullCache) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "A word. ";
  write_file("/text", text);
  int decodes = 0;
  const auto before = prepare;
  prepare = [&](FakeEngine& engine, int nth) {
    before(engine, nth);
    engine.on_decode = [&] { ++decodes; };
  };
  EXPECT_EQ(eval({"-f", "/text", "--tasks", "perplexity", "--modes", "recall", "--json"}), exit_ok)
      << err.str();
  EXPECT_EQ(decodes, 2 * 511) << "as answers are read";
  EXPECT_EQ(json()["modes"][1]["tokens_scored"], 511);
  EXPECT_EQ(json()["modes"][1]["kl_mean"], 0.0);
  EXPECT_EQ(json()["modes"][1]["same_top1"], 1.0);
  EXPECT_FALSE(json()["modes"][0].contains("kl_mean"));
}

TEST_F(Eval, ChoicesComeFromAFile) {
  write_file("/c.jsonl", "{\"ctx\": \"x\", \"endings\": [\"y\", \"z\"], \"label\": 0}\n");
  EXPECT_EQ(eval({"--choices", "/c.jsonl", "--tasks", "choices", "--modes", "q8", "--json"}),
            exit_ok)
      << err.str();
  EXPECT_EQ(json()["modes"][1]["tasks"][0]["task"], "choices");
  EXPECT_EQ(json()["modes"][1]["tasks"][0]["asked"], 1);
}

TEST_F(Eval, ABadLineOfChoicesIsNamed) {
  write_file("/c.jsonl", "{\"ctx\": \"x\", \"endings\": [\"y\", \"z\"], \"label\": 0}\n{}\n");
  EXPECT_NE(eval({"--choices", "/c.jsonl"}), exit_ok);
  EXPECT_NE(err.str().find("/c.jsonl:2: "), std::string::npos) << err.str();
}

TEST_F(Eval, WritesTheTableAndTheCharts) {
  EXPECT_EQ(eval({"--tasks", "needle", "--modes", "q8", "--markdown", "/t.md", "--plots", "/p"}),
            exit_ok)
      << err.str();
  EXPECT_NE(env.read_file("/t.md")->find("| q8 |"), std::string::npos);
  EXPECT_TRUE(env.exists("/p/eval-quality.svg"));
  EXPECT_FALSE(env.exists("/p/eval-speed.svg")) << "the clock of this world stands still";
}

TEST_F(Eval, AModeThatCannotRunIsLeftOutWithALine) {
  const auto before = prepare;
  prepare = [&](FakeEngine& engine, int nth) {
    before(engine, nth);
    engine_error = {ErrorCode::out_of_budget, "too little"};
  };
  EXPECT_EQ(eval({"--tasks", "needle", "--modes", "q8", "--json"}), exit_ok);
  EXPECT_NE(err.str().find("q8 is left out: too little"), std::string::npos) << err.str();
  EXPECT_EQ(json()["modes"].size(), 1U);
}

TEST_F(Eval, WrongRequestsSayWhatToDo) {
  const struct {
    std::vector<std::string> arguments;
    const char* says;
  } requests[] = {
      {{"--tasks", "sing"}, "there are passkey"},
      {{"--modes", "warp"}, "there are exact"},
      {{"--tasks", "perplexity"}, "-f"},
      {{"--tasks", "choices"}, "--choices"},
      {{"--context", "60"}, "give at least"},
      {{"--markdown", "/none/t.md"}, "there is no folder"},
      {{"-f", "/none"}, "/none"},
      {{"--kv-type", "f8"}, "f16"},
      {{"--items", "0"}, "--items"},
  };
  for (const auto& [arguments, says] : requests) {
    err.str("");
    std::vector<std::string> all = {"eval", "-m", "dir/m.gguf"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    EXPECT_EQ(run(all), exit_usage) << arguments[0];
    EXPECT_NE(err.str().find(says), std::string::npos) << err.str();
  }
}

TEST_F(Eval, CtrlCExits130) {
  interrupts.notice(SIGINT);
  EXPECT_EQ(eval({"--json"}), 130);
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace headrace
