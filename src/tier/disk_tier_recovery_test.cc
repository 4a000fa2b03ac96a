// What a process finds that another one left, whole or damaged.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/log.h"
#include "env/memory_env.h"
#include "tier/disk_tier.h"
#include "tier/disk_tier_test_world.h"
#include "tier/segment_format.h"

namespace headrace {
namespace {

class DiskTierRecovery : public testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override {
    bench.close();
    set_log_level(level_);
  }
  void open() { ASSERT_TRUE(bench.open().ok()); }

  MemoryEnv env{{.executors = ExecutorKind::manual}};
  TierWorkbench bench{env, env, kept_options()};

 private:
  const LogLevel level_ = log_level();
};

TEST_F(DiskTierRecovery, EveryKindOfRecordIsFoundAgain) {
  open();
  for (std::uint32_t i = 0; i < 10; ++i) ASSERT_TRUE(bench.put(test_page(i)).ok());
  ASSERT_TRUE(bench.put(tail_page(20, 5)).ok());
  ASSERT_TRUE(bench.put_record(RecordKind::session, 1, body_of(1)).ok());
  ASSERT_TRUE(bench.put_record(RecordKind::block, 1, body_of(2, record_body_bytes_max)).ok());
  open();
  EXPECT_EQ(bench.tier().stats().pages_recovered, 11U);
  for (std::uint32_t i = 0; i < 10; ++i) EXPECT_EQ(outcome(bench.get(test_page(i))), "ok");
  EXPECT_EQ(outcome(bench.get(tail_page(20, 5))), "ok");
  EXPECT_EQ(*bench.record(RecordKind::session, 1), body_of(1));
  EXPECT_EQ(*bench.record(RecordKind::block, 1), body_of(2, record_body_bytes_max));
  EXPECT_EQ(bench.tier().record_keys(RecordKind::session),
            (std::vector<Digest128>{{.low = 1, .high = 1}}));
}

TEST_F(DiskTierRecovery, TheNewestRecordOfAKeyWins) {
  open();
  for (std::uint32_t version = 1; version <= 3; ++version) {
    ASSERT_TRUE(bench.put_record(RecordKind::session, 7, body_of(version)).ok());
  }
  open();
  EXPECT_EQ(*bench.record(RecordKind::session, 7), body_of(3));
  ASSERT_TRUE(bench.put_record(RecordKind::session, 7, body_of(4)).ok());
  open();
  EXPECT_EQ(*bench.record(RecordKind::session, 7), body_of(4));
}

TEST_F(DiskTierRecovery, WhatWasErasedStaysErasedAndCanBePutAgain) {
  open();
  ASSERT_TRUE(bench.put_record(RecordKind::session, 7, body_of(1)).ok());
  ASSERT_TRUE(bench.put_record(RecordKind::session, 7, body_of(2)).ok());
  ASSERT_TRUE(bench.put(test_page(1)).ok());
  ASSERT_TRUE(bench.put(test_page(2)).ok());
  bench.erase_record(RecordKind::session, 7);
  bench.tier().erase(test_page(1).identity.key);
  ASSERT_TRUE(bench.sync().ok());
  env.crash();
  open();
  EXPECT_EQ(outcome(bench.get(test_page(1))), "not_found");
  EXPECT_EQ(outcome(bench.get(test_page(2))), "ok");
  EXPECT_EQ(bench.record(RecordKind::session, 7).error().code, ErrorCode::not_found);
  ASSERT_TRUE(bench.put_record(RecordKind::session, 7, body_of(3)).ok());
  open();
  EXPECT_EQ(*bench.record(RecordKind::session, 7), body_of(3));
}

TEST_F(DiskTierRecovery, WhatASyncAcknowledgedSurvivesACrash) {
  open();
  ASSERT_TRUE(bench.put(test_page(1)).ok());
  ASSERT_TRUE(bench.put_record(RecordKind::session, 7, body_of(1)).ok());
  ASSERT_TRUE(bench.sync().ok());
  ASSERT_TRUE(bench.put(test_page(2)).ok());
  env.crash();
  open();
  EXPECT_EQ(outcome(bench.get(test_page(1))), "ok");
  EXPECT_EQ(*bench.record(RecordKind::session, 7), body_of(1));
  EXPECT_EQ(outcome(bench.get(test_page(2))), "not_found");
}

TEST_F(DiskTierRecovery, ASyncAlsoKeepsWhatAKilledProcessHadNotSynced) {
  open();
  const TestPage page = test_page(1);
  ASSERT_TRUE(bench.put(page).ok());
  open();  // nothing was synced in between
  ASSERT_TRUE(bench.put_record(RecordKind::session, 1, body_of(1)).ok());
  ASSERT_TRUE(bench.sync().ok());
  env.crash();
  open();
  EXPECT_TRUE(bench.record(RecordKind::session, 1).ok());
  EXPECT_TRUE(bench.get(page).ok()) << "the session that was saved on top of it needs it";
}

TEST_F(DiskTierRecovery, ATornTailLosesItsRecordAndNoOther) {
  open();
  ASSERT_TRUE(bench.put(test_page(1)).ok());
  ASSERT_TRUE(bench.put(test_page(2)).ok());
  bench.close();
  const std::string path = segment_files(env).at(0);
  const std::vector<std::byte> whole = file_bytes(env, path);
  const std::uint64_t last = disk_tier_record_bytes(small_shape);
  for (std::size_t size = whole.size() - last; size < whole.size(); size += 512) {
    SCOPED_TRACE(size);
    set_file(env, path, Bytes(whole).first(size));
    open();
    EXPECT_EQ(outcome(bench.get(test_page(1))), "ok");
    EXPECT_EQ(outcome(bench.get(test_page(2))), "not_found");
    ASSERT_TRUE(bench.put(test_page(3)).ok());
    open();
    EXPECT_EQ(outcome(bench.get(test_page(3))), "ok");
    bench.close();
    for (const std::string& name : segment_files(env)) ASSERT_TRUE(env.remove_file(name).ok());
  }
}

TEST_F(DiskTierRecovery, EveryFlippedBitOfAHeaderLosesItsRecordAndNoOther) {
  open();
  ASSERT_TRUE(bench.put_record(RecordKind::session, 1, body_of(1)).ok());
  ASSERT_TRUE(bench.put_record(RecordKind::session, 2, body_of(2)).ok());
  bench.close();
  const std::string path = segment_files(env).at(0);
  const std::vector<std::byte> whole = file_bytes(env, path);
  const auto file = env.open_file(path, OpenMode::read_write).value();
  for (std::size_t bit = 0; bit < segment_unit_bytes * 8; ++bit) {
    const std::size_t at = segment_unit_bytes + bit / 8;
    std::byte wrong = whole[at] ^ (std::byte{1} << (bit % 8));
    const Bytes changed(&wrong, 1), right(&whole[at], 1);
    ASSERT_TRUE(file->write_at(at, std::span(&changed, 1)).ok());
    open();
    ASSERT_EQ(bench.record(RecordKind::session, 1).error().code, ErrorCode::not_found) << bit;
    ASSERT_TRUE(bench.record(RecordKind::session, 2).ok()) << bit;
    bench.close();
    ASSERT_TRUE(file->write_at(at, std::span(&right, 1)).ok());
  }
}

TEST_F(DiskTierRecovery, AFlippedBitOfAPayloadIsFoundWhenItIsUsed) {
  open();
  ASSERT_TRUE(bench.put(test_page(1)).ok());
  ASSERT_TRUE(bench.put_record(RecordKind::session, 2, body_of(2)).ok());
  bench.close();
  const std::string path = segment_files(env).at(0);
  const std::vector<std::byte> whole = file_bytes(env, path);
  const std::size_t page_at = 2 * segment_unit_bytes;
  const std::size_t body_at = whole.size() - segment_unit_bytes;
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::byte> bytes = whole;
    const bool is_page = round % 2 == 0;
    const std::size_t at =
        is_page ? page_at + random() % small_shape.bytes() : body_at + random() % body_of(2).size();
    bytes[at] ^= std::byte{1} << (random() % 8);
    for (const std::string& name : segment_files(env)) ASSERT_TRUE(env.remove_file(name).ok());
    set_file(env, path, bytes);
    open();
    EXPECT_EQ(outcome(bench.get(test_page(1))), is_page ? "corrupt" : "ok");
    EXPECT_EQ(bench.record(RecordKind::session, 2).ok(), is_page);
    EXPECT_EQ(bench.tier().stats().damaged, 1U);
    // It is gone for good, also for the next process.
    open();
    EXPECT_EQ(outcome(bench.get(test_page(1))), is_page ? "not_found" : "ok");
    EXPECT_EQ(bench.record(RecordKind::session, 2).ok(), is_page);
    bench.close();
  }
}

