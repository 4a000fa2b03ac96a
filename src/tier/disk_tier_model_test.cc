// Random use of a kept tier against a plain map, with everything that the world can do to it: a
// full device, crashes that tear, faults. Every failure names the seed that repeats it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/log.h"
#include "env/fault_env.h"
#include "env/memory_env.h"
#include "tier/disk_tier.h"
#include "tier/disk_tier_test_world.h"

namespace headrace {
namespace {

class DiskTierModel : public testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override { set_log_level(level_); }

 private:
  const LogLevel level_ = log_level();
};

constexpr std::uint32_t page_numbers = 20;
constexpr std::uint64_t record_keys = 5;

// Everything is asked for in flight at once; without crashes the tier and the map agree.
void run_beside_a_map(unsigned seed) {
  std::mt19937 random(seed);
  MemoryEnv env({.seed = seed, .executors = ExecutorKind::manual});
  DiskTierOptions options = kept_options(10 + random() % 12);
  TierWorkbench bench(env, env, options);
  ASSERT_TRUE(bench.open().ok());
  std::set<std::uint32_t> pages;
  std::map<std::uint64_t, std::uint32_t> records;
  for (std::uint32_t step = 0; step < 120; ++step) {
    const auto number = static_cast<std::uint32_t>(random() % page_numbers);
    const std::uint64_t key = random() % record_keys;
    switch (random() % 12) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const auto put = bench.put(test_page(number));
        if (put.ok()) pages.insert(number);
        ASSERT_TRUE(put.ok() || put.error().code == ErrorCode::out_of_budget)
            << put.error().message;
        break;
      }
      case 4:
      case 5:
        bench.tier().erase(test_page(number).identity.key);
        pages.erase(number);
        break;
      case 6:
        if (bench.put_record(RecordKind::session, key, body_of(step)).ok()) records[key] = step;
        break;
      case 7:
        bench.erase_record(RecordKind::session, key);
        records.erase(key);
        break;
      case 8:
        bench.compact(random() % 40'000);
        break;
      case 9:
        // Lists of what is erased may find no room, which a sync says.
        static_cast<void>(bench.sync());
        break;
      case 10:
        ASSERT_TRUE(bench.open().ok());
        ASSERT_EQ(bench.tier().stats().pages_recovered, pages.size());
        break;
      default:
        ASSERT_EQ(outcome(bench.get(test_page(number))),
                  pages.contains(number) ? "ok" : "not_found");
    }
    ASSERT_LE(bench.tier().stats().bytes, options.limit_bytes);
    ASSERT_EQ(bench.tier().stats().pages, pages.size());
  }
  for (std::uint32_t number = 0; number < page_numbers; ++number) {
    ASSERT_EQ(outcome(bench.get(test_page(number))), pages.contains(number) ? "ok" : "not_found");
  }
  for (std::uint64_t key = 0; key < record_keys; ++key) {
    const auto body = bench.record(RecordKind::session, key);
    ASSERT_EQ(body.ok(), records.contains(key));
    if (body.ok()) {
      ASSERT_EQ(*body, body_of(records[key]));
    }
  }
}

TEST_F(DiskTierModel, AgreesWithAPlainMapFor500Seeds) {
  for (unsigned seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_beside_a_map(seed);
    if (HasFatalFailure()) return;
  }
}

// The step that wrote this body; 0: none.
std::uint32_t version_of(const Result<std::vector<std::byte>>& body) {
  for (std::uint32_t step = 1; body.ok() && step < 256; ++step) {
    if (*body == body_of(step)) return step;
  }
  return 0;
}

