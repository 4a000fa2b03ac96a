#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

class Bench : public CommandTest {
 protected:
  void SetUp() override {
    inspected.trained_context = 8192;
    inspected.layers = 2;
    inspected.kv_heads = 1;
    inspected.head_dim = 16;
    prepare = [](FakeEngine& engine, int) {
      engine.stats.kv_bytes_peak = 12345;
      engine.answers.emplace_back(65, 'x');
    };
    for (const char* program : {"/tmp/llama-bench", "/tmp/python"}) write_file(program, "");
    env.set_programs([this](const ProgramStart& start) { return run_peer(start); });
  }

  virtual Result<ProgramOutput> run_peer(const ProgramStart& start) {
    programs.push_back(start.arguments);
    const bool is_llama = start.arguments.front() == "/tmp/llama-bench";
    return ProgramOutput{
        .out = is_llama ? R"([{"avg_ts": 1.0}, {"avg_ts": 123.5}])"
                        : "Loading...\n"
                          R"({"prefill_tokens_per_second": 77, "decode_tokens_per_second": 7})"
                          "\n",
        .peak_rss_bytes = 1U << 20U};
  }

  /// The arguments of the only run of a peer.
  std::string program() const {
    EXPECT_EQ(programs.size(), 1U);
    std::string all;
    if (!programs.empty()) {
      for (const std::string& argument : programs.front()) all += argument + " ";
    }
    return all;
  }

  int run_bench(std::vector<std::string> arguments) {
    const std::vector<std::string> start = {"bench",       "-m",       "/m.gguf",
                                            "--no-limits", "--rounds", "1"};
    arguments.insert(arguments.begin(), start.begin(), start.end());
    return run(arguments);
  }

  nlohmann::json results() { return nlohmann::json::parse(env.read_file("/tmp/r.json").value()); }

  std::vector<std::vector<std::string>> programs;
};

TEST_F(Bench, MeasuresAPromptOfExactlyThatManyTokensInAFreshEngine) {
  EXPECT_EQ(run_bench({"--engines", "headrace", "--workloads", "prefill-2048", "--json",
                       "/tmp/r.json", "--threads", "3"}),
            exit_ok)
      << err.str();
  ASSERT_EQ(opened.size(), 1U);
  EXPECT_EQ(opened[0].model_path, "/m.gguf");
  EXPECT_EQ(opened[0].context, 2048U);
  EXPECT_EQ(opened[0].threads, 3U);
  EXPECT_EQ(opened[0].kv.memory_bytes, 0U);
  ASSERT_EQ(results().size(), 1U);
  EXPECT_EQ(results()[0]["workload"], "prefill-2048");
  EXPECT_EQ(results()[0]["engine"], "headrace");
  EXPECT_EQ(results()[0]["tokens_per_second"], 1024) << "the fake reads any prompt in 2 s";
  EXPECT_EQ(results()[0]["kv_bytes_peak"], 12345);
}

TEST_F(Bench, WarmsUpAndReadsThePromptOnce) {
  std::vector<std::size_t> reads;
  prepare = [&](FakeEngine& engine, int) {
    engine.before_each_token = [&] {
      for (const auto& read : engine.reads) reads.push_back(read.size());
    };
    engine.answers.emplace_back(1, 'x');
  };
  EXPECT_EQ(run_bench({"--engines", "headrace", "--workloads", "prefill-2048"}), exit_ok);
  EXPECT_EQ(reads, (std::vector<std::size_t>{512, 2048}));
}

TEST_F(Bench, DecodingTakesSixtyFourStepsAfterThePrompt) {
  EXPECT_EQ(
      run_bench({"--engines", "headrace", "--workloads", "decode-8192", "--json", "/tmp/r.json"}),
      exit_ok);
  EXPECT_EQ(opened[0].context, 8192U);
  EXPECT_EQ(results()[0]["prompt_tokens"], 8128);
  EXPECT_EQ(results()[0]["steps"], 64);
  EXPECT_NEAR(results()[0]["tokens_per_second"], 64 / 32.5, 1e-9) << "0.5 s for each of 65 tokens";
}

