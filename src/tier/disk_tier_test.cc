// What a disk tier does beyond what every tier does.
#include "tier/disk_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "env/fault_env.h"
#include "env/memory_env.h"
#include "env/scratch_directory.h"
#include "tier/disk_tier_test_world.h"

namespace headrace {
namespace {

class DiskTierTest : public testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override {
    bench.close();
    set_log_level(level_);
  }
  void open() { ASSERT_TRUE(bench.open().ok()); }

  MemoryEnv env{{.executors = ExecutorKind::manual}};
  FaultEnv faults{env};
  TierWorkbench bench{env, faults, kept_options()};

 private:
  const LogLevel level_ = log_level();
};

TEST_F(DiskTierTest, WritesNothingBeforeTheFirstPut) {
  open();
  EXPECT_EQ(*env.list_directory(test_directory), std::vector<std::string>{"headrace.lock"});
  ASSERT_TRUE(bench.put(test_page(1)).ok());
  bench.close();
  EXPECT_EQ(*env.list_directory(test_directory), std::vector<std::string>{"seg-00000001.hrs"});
}

TEST_F(DiskTierTest, OneProcessAtATimeUsesADirectory) {
  open();
  const auto second = open_disk_tier(env, kept_options());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::io);
  EXPECT_TRUE(second.error().message.starts_with("--kv-disk: cannot use '/tmp/kv': "));
  EXPECT_TRUE(second.error().message.ends_with("; choose another directory"));
  bench.close();
  EXPECT_TRUE(open_disk_tier(env, kept_options()).ok());
}

