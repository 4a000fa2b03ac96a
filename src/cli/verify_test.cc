#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

class Verify : public CommandTest {
 protected:
  Verify() { EXPECT_TRUE(env.make_directories("/kv").ok()); }
};

TEST_F(Verify, AnEmptyDirectoryIsWhole) {
  write_file("/kv/photo.jpg", "x");
  EXPECT_EQ(run({"verify", "/kv", "--json"}), exit_ok);
  EXPECT_EQ(json()["segments"], 0);
  EXPECT_EQ(json()["pages"], 0);
  EXPECT_EQ(json()["damaged"].size(), 0U);
  EXPECT_EQ(json()["foreign_files"][0], "photo.jpg");
}

TEST_F(Verify, DamageIsNamedAndIsAFailure) {
  write_file("/kv/seg-00000001.hrs", std::string(10'000, 'x'));
  EXPECT_EQ(run({"verify", "/kv"}), exit_failure);
  EXPECT_NE(out.str().find("seg-00000001.hrs at byte 0: not a segment"), std::string::npos)
      << out.str();
}

TEST_F(Verify, ADirectoryInUseOrMissingIsAnError) {
  const auto lock = env.lock_file("/kv/headrace.lock");
  EXPECT_EQ(run({"verify", "/kv"}), exit_failure);
  EXPECT_NE(err.str().find("held by someone else"), std::string::npos) << err.str();
  EXPECT_EQ(run({"verify", "/nowhere"}), exit_usage);
}

TEST_F(Verify, WantsEitherADirectoryOrAModel) {
  EXPECT_EQ(run({"verify"}), exit_usage);
  EXPECT_NE(err.str().find("either"), std::string::npos) << err.str();
  EXPECT_EQ(run({"verify", "/kv", "--model", "m"}), exit_usage);
  EXPECT_EQ(run({"verify", "/kv", "--context", "100"}), exit_usage);
  EXPECT_EQ(run({"verify", "--model", "m", "--repair"}), exit_usage);
  EXPECT_TRUE(opened.empty());
}

class VerifyModel : public CommandTest {
 protected:
  VerifyModel() {
    prepare = [this](FakeEngine& engine, int nth) {
      engine.context_tokens = 200;
      engine.sessions = saved_;
      engine.on_save = [this](const auto& sessions) { saved_ = sessions; };
      engine.stats.pages_filled_from_host = 2;
      engine.stats.pages_filled_from_disk = 5;
      // Every token counts, where it stands too.
      engine.fill_logits = [this, nth](std::vector<float>& row, std::span<const TokenId> tokens) {
        float sum = 0;
        for (const TokenId token : tokens) sum = sum * 0.5F + static_cast<float>(token);
        for (std::size_t i = 0; i < row.size(); ++i) row[i] = sum + static_cast<float>(i % 7);
        if (nth == wrong_engine && tokens.size() == 190) row[100] += 0.001F;
      };
    };
  }
  int wrong_engine = 0;  // nth opened; 0: none

 private:
  std::map<std::string, SessionState> saved_;
};

TEST_F(VerifyModel, ComparesEveryTierWithEverythingInMemory) {
  EXPECT_EQ(run({"verify", "--model", "m", "--json"}), exit_ok) << err.str();
  std::vector<std::string> tiers;
  for (const auto& check : json()) {
    tiers.push_back(check["tier"]);
    EXPECT_EQ(check["tokens"], 200);
    EXPECT_EQ(check["restored_pages"], tiers.size() == 1 ? 0 : 7);
    EXPECT_EQ(check["rows_equal"], check["rows_compared"]);
    EXPECT_GT(check["rows_compared"], 50);
  }
  EXPECT_EQ(tiers, (std::vector<std::string>{"memory", "disk", "disk, direct", "disk, lossless",
                                             "memory, lossless", "restart", "session", "fork"}));
  ASSERT_EQ(opened.size(), 10U);  // two for a restart and for a session
  EXPECT_EQ(opened[0].kv.memory_bytes, 0U);
  EXPECT_GT(opened[1].kv.memory_bytes, 0U);
  EXPECT_TRUE(opened[2].kv.disk_direct);
  EXPECT_EQ(opened[3].kv.disk_codec, "lossless");
  EXPECT_GT(opened[4].kv.host_percent, 0U);
  EXPECT_TRUE(opened[5].kv.keep_disk);
  EXPECT_EQ(opened[5].kv.disk_directory, opened[6].kv.disk_directory);
  EXPECT_FALSE(env.exists(opened[6].kv.disk_directory)) << "nothing is left behind";
}

TEST_F(VerifyModel, OneDifferentBitIsAFailureThatNamesTheTier) {
  wrong_engine = 4;
  EXPECT_EQ(run({"verify", "--model", "m"}), exit_failure);
  EXPECT_NE(out.str().find("199 of 200 rows"), std::string::npos) << out.str();
  EXPECT_EQ(err.str(),
            "headrace: error: logits differ from those with everything in memory: disk, "
            "lossless\n");
}

TEST_F(VerifyModel, SaysWhatIsWrongInOneLine) {
  EXPECT_EQ(run({"verify", "--model", "m", "-f", "/missing"}), exit_usage);
  EXPECT_TRUE(opened.empty());
  open_error = {ErrorCode::not_found, "there is no model"};
  EXPECT_EQ(run({"verify", "--model", "m"}), exit_usage);
  open_error = {};
  prepare = [](FakeEngine& engine, int) { engine.context_tokens = 63; };
  EXPECT_EQ(run({"verify", "--model", "m"}), exit_usage);
  EXPECT_NE(err.str().find("at least 64"), std::string::npos) << err.str();
}

TEST_F(VerifyModel, CtrlCEndsIt) {
  interrupts.notice(SIGINT);
  EXPECT_EQ(run({"verify", "--model", "m"}), exit_interrupted);
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace headrace