TEST_F(Bench, VariantsGetAPartOfTheMemoryThatTheContextNeeds) {
  EXPECT_EQ(run_bench({"--engines", "headrace,headrace-half,headrace-eighth", "--workloads",
                       "prefill-512", "--kv-disk", "/d"}),
            exit_ok);
  ASSERT_EQ(opened.size(), 3U);
  const std::uint64_t needed = 512U * inspected.kv_bytes_per_token(KvOptions().type);
  EXPECT_EQ(opened[0].kv.memory_bytes, 0U);
  EXPECT_EQ(opened[1].kv.memory_bytes, needed / 2);
  EXPECT_EQ(opened[2].kv.memory_bytes, needed / 8);
  EXPECT_EQ(opened[2].kv.disk_directory, "/d");
}

TEST_F(Bench, InRecallAnEighthOfTheTokensIsRead) {
  EXPECT_EQ(run_bench({"--engines", "headrace,headrace-recall", "--workloads", "decode-8192"}),
            exit_ok);
  ASSERT_EQ(opened.size(), 2U);
  EXPECT_EQ(opened[0].attention.mode, AttentionMode::exact);
  EXPECT_EQ(opened[1].attention.mode, AttentionMode::recall);
  EXPECT_EQ(opened[1].attention.recall_tokens, 1024U);
  EXPECT_EQ(opened[1].attention.recall_mass, 1);
  EXPECT_EQ(opened[1].attention.recall_share, 0) << "of texts without a meaning, too";
}

TEST_F(Bench, InAWindowAndInSparseAnEighthOfTheTokensIsRead) {
  EXPECT_EQ(
      run_bench({"--engines", "headrace-window,headrace-sparse", "--workloads", "decode-8192"}),
      exit_ok);
  ASSERT_EQ(opened.size(), 2U);
  EXPECT_EQ(opened[0].attention.mode, AttentionMode::window);
  EXPECT_EQ(opened[0].attention.recall_first + opened[0].attention.window_tokens, 1024U);
  EXPECT_EQ(opened[1].attention.mode, AttentionMode::sparse);
  EXPECT_EQ(opened[1].attention.sparse_tokens, 1024U);
}

TEST_F(Bench, RecallIsLeftOutOfContextsThatItWouldReadWhole) {
  engine_error = {ErrorCode::invalid_argument, "--recall-tokens 10 cannot be used"};
  EXPECT_EQ(run_bench({"--engines", "headrace-recall", "--workloads", "decode-16"}), exit_ok);
  EXPECT_NE(err.str().find("headrace-recall is left out of decode-16: 1/8 of the tokens"),
            std::string::npos)
      << err.str();
}

TEST_F(Bench, AVariantIsLeftOutOfContextsThatAreTooShortForIt) {
  engine_error = {ErrorCode::out_of_budget, "too small; raise --kv-memory"};
  EXPECT_EQ(run_bench({"--engines", "headrace-eighth", "--workloads", "decode-16"}), exit_ok);
  EXPECT_EQ(
      err.str(),
      "headrace: bench: headrace-eighth is left out of decode-16: 1/8 of the KV of so short a "
      "context is less than a step needs\n");
}

TEST_F(Bench, SequencesTogetherAreTimedOverTheirSteps) {
  int tokens = 0;
  prepare = [&](FakeEngine& engine, int) {
    engine.fill_logits = [&](std::vector<float>&, std::span<const TokenId>) {
      // 8 sequences of 16 tokens, after a warm-up of 16; then one row of each in a step.
      if (++tokens > 16 + 8 * 16) env.advance(std::chrono::milliseconds(10));
    };
  };
  EXPECT_EQ(run_bench({"--engines", "headrace,llama.cpp", "--llama-bench", "/tmp/llama-bench",
                       "--workloads", "decode-8-together", "--json", "/tmp/r.json"}),
            exit_ok);
  EXPECT_EQ(opened[0].sequences, 8U);
  ASSERT_EQ(results().size(), 1U);
  EXPECT_NEAR(results()[0]["tokens_per_second"], 100, 1e-6);
  EXPECT_EQ(tokens, 16 + 8 * 16 + 8 * 64);
}

