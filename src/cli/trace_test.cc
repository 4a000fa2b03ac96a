#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

class Trace : public CommandTest {
 protected:
  /// Three texts in turn, which LRU misses all and the optimum hits now and then.
  void SetUp() override {
    std::string text;
    for (int round = 0; round < 4; ++round) {
      for (const char* id : {"10", "20", "30"}) {
        text += R"({"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [)";
        text += std::string(id) + "]}\n";
      }
    }
    write_file("/t.jsonl", text);
  }

  nlohmann::json result(const std::string& policy, int capacity) {
    for (const auto& each : json()) {
      if (each["policy"] == policy && each["capacity_blocks"] == capacity) return each;
    }
    return {};
  }
};

TEST_F(Trace, ReplaysAllPoliciesAndWhatWouldBePossible) {
  EXPECT_EQ(run({"trace", "replay", "/t.jsonl", "--capacity", "2,4", "--json"}), exit_ok)
      << err.str();
  EXPECT_EQ(json().size(), 8U * 2);
  EXPECT_EQ(result("lru", 2)["hits"], 0);
  EXPECT_EQ(result("lru", 2)["blocks"], 12);
  EXPECT_EQ(result("optimum", 2)["hits"], 5);
  EXPECT_DOUBLE_EQ(result("optimum", 2)["gap_closed"].get<double>(), 1);
  EXPECT_EQ(result("infinite", 2)["hits"], 9);
  for (const char* policy : {"lru", "fifo", "s3fifo", "lrfu", "cost", "auto"}) {
    EXPECT_EQ(result(policy, 4)["hits"], 9) << policy << ", and everything fits";
    EXPECT_EQ(result(policy, 4)["file"], "/t.jsonl");
  }
}

TEST_F(Trace, PrintsTheRatesAndTheShareOfTheGap) {
  EXPECT_EQ(run({"trace", "replay", "/t.jsonl", "--policy", "lru,auto", "--capacity", "2000,2"}),
            exit_ok);
  EXPECT_EQ(out.str().find("/t.jsonl: 12 blocks asked for. Share of hits, by blocks of 512"), 0U);
  EXPECT_NE(out.str().find("  lru       0.0000  0.7500\n"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("  optimum   0.4167  0.7500\n"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("gap closed"), std::string::npos);
  EXPECT_EQ(out.str().find("fifo"), std::string::npos);
}

TEST_F(Trace, TheTokensOfABlockSayWhichLastOneIsNotFull) {
  for (const char* tokens : {"512", "500"}) {
    out.str("");
    EXPECT_EQ(run({"trace", "replay", "/t.jsonl", "--block-tokens", tokens}), exit_ok);
    EXPECT_NE(out.str().find(std::string("blocks of ") + tokens + " tokens"), std::string::npos);
  }
}

TEST_F(Trace, DrawsOneTrace) {
  EXPECT_EQ(run({"trace", "replay", "/t.jsonl", "--svg", "/c.svg"}), exit_ok);
  const std::string svg = env.read_file("/c.svg").value();
  EXPECT_EQ(svg.find("<svg"), 0U);
  EXPECT_NE(svg.find("optimum"), std::string::npos);
  EXPECT_EQ(run({"trace", "replay", "/t.jsonl", "/t.jsonl", "--svg", "/c.svg"}), exit_usage);
  EXPECT_EQ(err.str(), "headrace: error: --svg draws one trace\n");
}

TEST_F(Trace, NamesTheLineThatIsNoRequest) {
  const std::string good = R"({"input_length": 1, "hash_ids": [1]})";
  for (const std::string bad :
       {"nonsense", "{}", "[1]", R"({"input_length": 1})", R"({"hash_ids": [1]})",
        R"({"input_length": 1, "hash_ids": 1})", R"({"input_length": 1, "hash_ids": [-1]})",
        R"({"input_length": -1, "hash_ids": [1]})", R"({"input_length": 1, "hash_ids": ["1"]})",
        R"({"input_length": 1, "hash_ids": [18446744073709551615]})"}) {
    err.str("");
    EXPECT_TRUE(!env.exists("/bad.jsonl") || env.remove_file("/bad.jsonl").ok());
    write_file("/bad.jsonl", good + "\n\n" + bad + "\n");
    EXPECT_EQ(run({"trace", "replay", "/bad.jsonl"}), exit_failure) << bad;
    EXPECT_EQ(err.str(),
              "headrace: error: /bad.jsonl:3: not a request with input_length and hash_ids\n");
  }
  EXPECT_EQ(out.str(), "");
}

TEST_F(Trace, WrongUsageIsSaid) {
  EXPECT_EQ(run({"trace"}), exit_usage);
  EXPECT_EQ(run({"trace", "replay"}), exit_usage);
  EXPECT_EQ(run({"trace", "replay", "/none.jsonl"}), exit_usage);
  EXPECT_EQ(run({"trace", "replay", "/t.jsonl", "--capacity", "0"}), exit_usage);
  err.str("");
  EXPECT_EQ(run({"trace", "replay", "/t.jsonl", "--policy", "mru"}), exit_usage);
  EXPECT_EQ(err.str(),
            "headrace: error: there is no policy 'mru'; lru, fifo, s3fifo, lrfu, cost or auto\n");
  write_file("/empty.jsonl", "\n");
  EXPECT_EQ(run({"trace", "replay", "/empty.jsonl"}), exit_failure);
}

TEST_F(Trace, StopsBetweenReplaysWhenAsked) {
  interrupts.notice(2);
  EXPECT_EQ(run({"trace", "replay", "/t.jsonl"}), exit_interrupted);
}

}  // namespace
}  // namespace headrace
