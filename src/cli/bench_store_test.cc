#include "cli/bench_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

class BenchStore : public CommandTest {
 protected:
  void SetUp() override {
    inspected.trained_context = 8192;
    inspected.layers = 2;
    inspected.kv_heads = 1;
    inspected.head_dim = 16;
    inspected.vocabulary = FakeEngine::vocabulary;
    prepare = [](FakeEngine& engine, int) {
      engine.stats.kv_bytes_peak = 3U << 20U;
      engine.answers.emplace_back(17, 'x');
    };
  }

  int run_store(std::vector<std::string> arguments = {}) {
    const std::vector<std::string> start = {"bench",   "-m",        "/m.gguf", "--store",
                                            "--quick", "--kv-disk", "/d"};
    arguments.insert(arguments.begin(), start.begin(), start.end());
    return run(arguments);
  }
};

TEST_F(BenchStore, OpensEnginesThatDifferInWherePagesAre) {
  ASSERT_EQ(run_store(), exit_ok) << err.str();
  ASSERT_EQ(opened.size(), 12U);
  // Restart: nothing stored, written, read again in both ways, always the same folder.
  EXPECT_FALSE(opened[0].kv.keep_disk);
  for (const std::size_t i : {1U, 2U, 3U}) {
    EXPECT_TRUE(opened[i].kv.keep_disk);
    EXPECT_EQ(opened[i].kv.disk_directory, opened[1].kv.disk_directory);
    EXPECT_EQ(opened[i].kv.disk_direct, i == 3);
  }
  // Decoding: everything, an eighth, an eighth past the cache, a host tier, q8, all of q8 but with
  // most of the memory for a host tier, half of q8.
  const std::uint64_t all = opened[4].context * inspected.kv_bytes_per_token(KvOptions().type);
  EXPECT_EQ(opened[4].kv.memory_bytes, 0U);
  EXPECT_EQ(opened[5].kv.memory_bytes, all / 8);
  EXPECT_FALSE(opened[5].kv.disk_direct);
  EXPECT_EQ(opened[6].kv.memory_bytes, all / 8);
  EXPECT_TRUE(opened[6].kv.disk_direct);
  EXPECT_EQ(opened[7].kv.host_percent, 80U);
  EXPECT_EQ(opened[8].kv.type, KvType::q8);
  const std::uint64_t all_q8 = opened[9].context * inspected.kv_bytes_per_token(KvType::q8);
  EXPECT_EQ(opened[9].kv.memory_bytes, all_q8 * 9 / 8);
  EXPECT_EQ(opened[9].kv.host_percent, 88U);
  EXPECT_EQ(opened[10].kv.memory_bytes, all_q8 / 2);
  EXPECT_EQ(opened[10].kv.host_percent, 0U);
  EXPECT_EQ(opened[11].sequences, quick_store_size().sequences);
}

TEST_F(BenchStore, WritesOneObjectAFigure) {
  ASSERT_EQ(run_store({"--json", "/tmp/r.json"}), exit_ok) << err.str();
  const auto figures = nlohmann::json::parse(env.read_file("/tmp/r.json").value());
  const auto find = [&](const std::string& name) {
    const auto found =
        std::ranges::find_if(figures, [&](const auto& each) { return each["name"] == name; });
    EXPECT_NE(found, figures.end()) << name;
    return found == figures.end() ? nlohmann::json() : *found;
  };
  EXPECT_EQ(find("first token, nothing stored")["value"], 2);
  // 16 steps; the fake one counts half a second for the first token too.
  EXPECT_NEAR(find("everything in memory")["value"], 16 / 8.5, 1e-9);
  EXPECT_EQ(find("everything in memory")["part"], "decode");
  EXPECT_EQ(find("the prefix once and an open block each")["unit"], "MiB");
  EXPECT_EQ(find("a prompt that is stored")["part"], "lookup");
}

class BenchStoreWithServer : public BenchStore {
 protected:
  void SetUp() override {
    BenchStore::SetUp();
    write_file("/tmp/llama-server", "");
    env.set_programs([this](const ProgramStart& start) {
      programs.push_back(start.arguments);
      if (interrupt) interrupts.notice(SIGINT);
      const auto file = env.read_file(start.arguments[9]);
      EXPECT_TRUE(file.ok()) << start.arguments[9];
      if (file.ok()) prompt = *file;
      return peer;
    });
  }
  int run_with_server() {
    return run_store({"--llama-server", "/tmp/llama-server", "--llama-server-script", "/peer.py",
                      "--threads", "3", "--json", "/tmp/r.json"});
  }

