// Every file operation of a short life of a disk tier goes wrong in every way, once and for ever.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "env/fault_env.h"
#include "env/memory_env.h"
#include "tier/disk_tier.h"
#include "tier/tier_test_pages.h"

namespace headrace {
namespace {

constexpr const char* directory = "/tmp/kv/below";

DiskTierOptions small_options() {
  return {.directory = directory,
          .limit_bytes = 6 * disk_tier_slot_bytes(small_shape),
          .shape = small_shape,
          .queue_depth = 4};
}

/// Opens a tier, uses it and closes it. Whatever goes wrong meanwhile, no wrong byte and no
/// unexpected kind of error may come out.
void live(MemoryEnv& memory, Env& env) {
  auto opened = open_disk_tier(env, small_options());
  if (!opened.ok()) {
    EXPECT_TRUE(opened.error().message.starts_with("--kv-disk: ")) << opened.error().message;
    EXPECT_EQ(opened.error().code, ErrorCode::io);
    return;
  }
  Tier& tier = **opened;
  TierClient client(tier);
  const auto put = [&](std::uint32_t number) {
    const TestPage page = test_page(number);
    const auto ticket = tier.submit_put(page.identity, page.checksum, page.bytes);
    ASSERT_TRUE(ticket.ok());
    memory.run_pending();
    client.poll();
    const std::string result = outcome(client.take(*ticket));
    EXPECT_TRUE(result == "ok" || result == "io" || result == "out_of_budget") << result;
  };
  const auto get = [&](std::uint32_t number) {
    const TestPage page = test_page(number);
    std::vector<std::byte> target = empty_target();
    const auto ticket = tier.submit_get(page.identity, page.checksum, target);
    if (!ticket.ok()) {
      EXPECT_EQ(ticket.error().code, ErrorCode::not_found);
      return;
    }
    memory.run_pending();
    client.poll();
    const auto result = client.take(*ticket);
    if (result.ok()) {
      EXPECT_EQ(target, page.bytes) << "wrong bytes";
    }
    // Whatever a get failed with, the page is gone and the caller knows where it stands.
    if (!result.ok()) {
      EXPECT_FALSE(tier.submit_get(page.identity, page.checksum, target).ok());
    }
  };
  for (std::uint32_t i = 0; i < 3; ++i) put(i);
  get(1);
  tier.drop_cache();
  tier.erase(test_page(0).identity.key);
  for (std::uint32_t i = 2; i < 5; ++i) put(i);
  for (std::uint32_t i = 0; i < 5; ++i) get(i);
  EXPECT_EQ(client.untaken(), 0U);
  EXPECT_LE(tier.stats().bytes, small_options().limit_bytes);
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
    ASSERT_FALSE(memory.exists("/tmp/kv"));
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
    // What could not be removed then is removed by the next tier, in better times.
    live(memory, memory);
    const auto left = memory.list_directory(directory);
    if (left.ok()) {
      EXPECT_EQ(*left, std::vector<std::string>());
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
                    FaultCase{EnvOperation::read, FaultKind::end_early, ErrorCode::io, true},
                    FaultCase{EnvOperation::read, FaultKind::flip_bit, ErrorCode::io, false},
                    FaultCase{EnvOperation::read, FaultKind::flip_bit, ErrorCode::io, true}));

TEST(DiskTierFaultStress, RandomFaultsUnderTwoWorkersNeverGiveWrongBytes) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  MemoryEnv memory;
  FaultEnv env(memory);
  DiskTierOptions options = small_options();
  options.io_threads = 2;
  auto tier = open_disk_tier(env, options);
  ASSERT_TRUE(tier.ok());
  TierClient client(**tier);
  FaultPlan plan;
  for (std::uint64_t i = 0; i < 150; ++i) {
    const bool is_read = random() % 2 == 0;
    const std::array kinds = {FaultKind::fail, FaultKind::flip_bit,
                              is_read ? FaultKind::end_early : FaultKind::tear};
    plan.push_back({.operation = is_read ? EnvOperation::read : EnvOperation::write,
                    .at = 1 + random() % 1'000,
                    .kind = kinds[random() % kinds.size()],
                    .bit = random()});
  }
  env.set_plan(std::move(plan));

  std::vector<TestPage> pages;
  for (std::uint32_t i = 0; i < 10; ++i) pages.push_back(test_page(i));
  int hits = 0;
  for (int round = 0; round < 1'500; ++round) {
    const TestPage& page = pages[random() % pages.size()];
    std::vector<std::byte> target = empty_target();
    const auto put = (*tier)->submit_put(page.identity, page.checksum, page.bytes);
    const auto get = (*tier)->submit_get(page.identity, page.checksum, target);
    if (random() % 2 == 0) (*tier)->erase(page.identity.key);
    ASSERT_TRUE(put.ok());
    if (get.ok() && client.finish(*get).ok()) {
      ASSERT_EQ(target, page.bytes) << "wrong bytes";
      ++hits;
    }
    static_cast<void>(client.finish(*put));
    if (random() % 2 == 0) static_cast<void>(client.get(pages[random() % pages.size()]));
  }
  EXPECT_GT(hits, 500);
  EXPECT_GT((*tier)->stats().damaged, 0U);
  tier->reset();
  EXPECT_FALSE(memory.exists("/tmp/kv"));
}

TEST(DiskTierUnwritable, AnUnwritableDirectoryFailsAtOnceAndIsLeftAlone) {
  MemoryEnv memory;
  FaultEnv env(memory);
  ASSERT_TRUE(memory.make_directories(directory).ok());
  // The lock file can be had (it may have been there), but nothing can be created.
  env.set_plan({{.operation = EnvOperation::open, .lasting = true}});
  const auto tier = open_disk_tier(env, small_options());
  ASSERT_FALSE(tier.ok());
  EXPECT_EQ(tier.error().code, ErrorCode::io);
  const std::string& message = tier.error().message;
  EXPECT_TRUE(message.starts_with("--kv-disk: cannot write in '/tmp/kv/below': ")) << message;
  EXPECT_TRUE(message.ends_with("; choose another directory")) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_EQ(*memory.list_directory(directory), std::vector<std::string>());
}

TEST(DiskTierUnwritable, ADirectoryThatCannotBeMadeFailsAtOnceAndNothingIsLeft) {
  MemoryEnv memory;
  FaultEnv env(memory);
  env.set_plan({{.operation = EnvOperation::make_directories}});
  const auto tier = open_disk_tier(env, small_options());
  ASSERT_FALSE(tier.ok());
  EXPECT_TRUE(tier.error().message.starts_with("--kv-disk: cannot make '/tmp/kv/below': "))
      << tier.error().message;
  EXPECT_FALSE(memory.exists("/tmp/kv"));
}

TEST(DiskTierUnwritable, APageFileThatCannotBeMadeIsTriedAgainAtTheNextPut) {
  MemoryEnv memory;
  FaultEnv env(memory);
  auto tier = open_disk_tier(env, small_options());
  ASSERT_TRUE(tier.ok());
  TierClient client(**tier);
  env.set_plan({{.operation = EnvOperation::open}});
  EXPECT_EQ(outcome(client.put(test_page(1))), "io");
  EXPECT_EQ(outcome(client.put(test_page(1))), "ok");
  EXPECT_EQ(outcome(client.get(test_page(1))), "ok");
}

}  // namespace
}  // namespace headrace