TEST_F(DiskTierTest, ALimitWithoutRoomForAPageIsRefusedWithOneThatHas) {
  DiskTierOptions options = kept_options();
  options.limit_bytes = 4096;
  const auto tier = open_disk_tier(env, options);
  ASSERT_FALSE(tier.ok());
  EXPECT_EQ(tier.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(tier.error().message.find("give at least 52 KiB"), std::string::npos)
      << tier.error().message;
  options.limit_bytes = 52 << 10;
  EXPECT_TRUE(open_disk_tier(env, options).ok());
}

TEST_F(DiskTierTest, RecordsHaveALargestSize) {
  open();
  EXPECT_EQ(outcome(bench.put_record(RecordKind::block, 1, body_of(1, record_body_bytes_max + 1))),
            "invalid_argument");
  EXPECT_EQ(outcome(bench.put_record(RecordKind::block, 1, {})), "invalid_argument");
  EXPECT_EQ(outcome(bench.put_record(RecordKind::block, 1, body_of(1, 1))), "ok");
  EXPECT_EQ(*bench.record(RecordKind::block, 1), body_of(1, 1));
}

TEST_F(DiskTierTest, TheNumberOfRecordsIsLimitedAndReplacingTakesNone) {
  open();
  for (std::uint64_t i = 0; i < kept_options().max_records; ++i) {
    ASSERT_TRUE(bench.put_record(RecordKind::block, i, body_of(1)).ok());
  }
  EXPECT_EQ(outcome(bench.put_record(RecordKind::session, 99, body_of(1))), "out_of_budget");
  EXPECT_EQ(outcome(bench.put_record(RecordKind::block, 3, body_of(2))), "ok");
  bench.erase_record(RecordKind::block, 5);
  EXPECT_EQ(outcome(bench.put_record(RecordKind::session, 99, body_of(1))), "ok");
}

TEST_F(DiskTierTest, ARecordIsReadWhileItIsWrittenAndErasedWhileItIsWritten) {
  open();
  const Digest128 key{.low = 1, .high = 1};
  const auto put = bench.tier().submit_put_record(RecordKind::block, key, body_of(1));
  EXPECT_EQ(*bench.record(RecordKind::block, 1), body_of(1));
  bench.erase_record(RecordKind::block, 1);
  EXPECT_FALSE(bench.record(RecordKind::block, 1).ok());
  const auto again = bench.tier().submit_put_record(RecordKind::block, key, body_of(2));
  EXPECT_EQ(*bench.record(RecordKind::block, 1), body_of(2));
  EXPECT_EQ(outcome(bench.finish(put)), "ok");
  EXPECT_EQ(outcome(bench.finish(again)), "ok");
  EXPECT_EQ(*bench.record(RecordKind::block, 1), body_of(2));
}

TEST_F(DiskTierTest, ForeignFilesCountAndAreNotTouched) {
  ASSERT_TRUE(env.make_directories(test_directory).ok());
  const std::string path = std::string(test_directory) + "/photo.jpg";
  set_file(env, path, std::vector<std::byte>(60 << 10));
  DiskTierOptions options = kept_options(4);
  TierWorkbench small(env, env, options);
  ASSERT_TRUE(small.open().ok());
  EXPECT_EQ(small.tier().stats().bytes, 60U << 10);
  EXPECT_EQ(small.tier().stats().foreign_bytes, 60U << 10);
  int stored = 0;
  while (small.put(test_page(static_cast<std::uint32_t>(stored))).ok()) ++stored;
  EXPECT_LT(stored, 4);
  EXPECT_LE(small.tier().stats().bytes_peak, options.limit_bytes);
  small.close();
  EXPECT_TRUE(env.exists(path));
}

TEST_F(DiskTierTest, FewTokensAreReadAndVerifiedAlone) {
  open();
  const TestPage page = test_page(1);
  const TestPage tail = tail_page(2, 5);
  ASSERT_TRUE(bench.put(page).ok());
  ASSERT_TRUE(bench.put(tail).ok());
  std::vector<std::byte> groups(small_shape.bytes());
  encode_groups(small_shape, small_shape.tokens, page.bytes, groups);
  const std::uint64_t group = group_bytes(small_shape);
  ASSERT_EQ(disk_tier_group_tokens(small_shape), 8U);
  for (std::uint32_t first = 0; first < 2; ++first) {
    std::vector<std::byte> out(group);
    ASSERT_TRUE(bench.tier().read_groups(page.identity, page.checksum, first, 1, out).ok());
    EXPECT_TRUE(std::equal(out.begin(), out.end(), groups.begin() + first * group));
  }
  std::vector<std::byte> out(group);
  EXPECT_EQ(outcome(bench.tier().read_groups(page.identity, page.checksum, 2, 1, out)),
            "invalid_argument");
  EXPECT_EQ(outcome(bench.tier().read_groups(tail.identity, tail.checksum, 0, 1, out)), "ok");
  EXPECT_EQ(outcome(bench.tier().read_groups(tail.identity, tail.checksum, 1, 1, out)),
            "invalid_argument");
  EXPECT_EQ(outcome(bench.tier().read_groups(test_page(9).identity, {}, 0, 1, out)), "not_found");
  // Damage in one group is not seen by who reads the other, and found by who reads it.
  const auto file = env.open_file(segment_files(env).at(0), OpenMode::read_write).value();
  const std::byte wrong = groups[group] ^ std::byte{1};
  const Bytes part(&wrong, 1);
  ASSERT_TRUE(file->write_at(2 * segment_unit_bytes + group, std::span(&part, 1)).ok());
  EXPECT_EQ(outcome(bench.tier().read_groups(page.identity, page.checksum, 0, 1, out)), "ok");
  EXPECT_EQ(outcome(bench.tier().read_groups(page.identity, page.checksum, 1, 1, out)), "corrupt");
  EXPECT_EQ(outcome(bench.get(page)), "not_found");
}

TEST_F(DiskTierTest, SyncsThatWaitTogetherShareTheirWork) {
  open();
  ASSERT_TRUE(bench.put(test_page(1)).ok());
  const std::uint64_t before = bench.tier().stats().syncs;
  std::vector<Result<TierTicket>> tickets;
  for (int i = 0; i < 5; ++i) tickets.push_back(bench.tier().submit_sync());
  env.run_pending();
  bench.client().poll();
  for (const auto& ticket : tickets) EXPECT_EQ(outcome(bench.client().take(*ticket)), "ok");
  EXPECT_EQ(bench.tier().stats().syncs, before + 1);
  EXPECT_EQ(outcome(bench.sync()), "ok");  // nothing is left to do
  EXPECT_EQ(bench.tier().stats().syncs, before + 1);
}

TEST_F(DiskTierTest, ASyncWaitsForThePutsBeforeItAndFailsWithThem) {
  open();
  ASSERT_TRUE(bench.put(test_page(9)).ok());
  const TestPage page = test_page(1);
  const auto put = bench.tier().submit_put(page.identity, page.checksum, page.bytes);
  const auto sync = bench.tier().submit_sync();
  faults.set_plan({{.operation = EnvOperation::write}});
  EXPECT_EQ(outcome(bench.finish(sync)), "io");
  EXPECT_EQ(outcome(bench.finish(put)), "io");
  EXPECT_EQ(outcome(bench.sync()), "ok");
}

TEST_F(DiskTierTest, AfterAFailedSyncTheSegmentIsNotTrustedAgain) {
  open();
  ASSERT_TRUE(bench.put(test_page(1)).ok());
  ASSERT_TRUE(bench.put_record(RecordKind::session, 1, body_of(1)).ok());
  faults.set_plan({{.operation = EnvOperation::sync}});
  EXPECT_EQ(outcome(bench.sync()), "io");
  EXPECT_EQ(outcome(bench.get(test_page(1))), "ok");
  ASSERT_TRUE(bench.put(test_page(2)).ok());
  // What the failed one was to make durable is written again, somewhere else.
  EXPECT_EQ(outcome(bench.sync()), "ok");
  env.crash();
  open();
  EXPECT_EQ(outcome(bench.get(test_page(1))), "ok");
  EXPECT_EQ(outcome(bench.get(test_page(2))), "ok");
  EXPECT_EQ(*bench.record(RecordKind::session, 1), body_of(1));
}

TEST_F(DiskTierTest, CompactionGivesBackTheRoomOfWhatIsErased) {
  open();
  for (std::uint32_t i = 0; i < 60; ++i) ASSERT_TRUE(bench.put(test_page(i)).ok());
  const std::uint64_t full = bench.tier().stats().bytes;
  for (std::uint32_t i = 0; i < 60; ++i) {
    if (i % 10 != 0) bench.tier().erase(test_page(i).identity.key);
  }
  // Without a limit there is one large segment, which takes records until it is sealed.
  open();
  bench.compact();
  EXPECT_LT(bench.tier().stats().bytes, full / 3);
  for (std::uint32_t i = 0; i < 60; ++i) {
    EXPECT_EQ(outcome(bench.get(test_page(i))), i % 10 == 0 ? "ok" : "not_found");
  }
}

TEST_F(DiskTierTest, CompactionGoesNoFurtherThanItsBudget) {
  TierWorkbench small(env, env, kept_options(60));
  ASSERT_TRUE(small.open().ok());
  for (std::uint32_t i = 0; i < 60; ++i) ASSERT_TRUE(small.put(test_page(i)).ok());
  for (std::uint32_t i = 0; i < 60; ++i) {
    if (i % 3 != 0) small.tier().erase(test_page(i).identity.key);
  }
  small.compact(1);
  EXPECT_EQ(small.tier().stats().bytes_compacted, disk_tier_record_bytes(small_shape));
  small.compact(1);
  EXPECT_EQ(small.tier().stats().bytes_compacted, 2 * disk_tier_record_bytes(small_shape));
  for (std::uint32_t i = 0; i < 60; i += 3) EXPECT_EQ(outcome(small.get(test_page(i))), "ok");
}

// An erased record must not come back because the list that says so went before the segment with
// the record, nor an old version because the new one went.
TEST_F(DiskTierTest, WhatIsErasedStaysErasedAcrossCompaction) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    MemoryEnv memory({.seed = seed, .executors = ExecutorKind::manual});
    TierWorkbench small(memory, memory, kept_options(24));
    ASSERT_TRUE(small.open().ok());
    std::map<std::uint64_t, std::uint32_t> sessions;
    for (std::uint32_t step = 0; step < 200; ++step) {
      const std::uint64_t key = random() % 6;
      if (random() % 3 == 0) {
        small.erase_record(RecordKind::session, key);
        sessions.erase(key);
      } else {
        ASSERT_EQ(outcome(small.put_record(RecordKind::session, key, body_of(step))), "ok");
        sessions[key] = step;
      }
      if (random() % 4 == 0) small.compact();
      if (random() % 8 == 0) {
        ASSERT_TRUE(small.sync().ok());
      }
      if (random() % 20 != 0) continue;
      ASSERT_TRUE(small.sync().ok());
      if (random() % 2 == 0) memory.crash();
      ASSERT_TRUE(small.open().ok());
      for (std::uint64_t each = 0; each < 6; ++each) {
        const auto body = small.record(RecordKind::session, each);
        ASSERT_EQ(body.ok(), sessions.contains(each)) << "key " << each << ", step " << step;
        if (body.ok()) {
          ASSERT_EQ(*body, body_of(sessions[each]));
        }
      }
    }
  }
}

