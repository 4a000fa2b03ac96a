// Every file operation of a short life of a store goes wrong in every way, once and for ever: a
// step gives the right outputs or a clear error, and nothing leaks.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/log.h"
#include "cache/cache_test_env.h"
#include "cache/cache_test_run.h"
#include "cache/sequence_cache.h"
#include "env/fault_env.h"
#include "env/memory_env.h"

namespace headrace {
namespace {

PageStoreOptions two_layers() {
  PageStoreOptions options = small_store();
  options.layers = 2;
  return with_slots(options, 2 + 3);
}

/// Pages behind the window of the first layer are let go, so a lost page may need the whole text.
PageStoreOptions with_a_window() {
  PageStoreOptions options = small_store();
  options.layers = 2;
  options.windows = {20, 0};
  return with_slots(options, 2 * 2 + 3);
}

void expect_clear(const Error& error) {
  EXPECT_TRUE(error.code == ErrorCode::io || error.code == ErrorCode::out_of_budget)
      << to_string(error.code) << ": " << error.message;
  EXPECT_GE(error.message.size(), 20U) << error.message;
  EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
}

/// Opens a store, reads a text and closes it; steps that fail are tried once more. Returns whether
/// the text was read to its end. Outputs are compared on the way.
bool live(Env& env, const PageStoreOptions& options) {
  auto opened = PageStore::open(env, options);
  if (!opened.ok()) {
    expect_clear(opened.error());
    return false;
  }
  PageStore& store = **opened;
  Auditor auditor(store);
  auditor.let_pages_be_lost();
  bool read = true;
  {
    Reader reader(store, random_text(70, 3));
    for (const std::size_t rows : {16, 9, 7, 16, 1, 15, 3, 3}) {
      auto outcome = reader.read(rows);
      auditor.expect_in_order({&reader.sequence()});
      if (outcome.ok()) continue;
      expect_clear(outcome.error());
      outcome = reader.read(rows);
      auditor.expect_in_order({&reader.sequence()});
      read = read && outcome.ok();
      if (!outcome.ok()) break;
    }
  }
  auditor.expect_empty();
  return read;
}

struct FaultCase {
  const char* name;
  EnvOperation operation;
  FaultKind kind;
  ErrorCode code;
  bool lasting;
};

class SequenceCacheFault : public testing::TestWithParam<FaultCase> {
 protected:
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override { set_log_level(level_); }
  void hit_every_operation(const PageStoreOptions& options);

