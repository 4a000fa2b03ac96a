#include "cli/engine_flags.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

TEST(DiskPlace, TheLastColonSeparatesOnlyBeforeAnAmountOfBytes) {
  struct Case {
    std::string text, directory;
    std::uint64_t bytes;
  };
  const std::vector<Case> cases = {
      {"/tmp/kv", "/tmp/kv", 0},           {"/tmp/kv:64MiB", "/tmp/kv", 64 << 20},
      {"kv:1.5GiB", "kv", 3ULL << 29},     {"/mnt/a:b", "/mnt/a:b", 0},
      {"/mnt/a:b:4096", "/mnt/a:b", 4096}, {"/mnt/a:", "/mnt/a:", 0},
      {"/mnt/10:30", "/mnt/10", 30},
  };
  for (const Case& c : cases) {
    const auto place = parse_disk_place(c.text);
    ASSERT_TRUE(place.ok()) << c.text;
    EXPECT_EQ(place->directory, c.directory) << c.text;
    EXPECT_EQ(place->bytes, c.bytes) << c.text;
  }
}

TEST(DiskPlace, ASizeWithoutADirectoryIsRefused) {
  EXPECT_EQ(parse_disk_place(":64MiB").error().code, ErrorCode::invalid_argument);
}

using EngineFlagsOfRun = CommandTest;

TEST_F(EngineFlagsOfRun, EveryOptionReachesTheEngine) {
  EXPECT_EQ(run({"run", "-m", "m.gguf", "-p", "x", "--context", "4096", "--kv-memory", "64MiB",
                 "--kv-disk", "/d:1GiB", "--kv-type", "f32", "--threads", "3", "--block-tokens",
                 "128", "--chunk", "64"}),
            exit_ok);
  ASSERT_EQ(opened.size(), 1U);
  const EngineOptions& options = opened[0];
  EXPECT_EQ(options.model_path, "m.gguf");
  EXPECT_EQ(options.context, 4096U);
  EXPECT_EQ(options.threads, 3U);
  EXPECT_EQ(options.chunk_tokens, 64U);
  EXPECT_EQ(options.kv.type, KvType::f32);
  EXPECT_EQ(options.kv.memory_bytes, 64U << 20);
  EXPECT_EQ(options.kv.disk_directory, "/d");
  EXPECT_EQ(options.kv.disk_bytes, 1U << 30);
  EXPECT_EQ(options.kv.tokens_per_block, 128U);
}

TEST_F(EngineFlagsOfRun, RecallReachesTheEngine) {
  EXPECT_EQ(run({"run", "-m", "m.gguf", "-p", "x", "--attention", "recall", "--recall-tokens",
                 "700", "--recall-mass", "0.9", "--recall-share", "0.001", "--recall-group", "8"}),
            exit_ok);
  const AttentionOptions& attention = opened.at(0).attention;
  EXPECT_EQ(attention.mode, AttentionMode::recall);
  EXPECT_EQ(attention.recall_tokens, 700U);
  EXPECT_EQ(attention.recall_mass, 0.9F);
  EXPECT_EQ(attention.recall_share, 0.001F);
  EXPECT_EQ(attention.recall_group, 8U);
  EXPECT_EQ(run({"run", "-m", "m.gguf", "-p", "x"}), exit_ok);
  EXPECT_EQ(opened.at(1).attention.mode, AttentionMode::exact);
  EXPECT_EQ(run({"run", "-m", "m.gguf", "-p", "x", "--attention", "some"}), exit_usage);
}

TEST_F(EngineFlagsOfRun, WindowAndSparseReachTheEngine) {
  EXPECT_EQ(run({"run", "-m", "m.gguf", "-p", "x", "--attention", "window", "--window-tokens",
                 "700", "--recall-first", "8"}),
            exit_ok);
  EXPECT_EQ(opened.at(0).attention.mode, AttentionMode::window);
  EXPECT_EQ(opened.at(0).attention.window_tokens, 700U);
  EXPECT_EQ(opened.at(0).attention.recall_first, 8U);
  EXPECT_FALSE(opened.at(0).attention.window_packed);
  EXPECT_EQ(run({"run", "-m", "m.gguf", "-p", "x", "--attention", "sparse", "--sparse-tokens",
                 "800", "--sparse-sample", "0.25", "--sparse-heavy", "0"}),
            exit_ok);
  EXPECT_EQ(opened.at(1).attention.mode, AttentionMode::sparse);
  EXPECT_EQ(opened.at(1).attention.sparse_tokens, 800U);
  EXPECT_EQ(opened.at(1).attention.sparse_sample, 0.25F);
  EXPECT_EQ(opened.at(1).attention.sparse_heavy, 0);
  EXPECT_FALSE(opened.at(1).attention.certify);
  EXPECT_EQ(run({"run", "-m", "m.gguf", "-p", "x", "--attention", "window", "--window-positions",
                 "packed"}),
            exit_ok);
  EXPECT_TRUE(opened.at(2).attention.window_packed);
  EXPECT_EQ(run({"run", "-m", "m.gguf", "-p", "x", "--attention", "window", "--certify"}), exit_ok);
  EXPECT_TRUE(opened.at(3).attention.certify);
}

