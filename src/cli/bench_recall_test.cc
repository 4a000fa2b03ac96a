#include "cli/bench_recall.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

class BenchRecall : public CommandTest {
 protected:
  void SetUp() override {
    inspected.trained_context = 8192;
    prepare = [](FakeEngine& engine, int number) {
      const bool is_exact = number % 6 == 1;  // from 1 on
      engine.stats.kv_bytes_needed = 160U << 20U;
      engine.stats.kv_bytes_limit = (is_exact ? 200U : 220U) << 20U;
      engine.stats.kv_bytes_peak = 3U << 20U;
      if (!is_exact) engine.stats.recall_choices = 1;
      engine.answers.emplace_back(65, 'x');
    };
    write_file("/book.txt", std::string(5'000, 'a'));
  }

  int run_recall(std::vector<std::string> arguments = {}) {
    const std::vector<std::string> start = {"bench",     "-m",      "/m.gguf",   "--recall",
                                            "/book.txt", "--quick", "--kv-disk", "/d"};
    arguments.insert(arguments.begin(), start.begin(), start.end());
    return run(arguments);
  }
};

TEST_F(BenchRecall, OpensEnginesThatDifferInWhatTheyReadAndWhatMemoryHolds) {
  ASSERT_EQ(run_recall({"--rounds", "2"}), exit_ok) << err.str();
  ASSERT_EQ(opened.size(), 12U);
  for (std::size_t i = 0; i < opened.size(); ++i) {
    const AttentionOptions& attention = opened[i].attention;
    EXPECT_EQ(attention.mode, i % 6 == 0 ? AttentionMode::exact : AttentionMode::recall);
    EXPECT_EQ(attention.recall_by_layer, i % 6 >= 2);
    EXPECT_FALSE(opened[i].kv.reuse) << "every round reads its prompt again";
    EXPECT_EQ(opened[i].kv.memory_bytes == 0, i % 6 < 3);
  }
  // A quarter of the KV, the sketches, and buffers of the disk tier.
  EXPECT_EQ(opened[3].kv.memory_bytes, std::uint64_t{40 + 20 + 2} << 20U);
  EXPECT_EQ(opened[4].kv.memory_bytes, std::uint64_t{128} << 20U);
  EXPECT_EQ(opened[5].kv.memory_bytes, std::uint64_t{50} << 20U);
}

TEST_F(BenchRecall, SaysWhatEachWayTook) {
  ASSERT_EQ(run_recall(), exit_ok) << err.str();
  for (const char* row : {"exact: answer", "recall: in times of exact",
                          "recall by layer, 1/4 in the pool: KV memory"}) {
    EXPECT_NE(out.str().find(row), std::string::npos) << row << " in\n" << out.str();
  }
}

TEST_F(BenchRecall, NeedsATextThatIsLongEnough) {
  EXPECT_NE(run({"bench", "-m", "/m.gguf", "--recall", "/book.txt"}), exit_ok);
  EXPECT_NE(err.str().find("at least 7680"), std::string::npos) << err.str();
}

TEST_F(BenchRecall, WithoutItsTextSaysSo) {
  EXPECT_NE(run({"bench", "-m", "/m.gguf", "--recall", "/none.txt"}), exit_ok);
  EXPECT_NE(err.str().find("/none.txt"), std::string::npos) << err.str();
  EXPECT_TRUE(opened.empty());
}

TEST_F(BenchRecall, StopsWhenItIsTold) {
  const auto before = prepare;
  prepare = [&, before](FakeEngine& engine, int number) {
    before(engine, number);
    engine.before_each_token = [this] { interrupts.notice(SIGINT); };
  };
  EXPECT_EQ(run_recall(), 128 + SIGINT);
  EXPECT_EQ(opened.size(), 1U);
}

}  // namespace
}  // namespace headrace
