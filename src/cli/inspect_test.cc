#include <gtest/gtest.h>

#include <string>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

class Inspect : public CommandTest {
 protected:
  Inspect() {
    inspected.name = "Tiny";
    inspected.architecture = "llama";
    inspected.file_bytes = std::uint64_t{1} << 30;
    inspected.parameters = 135'000'000;
    inspected.layers = 30;
    inspected.kv_heads = 3;
    inspected.head_dim = 64;
    inspected.trained_context = 8192;
    inspected.tensor_bytes_by_type = {{"Q4_1", 1000}, {"F32", 10}};
  }
};

TEST_F(Inspect, CalculatesWhatAContextNeeds) {
  EXPECT_EQ(run({"inspect", "m.gguf", "--context", "1000", "--json"}), exit_ok);
  EXPECT_EQ(json()["model"], "m.gguf");
  EXPECT_EQ(json()["kv_bytes_per_token"],
            nlohmann::json(
                {{"f32", 46080}, {"f16", 23040}, {"i16", 23220}, {"bf16", 23040}, {"q8", 12240}}));
  EXPECT_EQ(json()["kv_bytes_needed"]["f16"],
            nlohmann::json({{"full", 23040000}, {"half", 11520000}, {"eighth", 2880000}}));
  EXPECT_EQ(json()["tensor_bytes_by_type"]["Q4_1"], 1000);
  // MemoryEnv's machine has 8 GiB.
  EXPECT_EQ(json()["tokens_that_fit"]["f16"], (std::uint64_t{7} << 30) / 23040);
}

TEST_F(Inspect, LayersWithAWindowNeedNoMoreThanIt) {
  inspected.window = 100;
  inspected.window_layers = inspected.layers - 6;
  EXPECT_EQ(run({"inspect", "m.gguf", "--context", "1000", "--json"}), exit_ok);
  const std::uint64_t layer = 23040 / inspected.layers;
  EXPECT_EQ(json()["kv_bytes_needed"]["f16"]["full"],
            layer * (6 * 1000 + (inspected.layers - 6) * 100));
  const std::uint64_t left = (std::uint64_t{7} << 30) - layer * inspected.layers * 100;
  EXPECT_EQ(json()["tokens_that_fit"]["f16"], 100 + left / (6 * layer));
}

TEST_F(Inspect, TheContextIsTheTrainedOneUnlessGiven) {
  EXPECT_EQ(run({"inspect", "m.gguf", "--json"}), exit_ok);
  EXPECT_EQ(json()["context"], 8192);
}

TEST_F(Inspect, ThePrintedLimitsCanBePasted) {
  EXPECT_EQ(run({"inspect", "m.gguf"}), exit_ok);
  EXPECT_NE(out.str().find("--kv-memory 90MiB"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("22.5 KiB"), std::string::npos);
}

TEST_F(Inspect, SaysWhichLayersReadAWindow) {
  EXPECT_EQ(run({"inspect", "m.gguf"}), exit_ok);
  EXPECT_EQ(out.str().find("sliding window"), std::string::npos) << out.str();
  inspected.window = 512;
  inspected.window_layers = 25;
  EXPECT_EQ(run({"inspect", "m.gguf"}), exit_ok);
  EXPECT_NE(out.str().find("512 tokens in 25 of 30 layers"), std::string::npos) << out.str();
  out.str("");
  EXPECT_EQ(run({"inspect", "m.gguf", "--json"}), exit_ok);
  EXPECT_EQ(json()["window"], 512);
  EXPECT_EQ(json()["window_layers"], 25);
}

TEST_F(Inspect, AModelThatFillsTheMemoryLeavesRoomForNothing) {
  inspected.file_bytes = std::uint64_t{1} << 40;
  EXPECT_EQ(run({"inspect", "m.gguf", "--json"}), exit_ok);
  EXPECT_EQ(json()["tokens_that_fit"]["f16"], 0);
}

}  // namespace
}  // namespace headrace