TEST_F(DiskTierRecovery, RecordsThatChangedPlacesAreRefused) {
  open();
  ASSERT_TRUE(bench.put(test_page(1)).ok());
  ASSERT_TRUE(bench.put(test_page(2)).ok());
  ASSERT_TRUE(bench.put(test_page(3)).ok());
  bench.close();
  const std::string path = segment_files(env).at(0);
  std::vector<std::byte> bytes = file_bytes(env, path);
  const auto size = static_cast<std::ptrdiff_t>(disk_tier_record_bytes(small_shape));
  const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(segment_unit_bytes);
  std::swap_ranges(first, first + size, first + size);
  set_file(env, path, bytes);
  open();
  EXPECT_EQ(outcome(bench.get(test_page(1))), "not_found");
  EXPECT_EQ(outcome(bench.get(test_page(2))), "not_found");
  EXPECT_EQ(outcome(bench.get(test_page(3))), "ok");
}

TEST_F(DiskTierRecovery, AnOldVersionPutInThePlaceOfTheNewOneIsRefused) {
  open();
  ASSERT_TRUE(bench.put_record(RecordKind::session, 1, body_of(1)).ok());
  ASSERT_TRUE(bench.put_record(RecordKind::session, 1, body_of(2)).ok());
  bench.close();
  const std::string path = segment_files(env).at(0);
  std::vector<std::byte> bytes = file_bytes(env, path);
  const auto old = bytes.begin() + static_cast<std::ptrdiff_t>(segment_unit_bytes);
  const auto size = static_cast<std::ptrdiff_t>(2 * segment_unit_bytes);
  std::copy(old, old + size, old + size);
  std::fill(old, old + size, std::byte{0});
  set_file(env, path, bytes);
  open();
  EXPECT_FALSE(bench.record(RecordKind::session, 1).ok());
}

