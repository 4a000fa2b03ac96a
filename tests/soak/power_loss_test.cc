// One scripted life of a store, and the end of it at every single operation: the plug is pulled, or
// the operation fails. What was acknowledged stays, nothing is wrong, nothing is left behind.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "cache/cache_test_env.h"
#include "cache/session_store.h"
#include "env/fault_env.h"
#include "tests/soak/session_oracle.h"
#include "tests/support/rounds.h"

namespace headrace::test {
namespace {

PageStoreOptions scripted_store() { return kept_store(12, 200); }

/// Reads, saves, evicts, copies, exports, deletes, imports and reads again. Ends early when a step
/// fails, and says so.
class Script {
 public:
  Script(Env& env, SessionOracle& oracle) : env_(env), oracle_(oracle) {}

  Result<void> run() {
    HEADRACE_TRY(read_and_evict());
    HEADRACE_TRY(without_a_model());
    return go_on();
  }

 private:
  Result<void> save(Reader& reader, const std::string& name) {
    const auto tokens = reader.sequence().tokens();
    oracle_.begin(name, std::vector<TokenId>(tokens.begin(), tokens.end()));
    HEADRACE_TRY(reader.save(session_named(name)));
    oracle_.acknowledge(name);
    return {};
  }

  Result<void> read_and_evict() {
    HEADRACE_TRY_ASSIGN(const auto store, PageStore::open(env_, scripted_store()));
    {
      Reader monday(*store, monday_);
      HEADRACE_TRY(monday.read(40));
      HEADRACE_TRY(save(monday, "monday"));
      Reader tuesday(*store, tuesday_);
      tuesday.take_cached();
      HEADRACE_TRY(tuesday.read_all(23));
      HEADRACE_TRY(save(tuesday, "tuesday"));
      HEADRACE_TRY(monday.read_all(17));
      HEADRACE_TRY(save(monday, "monday"));
    }
    for (std::uint64_t other = 10; other < 13; ++other) {
      Reader reader(*store, random_text(90, other));
      HEADRACE_TRY(reader.read_all(30));
    }
    return {};
  }

  Result<void> without_a_model() {
    HEADRACE_TRY_ASSIGN(const auto sessions, SessionStore::open(env_, directory_));
    HEADRACE_TRY_ASSIGN(const SessionRecord monday, sessions->read("monday"));
    oracle_.begin("copy", monday.tokens);
    // A read that failed may have hidden the newest save from one of the two.
    oracle_.begin("copy", monday_);
    HEADRACE_TRY(sessions->fork("monday", "copy"));
    if (monday.tokens == monday_) oracle_.acknowledge("copy");
    HEADRACE_TRY(sessions->export_to("tuesday", "/tmp/tuesday.hrs"));
    oracle_.begin("tuesday", std::nullopt);
    HEADRACE_TRY(sessions->erase("tuesday", true));
    oracle_.acknowledge("tuesday");
    oracle_.begin("tuesday", tuesday_);
    HEADRACE_TRY_ASSIGN(const std::string imported, sessions->import_from("/tmp/tuesday.hrs"));
    oracle_.acknowledge(imported);
    oracle_.begin("monday", std::nullopt);
    HEADRACE_TRY(sessions->erase("monday", false));
    oracle_.acknowledge("monday");
    return {};
  }

  Result<void> go_on() {
    HEADRACE_TRY_ASSIGN(const auto store, PageStore::open(env_, scripted_store()));
    Reader monday(*store, monday_);
    monday.take_cached();
    HEADRACE_TRY(monday.read_all(5));
    HEADRACE_TRY(save(monday, "monday"));
    Reader other(*store, random_text(90, 20));
    return other.read_all(30);
  }

  Env& env_;
  SessionOracle& oracle_;
  const std::string directory_ = scripted_store().disk_directory;
  const std::vector<TokenId> monday_ = random_text(110, 1);
  const std::vector<TokenId> tuesday_ = [this] {
    std::vector<TokenId> text(monday_.begin(), monday_.begin() + 37);
    const std::vector<TokenId> rest = random_text(50, 2);
    text.insert(text.end(), rest.begin(), rest.end());
    return text;
  }();
};

/// Consecutive seeds meet all operations, and 400 of them some of every part of the script.
constexpr std::uint64_t stride = 7'919;

class EveryOperation : public testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override { set_log_level(level_); }

  static std::uint64_t operations(EnvOperation operation) {
    ImmediateEnv memory;
    FaultEnv env(memory);
    SessionOracle oracle;
    const auto outcome = Script(env, oracle).run();
    EXPECT_TRUE(outcome.ok()) << outcome.error().message;
    return env.count(operation);
  }

  /// A later process finds what it must, and goes on.
  static void expect_in_order(ImmediateEnv& memory, SessionOracle& oracle) {
    {
      const auto store = open_store(memory, scripted_store());
      Auditor auditor(*store);
      oracle.expect_in(*store);
      auditor.expect_in_order({});
    }
    const auto left = memory.list_directory(scripted_store().disk_directory);
    ASSERT_TRUE(left.ok()) << left.error().message;
    expect_only_segments(*left);
  }

 private:
  const LogLevel level_ = log_level();
};

TEST_F(EveryOperation, MayBeTheLastOne) {
  const std::uint64_t last = operations(EnvOperation::any);
  ASSERT_GT(last, 300U);
  const auto pull_the_plug = [&](std::uint64_t at, std::uint64_t seed) {
    SCOPED_TRACE("operation " + std::to_string(at) + ", seed " + std::to_string(seed));
    ImmediateEnv memory;
    SessionOracle oracle;
    {
      FaultEnv env(memory);
      env.set_plan({{.operation = EnvOperation::any, .at = at, .lasting = true}});
      static_cast<void>(Script(env, oracle).run());
    }
    if (seed == 0) {
      memory.crash();
    } else {
      memory.crash_torn(seed);
    }
    expect_in_order(memory, oracle);
  };
  for (Rounds rounds("last operations", {.suite = 400, .soak = 20 * last, .soak_share = 0.1});
       rounds.next();) {
    const std::uint64_t at = rounds.seed() * stride % last + 1;
    pull_the_plug(at, 0);
    pull_the_plug(at, rounds.seed());
  }
}

TEST_F(EveryOperation, MayFailOnceOrForEver) {
  const std::vector<Fault> faults = {
      {.operation = EnvOperation::any},
      {.operation = EnvOperation::any, .lasting = true},
      {.operation = EnvOperation::write, .lasting = true, .code = ErrorCode::out_of_budget},
      {.operation = EnvOperation::write, .kind = FaultKind::tear},
      {.operation = EnvOperation::write, .code = ErrorCode::out_of_budget},
      {.operation = EnvOperation::sync},
  };
  std::vector<std::uint64_t> last;
  for (const Fault& fault : faults) last.push_back(operations(fault.operation));
  for (Rounds rounds("failing operations",
                     {.suite = 400, .soak = 5 * last.front(), .soak_share = 0.1});
       rounds.next();) {
    const std::size_t kind = rounds.seed() % faults.size();
    Fault fault = faults[kind];
    fault.at = rounds.seed() / faults.size() * stride % last[kind] + 1;
    SCOPED_TRACE(std::string(to_string(fault.operation)) + " " + std::to_string(fault.at));
    ImmediateEnv memory;
    FaultEnv env(memory);
    env.set_plan({fault});
    SessionOracle oracle;
    static_cast<void>(Script(env, oracle).run());
    expect_in_order(memory, oracle);
  }
}

}  // namespace
}  // namespace headrace::test