TEST_F(Bench, AsksLlamaBenchForTheSamePromptAndThreads) {
  EXPECT_EQ(run_bench({"--engines", "llama.cpp", "--llama-bench", "/tmp/llama-bench", "--workloads",
                       "prefill-512", "--threads", "3", "--json", "/tmp/r.json"}),
            exit_ok);
  EXPECT_EQ(program(), "/tmp/llama-bench -m /m.gguf -t 3 -ngl 0 -r 1 -o json -p 512 -n 0 ");
  EXPECT_EQ(results()[0]["tokens_per_second"], 123.5);
  EXPECT_EQ(results()[0]["peak_rss_bytes"], 1U << 20U);
}

TEST_F(Bench, AsksLlamaBenchForItsVariantsAndTheDepth) {
  EXPECT_EQ(run_bench({"--engines", "llama.cpp-q8", "--llama-bench", "/tmp/llama-bench",
                       "--workloads", "decode-2048"}),
            exit_ok);
  EXPECT_NE(program().find("-fa on -ctk q8_0 -ctv q8_0 -p 0 -n 64 -d 2048 "), std::string::npos);
}

TEST_F(Bench, AsksOpenVinoByItsScript) {
  EXPECT_EQ(run_bench({"--engines", "openvino-genai", "--openvino-python", "/tmp/python",
                       "--openvino-script", "/peer.py", "--workloads", "decode-16", "--threads",
                       "3", "--json", "/tmp/r.json"}),
            exit_ok);
  EXPECT_EQ(program(),
            "/tmp/python /peer.py --model /m.gguf --threads 3 --prompt-tokens 16 --steps 64 ");
  EXPECT_EQ(results()[0]["tokens_per_second"], 7);
}

TEST_F(Bench, PeersThatAreNotThereAreLeftOutWithALine) {
  EXPECT_EQ(
      run_bench({"--engines", "headrace,llama.cpp,openvino-genai", "--workloads", "prefill-512"}),
      exit_ok);
  EXPECT_NE(err.str().find("headrace: bench: llama.cpp is left out: no llama-bench; `make bench` "
                           "gets it, or name one with --llama-bench\n"),
            std::string::npos)
      << err.str();
  EXPECT_NE(err.str().find("openvino-genai is left out: "), std::string::npos);
  EXPECT_EQ(out.str().find("llama.cpp"), std::string::npos);
}

class BenchWithBrokenPeer : public Bench {
 protected:
  Result<ProgramOutput> run_peer(const ProgramStart&) override { return peer; }
  Result<ProgramOutput> peer = ProgramOutput{};
};

TEST_F(BenchWithBrokenPeer, ThePeerIsLeftOutAndItsComplaintShown) {
  struct Case {
    Result<ProgramOutput> peer;
    std::string complaint;
  };
  const std::vector<Case> cases = {
      {ProgramOutput{.exit_code = 2, .err = "first\nbad model\n"},
       "it failed with exit code 2: bad model"},
      {ProgramOutput{.out = "nonsense"}, "its output has no avg_ts"},
      {ProgramOutput{.out = "[]"}, "its output has no avg_ts"},
      {ProgramOutput{.out = R"([{"avg_ts": "fast"}])"}, "its output has no avg_ts"},
      {Error{ErrorCode::not_found, "cannot run '/x'"}, "cannot run '/x'"},
  };
  for (const Case& broken : cases) {
    peer = broken.peer;
    err.str("");
    EXPECT_EQ(run_bench({"--engines", "headrace,llama.cpp", "--llama-bench", "/tmp/llama-bench",
                         "--workloads", "prefill-512"}),
              exit_ok);
    EXPECT_NE(err.str().find("llama.cpp is left out of prefill-512: " + broken.complaint + "\n"),
              std::string::npos)
        << err.str();
  }
}

TEST_F(Bench, UnknownNamesAreRefusedWithTheKnownOnes) {
  EXPECT_EQ(run_bench({"--engines", "headrace,vllm"}), exit_usage);
  EXPECT_EQ(err.str().find("headrace: error: there is no engine 'vllm'; there are headrace, "), 0U)
      << err.str();
  err.str("");
  EXPECT_EQ(run_bench({"--workloads", "prefill-7"}), exit_usage);
  EXPECT_NE(err.str().find("'prefill-7'; there are prefill-512, "), std::string::npos);
  EXPECT_TRUE(opened.empty());
}