// Its record verifies. But that it is another page knows only who asks for it, and until then a put
// must write it anew.
TEST_F(DiskTierRecovery, AnotherPageUnderARightNameIsNotTrustedForHavingBeenCopied) {
  open();
  for (std::uint32_t i = 1; i <= 4; ++i) ASSERT_TRUE(bench.put(test_page(i)).ok());
  bench.close();
  const std::string path = segment_files(env).at(0);
  std::vector<std::byte> bytes = file_bytes(env, path);
  const MutableBytes unit = MutableBytes(bytes).subspan(segment_unit_bytes, segment_unit_bytes);
  const SegmentHeader segment =
      decode_segment_header(Bytes(bytes).first(segment_unit_bytes)).value();
  RecordHeader header = decode_record_header(unit, segment, segment_unit_bytes).value();
  header.page.checksum = test_page(9).checksum;
  encode_record_header(header, segment.identity, unit);
  set_file(env, path, bytes);
  open();
  for (std::uint32_t i = 2; i <= 4; ++i) bench.tier().erase(test_page(i).identity.key);
  bench.compact();
  ASSERT_EQ(bench.tier().stats().bytes_compacted, disk_tier_record_bytes(small_shape));
  EXPECT_FALSE(bench.tier().has_verified(test_page(1).identity.key));
  ASSERT_TRUE(bench.put(test_page(1)).ok());
  open();
  EXPECT_EQ(outcome(bench.get(test_page(1))), "ok");
}

