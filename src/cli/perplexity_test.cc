#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <string>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

// A model that gives the byte after the last one in the alphabet e^boost times the odds of each
// other token.
void predict_next_letter(FakeEngine& engine, float boost) {
  engine.fill_logits = [boost](std::vector<float>& row, std::span<const TokenId> tokens) {
    row.assign(FakeEngine::vocabulary, 0.0F);
    row[static_cast<std::size_t>((tokens.back() + 1) % 256)] = boost;
  };
}

double log_odds(double boost) {
  return boost - std::log(std::exp(boost) + FakeEngine::vocabulary - 1);
}

class Perplexity : public CommandTest {
 protected:
  Perplexity() {
    write_file("/text", "cdefghijklmnopqrstuvwxyz");
    prepare = [this](FakeEngine& engine, int nth) {
      engine.context_tokens = opened.back().context;
      engine.stats.kv_bytes_needed = 4000;
      engine.stats.kv_bytes_peak = 500;
      predict_next_letter(engine, nth == 1 ? 4.0F : 5.0F);
      if (more) more(engine);
    };
  }
  std::function<void(FakeEngine&)> more;
};

TEST_F(Perplexity, ScoresTheSecondHalfOfEachChunk) {
  int rows = 0;
  more = [&](FakeEngine& engine) {
    const auto fill = engine.fill_logits;
    engine.fill_logits = [&rows, fill](std::vector<float>& row, std::span<const TokenId> tokens) {
      ++rows;
      fill(row, tokens);
    };
  };
  EXPECT_EQ(run({"perplexity", "-m", "m", "-f", "/text", "--context", "10", "--json"}), exit_ok);
  EXPECT_EQ(json()["tokens_scored"], 8);  // two chunks of 10, rows 5 to 8 of each
  EXPECT_EQ(rows, 18);
  EXPECT_NEAR(json()["perplexity"], std::exp(-log_odds(4)), 1e-4);
  EXPECT_TRUE(json()["kl_mean"].is_null());
  EXPECT_TRUE(json()["same_top1"].is_null());
  EXPECT_EQ(json()["kv_bytes_needed"], 4000);
  EXPECT_EQ(json()["kv_bytes_peak"], 500);
}

TEST_F(Perplexity, ScoreLastReadsTheLastTokensOneByOne) {
  int decodes = 0;
  more = [&](FakeEngine& engine) {
    engine.stats.recall_choices = 12;
    engine.stats.recall_tokens_read = 345.6;
    engine.stats.recall_mass_left_out = 0.0123;
    engine.on_decode = [&decodes] { ++decodes; };
  };
  EXPECT_EQ(run({"perplexity", "-m", "m", "-f", "/text", "--context", "10", "--chunks", "1",
                 "--score-last", "4", "--attention", "recall", "--against", "full"}),
            exit_ok);
  EXPECT_EQ(opened.at(0).attention.mode, AttentionMode::recall);
  EXPECT_EQ(opened.at(1).attention.mode, AttentionMode::exact);
  EXPECT_EQ(decodes, 3) << "nobody asks what follows the last one";
  EXPECT_NE(out.str().find("346 tokens read of a layer, 1.23 % of attention not read"),
            std::string::npos)
      << out.str();
  out.str("");
  EXPECT_EQ(run({"perplexity", "-m", "m", "-f", "/text", "--context", "10", "--chunks", "1",
                 "--score-last", "4", "--attention", "recall", "--json"}),
            exit_ok);
  EXPECT_EQ(json()["attention"]["mode"], "recall");
  EXPECT_EQ(json()["attention"]["tokens_read"], 345.6);
  EXPECT_EQ(json()["attention"]["mass_left_out"], 0.0123);
  EXPECT_NE(run({"perplexity", "-m", "m", "-f", "/text", "--score-last", "4", "--last", "5"}),
            exit_ok);
}

TEST_F(Perplexity, OfWindowNothingIsSaidOfWhatIsLeftOut) {
  more = [&](FakeEngine& engine) {
    engine.stats.recall_choices = 12;
    engine.stats.recall_tokens_read = 345.6;
  };
  EXPECT_EQ(run({"perplexity", "-m", "m", "-f", "/text", "--context", "10", "--chunks", "1",
                 "--score-last", "4", "--attention", "window", "--against", "full", "--json"}),
            exit_ok);
  EXPECT_EQ(opened.at(1).attention.mode, AttentionMode::exact);
  EXPECT_NE(err.str().find("346 tokens read of a layer\n"), std::string::npos) << err.str();
  EXPECT_EQ(json()["attention"]["mode"], "window");
  EXPECT_EQ(json()["attention"]["tokens_read"], 345.6);
  EXPECT_TRUE(json()["attention"]["mass_left_out"].is_null());
}