TEST_F(Bench, OptionsOfRecallAreRefusedWithoutIt) {
  for (const auto& [option, value] :
       {std::pair("--recall-codec", "hidden-q8"), std::pair("--recall-share", "0.002"),
        std::pair("--recall-load-tokens", "96")}) {
    err.str("");
    EXPECT_EQ(run_bench({option, value}), exit_usage) << option;
    EXPECT_NE(err.str().find("--recall"), std::string::npos) << err.str();
  }
  EXPECT_TRUE(opened.empty());
}

TEST_F(Bench, WorkloadsLongerThanTheModelAreLeftOut) {
  inspected.trained_context = 1000;
  EXPECT_EQ(run_bench({"--engines", "headrace", "--workloads", "prefill-512,prefill-2048"}),
            exit_ok);
  EXPECT_NE(err.str().find("prefill-2048 is left out: the model was trained for 1000 tokens\n"),
            std::string::npos);
  EXPECT_EQ(opened.size(), 1U);
  err.str("");
  EXPECT_EQ(run_bench({"--engines", "headrace", "--workloads", "prefill-2048"}), exit_usage);
  EXPECT_NE(err.str().find("error: nothing is left to measure\n"), std::string::npos);
}

TEST_F(Bench, WritesAllResultsAndReplacesThoseOfBefore) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(run_bench({"--engines", "headrace", "--workloads", "prefill-512,prefill-2048",
                         "--results", "/tmp/new/results"}),
              exit_ok)
        << err.str();
    EXPECT_EQ(env.list_directory("/tmp/new/results").value(),
              (std::vector<std::string>{"machine.json", "memory.svg", "prefill.svg", "results.json",
                                        "results.md"}));
  }
  EXPECT_EQ(nlohmann::json::parse(env.read_file("/tmp/new/results/results.json").value()).size(),
            2U);
}

TEST_F(Bench, AnOutputThatCannotBeIsFoundBeforeMeasuring) {
  EXPECT_EQ(run_bench({"--json", "/nowhere/r.json"}), exit_usage);
  EXPECT_NE(err.str().find("headrace: error: cannot write '/nowhere/r.json': there is no folder "),
            std::string::npos);
  EXPECT_TRUE(opened.empty());
}

TEST_F(Bench, QuickRunsTwoSmallWorkloadsTwice) {
  EXPECT_EQ(run({"bench", "-m", "m", "--quick", "--no-limits", "--llama-bench", "/tmp/llama-bench",
                 "--openvino-python", "/tmp/python"}),
            exit_ok);
  EXPECT_EQ(opened.size(), 4U);
  EXPECT_EQ(programs.size(), 8U);
}

TEST_F(Bench, OnATerminalALineShowsWhatIsMeasuredAndGoesAway) {
  const std::vector<std::string> arguments = {"--engines", "headrace", "--workloads", "decode-16"};
  EXPECT_EQ(run_bench(arguments), exit_ok);
  EXPECT_EQ(err.str(), "headrace: bench: decode-16, round 1 of 1: headrace 1.97 tok/s\n");
  err.str("");
  err_is_terminal = true;
  EXPECT_EQ(run_bench(arguments), exit_ok);
  EXPECT_EQ(err.str(),
            "\r\033[Kdecode-16, round 1 of 1: headrace ..."
            "\r\033[Kheadrace: bench: decode-16, round 1 of 1: headrace 1.97 tok/s\n");
}

TEST_F(Bench, AnInterruptExits130WithoutATable) {
  interrupts.notice(SIGINT);
  EXPECT_EQ(run_bench({"--engines", "headrace", "--workloads", "decode-16"}), 130);
  EXPECT_EQ(out.str(), "");
}

TEST_F(Bench, AnInterruptedPeerIsNoFailure) {
  env.set_programs([this](const ProgramStart& start) -> Result<ProgramOutput> {
    EXPECT_FALSE(start.is_cancelled());
    interrupts.notice(SIGINT);
    EXPECT_TRUE(start.is_cancelled());
    return ProgramOutput{.exit_code = 130};
  });
  EXPECT_EQ(run_bench({"--engines", "llama.cpp", "--llama-bench", "/tmp/llama-bench", "--workloads",
                       "decode-16"}),
            130);
  EXPECT_EQ(err.str().find("left out"), std::string::npos);
}

}  // namespace
}  // namespace headrace