 private:
  const LogLevel level_ = log_level();
};

void SequenceCacheFault::hit_every_operation(const PageStoreOptions& options) {
  const FaultCase& fault = GetParam();
  std::uint64_t operations = 0;
  {
    ImmediateEnv memory;
    FaultEnv env(memory);
    ASSERT_TRUE(live(env, options));
    operations = env.count(fault.operation);
  }
  ASSERT_GE(operations, 8U);
  for (std::uint64_t k = 1; k <= operations; ++k) {
    SCOPED_TRACE("operation " + std::to_string(k));
    ImmediateEnv memory;
    FaultEnv env(memory);
    env.set_plan({{.operation = fault.operation,
                   .at = k,
                   .kind = fault.kind,
                   .lasting = fault.lasting,
                   .code = fault.code,
                   .bit = k * 7919}});
    const bool read = live(env, options);
    EXPECT_GE(env.faults(), 1U);
    // Without the operations that open the store nothing can go on.
    if (!fault.lasting && fault.operation != EnvOperation::any) {
      EXPECT_TRUE(read) << "one fault may cost a step, not the sequence";
    }
    // What could not be removed then is removed by the next store, in better times.
    EXPECT_TRUE(live(memory, options));
    const auto left = memory.list_directory("/tmp/kv");
    if (left.ok()) {
      EXPECT_EQ(*left, std::vector<std::string>());
    }
  }
}

TEST_P(SequenceCacheFault, NeverGivesWrongBytesNorLeaksWhateverOperationItHits) {
  hit_every_operation(two_layers());
}

TEST_P(SequenceCacheFault, NeverGivesWrongBytesNorLeaksWhateverOperationItHitsWithAWindow) {
  hit_every_operation(with_a_window());
}

INSTANTIATE_TEST_SUITE_P(
    Faults, SequenceCacheFault,
    testing::Values(
        FaultCase{"AnyOnce", EnvOperation::any, FaultKind::fail, ErrorCode::io, false},
        FaultCase{"AnyForEver", EnvOperation::any, FaultKind::fail, ErrorCode::io, true},
        FaultCase{"WriteNoSpace", EnvOperation::write, FaultKind::fail, ErrorCode::out_of_budget,
                  false},
        FaultCase{"WriteNoSpaceForEver", EnvOperation::write, FaultKind::fail,
                  ErrorCode::out_of_budget, true},
        FaultCase{"WriteTorn", EnvOperation::write, FaultKind::tear, ErrorCode::io, false},
        FaultCase{"WriteFlipped", EnvOperation::write, FaultKind::flip_bit, ErrorCode::io, false},
        FaultCase{"WriteFlippedForEver", EnvOperation::write, FaultKind::flip_bit, ErrorCode::io,
                  true},
        FaultCase{"ReadFails", EnvOperation::read, FaultKind::fail, ErrorCode::io, false},
        FaultCase{"ReadFailsForEver", EnvOperation::read, FaultKind::fail, ErrorCode::io, true},
        FaultCase{"ReadFlipped", EnvOperation::read, FaultKind::flip_bit, ErrorCode::io, false},
        FaultCase{"ReadFlippedForEver", EnvOperation::read, FaultKind::flip_bit, ErrorCode::io,
                  true},
        FaultCase{"ReadEndsEarly", EnvOperation::read, FaultKind::end_early, ErrorCode::io, false}),
    [](const auto& test) { return std::string(test.param.name); });

/// Returns how many steps failed.
int expect_right_bytes_under_many_faults(const PageStoreOptions& options) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937_64 random(seed);
  MemoryEnv memory;
  FaultEnv env(memory);
  const auto store = open_store(env, options);
  FaultPlan plan;
  for (int i = 0; i < 500; ++i) {
    const bool is_read = random() % 2 != 0;
    const std::array kinds = {FaultKind::fail, FaultKind::flip_bit,
                              is_read ? FaultKind::end_early : FaultKind::tear};
    plan.push_back({.operation = is_read ? EnvOperation::read : EnvOperation::write,
                    .at = 1 + random() % 4'000,
                    .kind = kinds[random() % kinds.size()],
                    .bit = random()});
  }
  env.set_plan(std::move(plan));
  int errors = 0;
  for (int round = 0; round < 6; ++round) {
    Auditor auditor(*store);
    auditor.let_pages_be_lost();
    // Two of them have the same text, and so share pages.
    const std::uint64_t text = random();
    std::vector<std::unique_ptr<Reader>> readers;
    std::vector<SequenceCache*> caches;
    for (std::uint64_t id = 1; id <= 3; ++id) {
      readers.push_back(std::make_unique<Reader>(*store, random_text(120, text + id / 3)));
      caches.push_back(&readers.back()->sequence());
    }
    for (int step = 0; step < 40; ++step) {
      Reader& reader = *readers[random() % readers.size()];
      if (reader.done()) continue;
      const auto outcome = reader.read(1 + random() % 20);
      if (!outcome.ok()) {
        expect_clear(outcome.error());
        ++errors;
      }
      auditor.expect_in_order(caches);
    }
    readers.clear();
    auditor.expect_empty();
  }
  EXPECT_GT(store->stats().pages_filled_by_replay, 20U);
  return errors;
}

TEST(SequenceCacheFaultStress, ManyRandomFaultsUnderSeveralSequencesNeverGiveWrongBytes) {
  EXPECT_GT(expect_right_bytes_under_many_faults(with_slots(small_store(), 14)), 0);
}

TEST(SequenceCacheFaultStress, ManyRandomFaultsNeverGiveWrongBytesWithWindows) {
  PageStoreOptions options = small_store();
  options.windows = {0, 20, 33};
  expect_right_bytes_under_many_faults(with_slots(options, 17));
}

}  // namespace
}  // namespace headrace