// What a sync acknowledged is there after a crash that keeps any part of what was not synced. What
// was written since may be there or not, but is never wrong.
void run_with_power_loss(unsigned seed) {
  std::mt19937 random(seed);
  MemoryEnv env({.seed = seed, .executors = ExecutorKind::manual});
  FaultEnv faults(env);
  TierWorkbench bench(env, faults, kept_options(16 + random() % 20));
  // Versions that a key may have now; nullopt: none. The acknowledged state is the first.
  std::map<std::uint64_t, std::vector<std::optional<std::uint32_t>>> records;
  std::map<std::uint32_t, bool> must_have;  // pages; false: may be there
  for (std::uint64_t key = 0; key < record_keys; ++key) records[key] = {std::nullopt};
  std::uint32_t step = 0;
  for (int life = 0; life < 4; ++life) {
    ASSERT_TRUE(bench.open().ok());
    for (std::uint64_t key = 0; key < record_keys; ++key) {
      const auto body = bench.record(RecordKind::session, key);
      std::optional<std::uint32_t> found;
      for (const auto& version : records[key]) {
        if (version && body.ok() && *body == body_of(*version)) found = version;
      }
      ASSERT_EQ(found.has_value(), body.ok())
          << "wrong bytes of record " << key << ": version " << version_of(body) << " in life "
          << life << ", the first is " << records[key][0].value_or(0);
      ASSERT_NE(std::ranges::find(records[key], found), records[key].end())
          << "record " << key << " was acknowledged and is lost, or was erased and is back: "
          << (found ? static_cast<int>(*found) : -1) << " in life " << life << ", of "
          << records[key].size() << " versions from "
          << (records[key][0] ? static_cast<int>(*records[key][0]) : -1);
      // Reading the state is no promise about it until it is synced again.
      records[key] = {found};
    }
    for (auto& [number, must] : must_have) {
      const auto got = bench.get(test_page(number));
      ASSERT_TRUE(got.ok() || !must) << "page " << number << " was acknowledged and is lost";
    }
    must_have.clear();
    ASSERT_TRUE(bench.sync().ok());
    const int steps = static_cast<int>(random() % 40);
    for (int i = 0; i < steps; ++i) {
      ++step;
      const std::uint64_t key = random() % record_keys;
      const auto number = static_cast<std::uint32_t>(random() % page_numbers);
      switch (random() % 8) {
        case 0:
        case 1:
          if (bench.put_record(RecordKind::session, key, body_of(step)).ok()) {
            records[key].push_back(step);
          }
          break;
        case 2:
          bench.erase_record(RecordKind::session, key);
          records[key].push_back(std::nullopt);
          break;
        case 3:
        case 4:
          if (bench.put(test_page(number)).ok()) must_have.try_emplace(number, false);
          break;
        case 5:
          bench.tier().erase(test_page(number).identity.key);
          must_have.erase(number);
          break;
        case 6:
          bench.compact();
          break;
        default:
          if (!bench.sync().ok()) break;
          for (auto& [each, versions] : records) versions = {versions.back()};
          for (auto& [each, must] : must_have) must = true;
      }
    }
    // The process is gone at once: nothing of what its objects still do reaches the disk.
    faults.set_plan({{.lasting = true}});
    bench.close();
    faults.set_plan({});
    env.crash_torn(random());
  }
}

TEST_F(DiskTierModel, KeepsWhatASyncAcknowledgedThrough200PowerLosses) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_with_power_loss(seed);
    if (HasFatalFailure()) return;
  }
}

// A short life with every feature in it. Whatever goes wrong, nothing wrong comes out.
void live(MemoryEnv& memory, Env& env) {
  TierWorkbench bench(memory, env, kept_options(8));
  if (!bench.open().ok()) return;
  const auto check = [&](std::uint32_t number) {
    const auto got = bench.get(test_page(number));
    if (!got.ok()) {
      EXPECT_FALSE(bench.tier().has(test_page(number).identity.key)) << "a failed page stayed";
    }
  };
  for (std::uint32_t i = 0; i < 6; ++i) static_cast<void>(bench.put(test_page(i)));
  static_cast<void>(bench.put_record(RecordKind::session, 1, body_of(1)));
  static_cast<void>(bench.sync());
  bench.tier().erase(test_page(0).identity.key);
  bench.tier().erase(test_page(3).identity.key);
  const bool is_new = bench.put_record(RecordKind::session, 1, body_of(2)).ok();
  static_cast<void>(bench.sync());
  for (std::uint32_t i = 6; i < 12; ++i) static_cast<void>(bench.put(test_page(i)));
  bench.compact();
  for (std::uint32_t i = 0; i < 12; ++i) check(i);
  const auto body = bench.record(RecordKind::session, 1);
  if (body.ok()) {
    EXPECT_TRUE(*body == body_of(2) || (!is_new && *body == body_of(1)));
  }
  EXPECT_LE(bench.tier().stats().bytes, kept_options(8).limit_bytes);
  EXPECT_EQ(bench.client().untaken(), 0U);
}

struct FaultCase {
  EnvOperation operation;
  FaultKind kind;
  ErrorCode code;
  bool lasting;
};

class DiskTierFault : public testing::TestWithParam<FaultCase> {
 protected:
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override { set_log_level(level_); }

 private:
  const LogLevel level_ = log_level();
};

