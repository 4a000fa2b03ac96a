#include "cli/bench_recompute.h"

#include <gtest/gtest.h>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

class BenchRecompute : public CommandTest {
 protected:
  void SetUp() override {
    inspected.trained_context = 8192;
    prepare = [](FakeEngine& engine, int) {
      engine.stats.kv_bytes_limit = 200U << 20U;
      engine.stats.recomputed_tokens = 500;
      engine.stats.recompute_seconds = 0.5;
    };
  }
};

TEST_F(BenchRecompute, OpensEnginesThatKeepTheTextOnlyInMemoryForOneOfTwo) {
  ASSERT_EQ(run({"bench", "-m", "/m.gguf", "--recompute", "--quick"}), exit_ok) << err.str();
  ASSERT_EQ(opened.size(), 6U);
  EXPECT_EQ(opened[0].kv.memory_bytes, 0U) << "says what all would take";
  constexpr std::uint32_t rows[] = {512, 256, 128, 64, 16};
  for (std::size_t i = 1; i < opened.size(); ++i) {
    EXPECT_EQ(opened[i].kv.evicted, "recipe");
    EXPECT_EQ(opened[i].kv.memory_bytes, std::uint64_t{114} << 20U);
    EXPECT_EQ(opened[i].chunk_tokens, rows[i - 1]);
    EXPECT_EQ(opened[i].sequences, 2U);
  }
}

TEST_F(BenchRecompute, SaysHowFastEachBatchIs) {
  ASSERT_EQ(run({"bench", "-m", "/m.gguf", "--recompute", "--quick", "--rounds", "2"}), exit_ok)
      << err.str();
  for (const char* row : {"prompt: read, 512 rows at once", "64 rows at once: computed again",
                          "1000 tok/s", "16 rows at once: of reading"}) {
    EXPECT_NE(out.str().find(row), std::string::npos) << row << " in\n" << out.str();
  }
}

TEST_F(BenchRecompute, IsNotMeasuredTogetherWithOthers) {
  EXPECT_NE(run({"bench", "-m", "/m.gguf", "--recompute", "--store"}), exit_ok);
}

}  // namespace
}  // namespace headrace