TEST_F(DiskTierTest, AMemoryPlanKnowsItsMemory) {
  open();
  EXPECT_EQ(bench.tier().memory_bytes(), disk_tier_memory_bytes(kept_options()));
  DiskTierOptions options = kept_options();
  options.max_pages += 1'000;
  const std::uint64_t more = disk_tier_memory_bytes(options) - bench.tier().memory_bytes();
  EXPECT_LE(more, 1'000U * 64);
}

TEST(DiskTierOnFiles, DirectIoKeepsPagesForTheNextProcess) {
  auto scratch = ScratchDirectory::create(posix_env()).value();
  DiskTierOptions options = kept_options();
  options.directory = scratch.file("kv");
  options.direct = true;
  options.io_threads = 2;
  for (int life = 0; life < 3; ++life) {
    auto tier = open_disk_tier(posix_env(), options);
    ASSERT_TRUE(tier.ok()) << tier.error().message;
    TierClient client(**tier);
    for (std::uint32_t i = 0; i < 40; ++i) {
      if (life == 0) {
        ASSERT_TRUE(client.put(test_page(i)).ok());
      }
      EXPECT_EQ(outcome(client.get(test_page(i))), "ok");
    }
    const auto record =
        (*tier)->submit_put_record(RecordKind::session, {.low = 1}, body_of(7, 5'000));
    EXPECT_EQ(outcome(client.finish(*record)), "ok");
    EXPECT_EQ(*(*tier)->read_record(RecordKind::session, {.low = 1}), body_of(7, 5'000));
    EXPECT_EQ(outcome(client.finish(*(*tier)->submit_sync())), "ok");
  }
}

// Figures, not a promise: --gtest_also_run_disabled_tests.
TEST(DiskTierSpeed, DISABLED_OfOneGiB) {
  constexpr PageShape shape{.tokens = 256, .kv_heads = 3, .head_dim = 64, .type = KvType::f16};
  const std::uint64_t pages = (std::uint64_t{1} << 30) / disk_tier_record_bytes(shape);
  auto scratch = ScratchDirectory::create(posix_env()).value();
  DiskTierOptions options = kept_options();
  options.directory = scratch.file("kv");
  options.shape = shape;
  options.max_pages = 8'192;
  const auto time = [](const char* what, std::uint64_t bytes, auto&& action) {
    const auto start = posix_env().now();
    action();
    const std::chrono::duration<double> seconds = posix_env().now() - start;
    std::printf("%s: %.3f s, %.2f GB/s\n", what, seconds.count(),
                static_cast<double>(bytes) / seconds.count() / 1e9);
  };
  const std::uint64_t bytes = pages * shape.bytes();
  TestPage page = test_page(1, shape);
  const auto each_page = [&](auto&& submit, Tier& tier) {
    std::array<TierCompletion, 8> done;
    std::uint64_t running = 0;
    for (std::uint32_t i = 0; i < pages || running > 0;) {
      if (i < pages && running < 8) {
        page.identity.key.block.low = i++;
        ASSERT_TRUE(submit().ok());
        ++running;
        continue;
      }
      tier.wait();
      running -= tier.poll(done);
    }
  };
  auto tier = open_disk_tier(posix_env(), options).value();
  time("put and sync", bytes, [&] {
    each_page([&] { return tier->submit_put(page.identity, page.checksum, page.bytes); }, *tier);
    TierClient client(*tier);
    ASSERT_TRUE(client.finish(*tier->submit_sync()).ok());
  });
  tier->drop_cache();
  tier.reset();
  time("open", pages * segment_unit_bytes,
       [&] { tier = open_disk_tier(posix_env(), options).value(); });
  ASSERT_EQ(tier->stats().pages_recovered, pages);
  std::vector<std::byte> target(shape.bytes());
  time("get", bytes, [&] {
    each_page([&] { return tier->submit_get(page.identity, page.checksum, target); }, *tier);
  });
  EXPECT_EQ(tier->stats().gets, pages);
}

}  // namespace
}  // namespace headrace