TEST_P(DiskTierFault, OperationKGoesWrongForEveryK) {
  std::uint64_t operations = 0;
  {
    MemoryEnv memory({.executors = ExecutorKind::manual});
    FaultEnv env(memory);
    live(memory, env);
    operations = env.count(GetParam().operation);
  }
  ASSERT_GE(operations, 2U);
  for (std::uint64_t k = 1; k <= operations; ++k) {
    SCOPED_TRACE("operation " + std::to_string(k));
    MemoryEnv memory({.executors = ExecutorKind::manual});
    FaultEnv env(memory);
    env.set_plan({{.operation = GetParam().operation,
                   .at = k,
                   .kind = GetParam().kind,
                   .lasting = GetParam().lasting,
                   .code = GetParam().code,
                   .bit = k * 7919}});
    live(memory, env);
    // In better times all is well again.
    TierWorkbench after(memory, memory, kept_options(8));
    ASSERT_TRUE(after.open().ok());
    for (std::uint32_t i = 0; i < 12; ++i) {
      if (!after.get(test_page(i)).ok()) continue;
      after.tier().erase(test_page(i).identity.key);
    }
    const auto put = after.put(test_page(20));
    EXPECT_TRUE(put.ok()) << put.error().message;
    EXPECT_EQ(outcome(after.sync()), "ok");
    after.close();
    const auto names = memory.list_directory(test_directory);
    for (const std::string& name : names.value()) {
      EXPECT_TRUE(name.ends_with(".hrs")) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Faults, DiskTierFault,
    testing::Values(FaultCase{EnvOperation::any, FaultKind::fail, ErrorCode::io, false},
                    FaultCase{EnvOperation::any, FaultKind::fail, ErrorCode::io, true},
                    FaultCase{EnvOperation::any, FaultKind::fail, ErrorCode::out_of_budget, false},
                    FaultCase{EnvOperation::any, FaultKind::fail, ErrorCode::out_of_budget, true},
                    FaultCase{EnvOperation::open, FaultKind::fail, ErrorCode::not_found, true},
                    FaultCase{EnvOperation::write, FaultKind::tear, ErrorCode::io, false},
                    FaultCase{EnvOperation::write, FaultKind::tear, ErrorCode::out_of_budget, true},
                    FaultCase{EnvOperation::write, FaultKind::flip_bit, ErrorCode::io, false},
                    FaultCase{EnvOperation::write, FaultKind::flip_bit, ErrorCode::io, true},
                    FaultCase{EnvOperation::sync, FaultKind::fail, ErrorCode::io, false},
                    FaultCase{EnvOperation::sync, FaultKind::fail, ErrorCode::io, true},
                    FaultCase{EnvOperation::read, FaultKind::end_early, ErrorCode::io, true},
                    FaultCase{EnvOperation::read, FaultKind::flip_bit, ErrorCode::io, false},
                    FaultCase{EnvOperation::read, FaultKind::flip_bit, ErrorCode::io, true}));

// Ten times more is offered than the device holds, and the limit is far above it.
TEST_F(DiskTierModel, ADeviceThatIsFullRefusesAndTakesAgainWhenRoomIsMade) {
  constexpr PageShape shape{.tokens = 64, .kv_heads = 4, .head_dim = 64, .type = KvType::f16};
  MemoryEnv env({.capacity_bytes = 16 << 20, .executors = ExecutorKind::manual});
  DiskTierOptions options = kept_options();
  options.shape = shape;
  options.limit_bytes = 64 << 20;
  options.max_pages = 10'000;
  TierWorkbench bench(env, env, options);
  ASSERT_TRUE(bench.open().ok());
  const std::uint64_t offered = 10 * (16 << 20) / shape.bytes();
  std::uint32_t oldest = 0, refused = 0;
  for (std::uint32_t i = 0; i < offered; ++i) {
    const TestPage page = test_page(i, shape);
    auto put = bench.put(page);
    for (int tries = 0; tries < 200 && !put.ok(); ++tries, ++refused) {
      ASSERT_EQ(put.error().code, ErrorCode::out_of_budget) << put.error().message;
      ASSERT_LT(oldest, i);
      bench.tier().erase(test_page(oldest++, shape).identity.key);
      put = bench.put(page);
    }
    ASSERT_TRUE(put.ok()) << "page " << i << ": " << put.error().message;
    ASSERT_EQ(outcome(bench.get(page)), "ok");
  }
  EXPECT_GT(refused, 0U);
  const auto names = env.list_directory(test_directory);
  for (const std::string& name : names.value()) {
    EXPECT_TRUE(name.ends_with(".hrs") || name == "headrace.lock") << name;
  }
}

}  // namespace
}  // namespace headrace