TEST_F(DiskTierRecovery, ASegmentUnderAnotherNameIsLeftAlone) {
  open();
  ASSERT_TRUE(bench.put(test_page(1)).ok());
  bench.close();
  const std::string path = segment_files(env).at(0);
  const std::vector<std::byte> bytes = file_bytes(env, path);
  const std::string other = std::string(test_directory) + "/" + segment_name(77);
  ASSERT_TRUE(env.remove_file(path).ok());
  set_file(env, other, bytes);
  open();
  EXPECT_EQ(outcome(bench.get(test_page(1))), "not_found");
  EXPECT_EQ(bench.tier().stats().foreign_bytes, bytes.size());
  ASSERT_TRUE(bench.put(test_page(2)).ok());
  bench.close();
  EXPECT_EQ(file_bytes(env, other), bytes);
}

TEST_F(DiskTierRecovery, PagesOfAnotherShapeAreKeptAndCounted) {
  PageShape shape = small_shape;
  shape.kv_heads = 2;
  DiskTierOptions options = kept_options();
  options.shape = shape;
  TierWorkbench other(env, env, options);
  ASSERT_TRUE(other.open().ok());
  ASSERT_TRUE(other.put(test_page(1, shape)).ok());
  other.close();
  open();
  EXPECT_EQ(bench.tier().stats().pages, 0U);
  EXPECT_EQ(bench.tier().stats().foreign_bytes, disk_tier_record_bytes(shape));
  ASSERT_TRUE(bench.put(test_page(2)).ok());
  bench.compact();
  bench.close();
  ASSERT_TRUE(other.open().ok());
  EXPECT_EQ(outcome(other.get(test_page(1, shape))), "ok");
}

TEST_F(DiskTierRecovery, ForeignPagesGoWhenRoomIsNeeded) {
  PageShape shape = small_shape;
  shape.kv_heads = 2;
  DiskTierOptions options = kept_options(16);
  options.shape = shape;
  TierWorkbench other(env, env, options);
  ASSERT_TRUE(other.open().ok());
  for (std::uint32_t i = 0; i < 16; ++i) ASSERT_TRUE(other.put(test_page(i, shape)).ok());
  other.close();
  TierWorkbench small(env, env, kept_options(16));
  ASSERT_TRUE(small.open().ok());
  for (std::uint32_t i = 0; i < 16; ++i) EXPECT_EQ(outcome(small.put(test_page(i))), "ok");
  EXPECT_LE(small.tier().stats().bytes_peak, kept_options(16).limit_bytes);
}

TEST_F(DiskTierRecovery, ASmallerLimitHoldsFromTheStart) {
  open();
  for (std::uint32_t i = 0; i < 40; ++i) ASSERT_TRUE(bench.put(test_page(i)).ok());
  bench.close();
  TierWorkbench small(env, env, kept_options(4));
  ASSERT_TRUE(small.open().ok());
  EXPECT_LE(small.tier().stats().bytes, kept_options(4).limit_bytes);
  EXPECT_EQ(outcome(small.put(test_page(50))), "ok");
}

TEST_F(DiskTierRecovery, AScratchTierLeavesWhatIsKeptAndRemovesWhatAScratchTierLeft) {
  open();
  ASSERT_TRUE(bench.put(test_page(1)).ok());
  bench.close();
  DiskTierOptions options = kept_options();
  options.keep = false;
  TierWorkbench scratch(env, env, options);
  ASSERT_TRUE(scratch.open().ok());
  ASSERT_TRUE(scratch.put(test_page(2)).ok());
  ASSERT_EQ(segment_files(env).size(), 2U);
  const std::string path = segment_files(env).at(1);
  const std::vector<std::byte> left = file_bytes(env, path);
  scratch.close();
  EXPECT_EQ(segment_files(env).size(), 1U);
  set_file(env, path, left);  // as if it had been killed
  open();
  EXPECT_EQ(segment_files(env).size(), 1U);
  EXPECT_EQ(outcome(bench.get(test_page(1))), "ok");
  EXPECT_EQ(outcome(bench.get(test_page(2))), "not_found");
}

}  // namespace
}  // namespace headrace