  std::vector<std::vector<std::string>> programs;
  std::string prompt;
  bool interrupt = false;
  Result<ProgramOutput> peer =
      ProgramOutput{.out = "first\n{\"read_seconds\": 4, \"restart_seconds\": 0.5}\n"};
};

TEST_F(BenchStoreWithServer, ComparesARestartWithThatOfTheServerOverTheSamePrompt) {
  ASSERT_EQ(run_with_server(), exit_ok) << err.str();
  ASSERT_EQ(programs.size(), 1U);
  const std::string folder =
      opened[1].kv.disk_directory.substr(0, opened[1].kv.disk_directory.find_last_of('/')) +
      "/peer";
  EXPECT_EQ(programs[0],
            (std::vector<std::string>{"python3", "/peer.py", "--server", "/tmp/llama-server",
                                      "--model", "/m.gguf", "--threads", "3", "--prompt",
                                      folder + "/prompt.json", "--slots", folder}));
  const auto tokens = nlohmann::json::parse(prompt).get<std::vector<TokenId>>();
  EXPECT_EQ(tokens.size(), quick_store_size().restart_tokens);
  EXPECT_FALSE(env.exists(folder)) << "gone at the end";

  const auto figures = nlohmann::json::parse(env.read_file("/tmp/r.json").value());
  double last = 0;
  for (const auto& figure : figures) {
    if (figure["part"] == "restart") last = figure["value"];
  }
  EXPECT_EQ(last, 4) << "the fake one takes 2 s for the first token, and the server 0.5 s";
}

TEST_F(BenchStoreWithServer, LeavesItOutWhereItCannotDoThis) {
  const std::vector<std::pair<Result<ProgramOutput>, std::string>> cases = {
      {ProgramOutput{.exit_code = 1, .err = "no such model\n"},
       "it failed with exit code 1: no such model"},
      {ProgramOutput{.out = "nonsense"}, "its output has no read_seconds"},
      {ProgramOutput{.out = R"({"read_seconds": 1})"}, "its output has no restart_seconds"},
      {ProgramOutput{.out = R"({"read_seconds": 1, "restart_seconds": 0})"}, "it took no time"},
      {Error{ErrorCode::not_found, "cannot run 'python3'"}, "cannot run 'python3'"},
  };
  for (const auto& [output, complaint] : cases) {
    peer = output;
    err.str("");
    out.str("");
    EXPECT_EQ(run_with_server(), exit_ok);
    EXPECT_NE(err.str().find("headrace: bench: llama-server is left out: " + complaint + "\n"),
              std::string::npos)
        << err.str();
    EXPECT_EQ(out.str().find("llama-server"), std::string::npos);
    EXPECT_NE(out.str().find("restart: first token after a restart"), std::string::npos);
  }
}

TEST_F(BenchStoreWithServer, AnInterruptEndsAllOfIt) {
  interrupt = true;
  EXPECT_EQ(run_with_server(), 130);
  EXPECT_EQ(err.str().find("left out"), std::string::npos);
}

TEST_F(BenchStore, SaysHowToGetTheServerThatIsNotThere) {
  ASSERT_EQ(run_store(), exit_ok) << err.str();
  EXPECT_NE(err.str().find("headrace: bench: llama-server is left out: no llama-server; `make "
                           "bench` gets it, or name one with --llama-server\n"),
            std::string::npos)
      << err.str();
}

TEST_F(BenchStore, GivesTheTablesAsMarkdownToo) {
  ASSERT_EQ(run_store({"--markdown", "/tmp/r.md"}), exit_ok) << err.str();
  EXPECT_TRUE(env.read_file("/tmp/r.md").value().starts_with("| what"));
  EXPECT_NE(out.str().find("decode: 1/8 in memory, direct"), std::string::npos);
}

TEST_F(BenchStore, FailsWithWhatAnEngineSays) {
  engine_error = {ErrorCode::io, "no disk"};
  EXPECT_NE(run_store(), exit_ok);
  EXPECT_NE(err.str().find("no disk"), std::string::npos);
}

TEST_F(BenchStore, IsNotForTheLimitsOfTheMachine) {
  EXPECT_NE(run_store({"--limits-only"}), exit_ok);
  EXPECT_TRUE(opened.empty());
}

TEST(StoreBenchSizes, FitIntoTheContextOfTheModel) {
  ModelInfo model;
  model.trained_context = 1000;
  const StoreBenchSize size = fit_store_size(StoreBenchSize(), model);
  EXPECT_EQ(size.prompt_tokens + size.steps + 1, 1000U);
  EXPECT_LT(size.restart_tokens, 1000U);
  EXPECT_LT(size.shared_tokens, 1000U);
}

}  // namespace
}  // namespace headrace