TEST_F(Perplexity, ChunksLimitTheWork) {
  EXPECT_EQ(
      run({"perplexity", "-m", "m", "-f", "/text", "--context", "10", "--chunks", "1", "--json"}),
      exit_ok);
  EXPECT_EQ(json()["tokens_scored"], 4);
}

TEST_F(Perplexity, TheBeginTokenStandsInThePlaceOfEachChunksFirst) {
  std::string first_tokens;
  more = [&](FakeEngine& engine) {
    engine.adds_begin_token = true;
    const auto fill = engine.fill_logits;
    engine.fill_logits = [&first_tokens, fill, &engine](std::vector<float>& row,
                                                        std::span<const TokenId> tokens) {
      if (tokens.size() == 1) first_tokens += engine.token_bytes(tokens[0]);
      fill(row, tokens);
    };
  };
  EXPECT_EQ(run({"perplexity", "-m", "m", "-f", "/text", "--context", "10", "--json"}), exit_ok);
  EXPECT_EQ(first_tokens, "<start><start>");
}

TEST_F(Perplexity, AgainstFullComparesWithARunThatHasEverythingInMemory) {
  EXPECT_EQ(run({"perplexity", "-m", "m", "-f", "/text", "--context", "20", "--kv-memory", "4KiB",
                 "--kv-disk", "/d", "--kv-type", "f32", "--against", "full", "--json"}),
            exit_ok);
  ASSERT_EQ(opened.size(), 2U);
  EXPECT_EQ(opened[0].kv.memory_bytes, 4096U);
  EXPECT_EQ(opened[1].kv.memory_bytes, 0U);
  EXPECT_EQ(opened[1].kv.disk_directory, "");
  EXPECT_EQ(opened[1].kv.type, KvType::f32);
  // KL of (p, the rest evenly) from (q, the rest evenly)
  const double p = std::exp(log_odds(5)), q = std::exp(log_odds(4));
  EXPECT_NEAR(json()["kl_mean"], p * std::log(p / q) + (1 - p) * std::log((1 - p) / (1 - q)), 1e-6);
  EXPECT_EQ(json()["same_top1"], 1.0);
  EXPECT_NEAR(json()["perplexity"], std::exp(-log_odds(4)), 1e-4)
      << "of the tested run, not of the full one";
}

TEST_F(Perplexity, LongChunksAreComparedStepByStep) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>('A' + i % 50);
  write_file("/long", text);
  more = [](FakeEngine& engine) { predict_next_letter(engine, 4.0F); };
  EXPECT_EQ(run({"perplexity", "-m", "m", "-f", "/long", "--context", "190", "--against", "full",
                 "--json"}),
            exit_ok);
  EXPECT_EQ(json()["tokens_scored"], 94);
  EXPECT_EQ(json()["kl_mean"], 0.0);
  EXPECT_EQ(json()["same_top1"], 1.0);
}

TEST_F(Perplexity, WithoutJsonATableIsPrinted) {
  EXPECT_EQ(run({"perplexity", "-m", "m", "-f", "/text", "--context", "10", "--against", "full"}),
            exit_ok);
  EXPECT_NE(out.str().find("perplexity"), std::string::npos);
  EXPECT_NE(out.str().find("same top-1 100.00 %"), std::string::npos);
}

TEST_F(Perplexity, ATextShorterThanAChunkSaysWhatToDo) {
  EXPECT_EQ(run({"perplexity", "-m", "m", "-f", "/text"}), exit_usage);
  EXPECT_EQ(opened.back().context, 512U);
  EXPECT_NE(err.str().find("smaller --context"), std::string::npos);
}

TEST_F(Perplexity, CtrlCExits130) {
  interrupts.notice(SIGINT);
  EXPECT_EQ(run({"perplexity", "-m", "m", "-f", "/text", "--context", "10", "--json"}), 130);
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace headrace