TEST_F(EngineFlagsOfRun, AnOptionOfAnotherModeOfAttentionIsRefused) {
  const auto refused = [&](std::vector<std::string> options, const std::string& says) {
    err.str("");
    std::vector<std::string> all = {"run", "-m", "m.gguf", "-p", "x"};
    all.insert(all.end(), options.begin(), options.end());
    EXPECT_EQ(run(all), exit_usage);
    EXPECT_NE(err.str().find(says), std::string::npos) << err.str();
  };
  refused({"--window-tokens", "700"},
          "--window-tokens changes nothing with --attention exact; give --attention window, or "
          "leave --window-tokens out");
  refused({"--attention", "window", "--recall-tokens", "700"}, "give --attention recall, or");
  refused({"--attention", "recall", "--sparse-sample", "0.2"}, "give --attention sparse, or");
  refused({"--recall-first", "4"}, "give --attention recall or window or sparse, or");
  refused({"--attention", "sparse", "--weigh-tokens"}, "give --attention recall, or");
  refused({"--certify"}, "give --attention recall or window or sparse, or");
  refused({"--attention", "recall", "--window-positions", "packed"}, "give --attention window, or");
  refused({"--attention", "some"}, "there are exact, recall, window, sparse");
  EXPECT_TRUE(opened.empty());
}

TEST_F(EngineFlagsOfRun, TokensAreWeighedOnlyIfToldSo) {
  EXPECT_EQ(run({"run", "-m", "m.gguf", "-p", "x", "--attention", "recall"}), exit_ok);
  EXPECT_EQ(run({"run", "-m", "m.gguf", "-p", "x", "--attention", "recall", "--weigh-tokens"}),
            exit_ok);
  ASSERT_EQ(opened.size(), 2U);
  EXPECT_FALSE(opened[0].token_weights);
  ASSERT_TRUE(opened[1].token_weights);
  EXPECT_GT(opened[1].token_weights()(1, "x", true), 1.0F);
}

TEST_F(EngineFlagsOfRun, WithoutOptionsTheEngineHasItsDefaults) {
  EXPECT_EQ(run({"run", "-m", "m.gguf", "-p", "x"}), exit_ok);
  ASSERT_EQ(opened.size(), 1U);
  EXPECT_EQ(opened[0].context, 0U);
  EXPECT_EQ(opened[0].threads, 0U);
  EXPECT_EQ(opened[0].chunk_tokens, 512U);
  EXPECT_EQ(opened[0].kv.memory_bytes, 0U);
  EXPECT_EQ(opened[0].kv.type, KvType::i16);
  EXPECT_EQ(opened[0].kv.tokens_per_block, 256U);
}

TEST_F(EngineFlagsOfRun, BadValuesAreUsageErrorsInOneLine) {
  const std::vector<std::vector<std::string>> cases = {
      {"--kv-memory", "lots"}, {"--kv-memory", "0"},  {"--kv-disk", ":4096"}, {"--kv-type", "f8"},
      {"--context", "-5"},     {"--context", "many"}, {"--threads", "1.5"},   {"--no-such-option"},
  };
  for (const auto& extra : cases) {
    err.str("");
    std::vector<std::string> arguments = {"run", "-m", "m.gguf", "-p", "x"};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    EXPECT_EQ(run(arguments), exit_usage) << extra[0];
    EXPECT_EQ(err.str().find("headrace: error: "), 0U) << err.str();
    EXPECT_NE(err.str().find(extra[0].substr(2)), std::string::npos) << err.str();
    EXPECT_EQ(err.str().find('\n'), err.str().size() - 1) << err.str();
  }
  EXPECT_EQ(out.str(), "");
  EXPECT_TRUE(opened.empty());
}

}  // namespace
}  // namespace headrace
