#include "tier/scrub.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/log.h"
#include "env/memory_env.h"
#include "tier/disk_tier_test_world.h"

namespace headrace {
namespace {

class Scrub : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::off);
    ASSERT_TRUE(bench.open().ok());
    for (std::uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(bench.put(test_page(i)).ok());
    ASSERT_TRUE(bench.put_record(RecordKind::session, 1, body_of(1)).ok());
    ASSERT_TRUE(bench.put_record(RecordKind::session, 1, body_of(2)).ok());
    bench.close();
    path = segment_files(env).at(0);
    bytes = file_bytes(env, path);
  }
  void TearDown() override {
    bench.close();
    set_log_level(level_);
  }
  ScrubReport scrub(bool repair = false) {
    auto report = scrub_directory(env, test_directory, repair);
    EXPECT_TRUE(report.ok());
    return report.ok() ? *report : ScrubReport();
  }
  void flip(std::size_t at) {
    bytes[at] ^= std::byte{4};
    set_file(env, path, bytes);
  }

  const std::uint64_t record = disk_tier_record_bytes(small_shape);
  MemoryEnv env{{.executors = ExecutorKind::manual}};
  TierWorkbench bench{env, env, kept_options()};
  std::string path;
  std::vector<std::byte> bytes;

 private:
  const LogLevel level_ = log_level();
};

TEST_F(Scrub, CountsWhatIsThere) {
  set_file(env, std::string(test_directory) + "/photo.jpg", body_of(1));
  const ScrubReport report = scrub();
  EXPECT_EQ(report.segments, 1U);
  EXPECT_EQ(report.records, (std::array<std::uint64_t, 4>{3, 0, 2, 0}));
  EXPECT_EQ(report.bytes, bytes.size());
  EXPECT_EQ(report.record_bytes, bytes.size() - segment_unit_bytes);
  EXPECT_TRUE(report.damaged.empty());
  EXPECT_EQ(report.foreign_files, std::vector<std::string>{"photo.jpg"});
  EXPECT_EQ(file_bytes(env, path), bytes);
  EXPECT_FALSE(env.exists(std::string(test_directory) + "/headrace.lock"));
}

TEST_F(Scrub, ADamagedPayloadIsFoundAndErasedByRepair) {
  flip(segment_unit_bytes + record + segment_unit_bytes + 5);
  ScrubReport report = scrub();
  ASSERT_EQ(report.damaged.size(), 1U);
  EXPECT_EQ(report.damaged[0].file, "seg-00000001.hrs");
  EXPECT_EQ(report.damaged[0].offset, segment_unit_bytes + record);
  EXPECT_EQ(scrub(true).damaged.size(), 1U);
  report = scrub();
  EXPECT_TRUE(report.damaged.empty());
  ASSERT_TRUE(bench.open().ok());
  EXPECT_EQ(outcome(bench.get(test_page(0))), "ok");
  EXPECT_EQ(outcome(bench.get(test_page(1))), "not_found");
  EXPECT_EQ(outcome(bench.get(test_page(2))), "ok");
}

TEST_F(Scrub, RepairBringsNoOldVersionBack) {
  flip(bytes.size() - segment_unit_bytes);  // the newer session's body
  EXPECT_EQ(scrub(true).damaged.size(), 1U);
  ASSERT_TRUE(bench.open().ok());
  EXPECT_FALSE(bench.record(RecordKind::session, 1).ok());
}

TEST_F(Scrub, ADamagedHeaderIsFoundAndClearedByRepair) {
  flip(segment_unit_bytes + 70);
  ScrubReport report = scrub(true);
  ASSERT_EQ(report.damaged.size(), 1U);
  EXPECT_EQ(report.damaged[0].offset, segment_unit_bytes);
  report = scrub();
  EXPECT_TRUE(report.damaged.empty());
  EXPECT_EQ(report.records[0], 2U);
}

TEST_F(Scrub, ATornTailIsFoundAndCutOffByRepair) {
  bytes.resize(bytes.size() - 1'000);
  set_file(env, path, bytes);
  EXPECT_EQ(scrub(true).damaged.size(), 1U);
  const ScrubReport report = scrub();
  EXPECT_TRUE(report.damaged.empty());
  EXPECT_EQ(report.bytes, report.record_bytes + segment_unit_bytes);
}

TEST_F(Scrub, ASegmentWithoutAHeaderIsReportedAndLeftAlone) {
  flip(30);
  EXPECT_EQ(scrub(true).damaged.size(), 1U);
  EXPECT_EQ(scrub().damaged.size(), 1U);
  EXPECT_EQ(file_bytes(env, path), bytes);
}

TEST_F(Scrub, ADirectoryInUseIsRefused) {
  ASSERT_TRUE(bench.open().ok());
  const auto report = scrub_directory(env, test_directory, true);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::io);
  EXPECT_EQ(scrub_directory(env, "/nowhere", false).error().code, ErrorCode::not_found);
  EXPECT_FALSE(env.exists("/nowhere"));
}

}  // namespace
}  // namespace headrace
