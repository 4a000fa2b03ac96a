#include "cli/eviction_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "cli/fake_engine.h"
#include "env/memory_env.h"

namespace headrace {
namespace {

TEST(EvictionLog, HasALineForEachInColumnsUnderTheirNames) {
  MemoryEnv env;
  const FakeEngine engine;
  const auto log = EvictionLog::open(env, "/evicted.tsv");
  ASSERT_TRUE(log.ok()) << log.error().message;
  const EvictionCallback tell = (*log)->callback();
  constexpr std::array<TokenId, 4> tokens = {'a', '\t', '\n', '\\'};
  tell({.layer = 3,
        .first_position = 64,
        .tokens = tokens,
        .mass = 0.25,
        .reason = "least mass",
        .to = "disk"});
  (*log)->set_engine(&engine);
  tell({.layer = 2, .first_position = 8, .tokens = tokens, .reason = "newest first", .to = "host"});
  ASSERT_TRUE((*log)->finish().ok());
  EXPECT_EQ(env.read_file("/evicted.tsv").value(),
            "layer\tposition\ttokens\tmass\treason\tto\ttext\n"
            "3\t64\t4\t0.25\tleast mass\tdisk\t\n"
            "2\t8\t4\t0\tnewest first\thost\ta\\t\\n\\\\\n");
}

TEST(EvictionLog, KeepsWhatIsMoreThanItWritesAtOnce) {
  MemoryEnv env;
  std::size_t lines = 1;
  {
    const auto log = EvictionLog::open(env, "/evicted.tsv");
    ASSERT_TRUE(log.ok());
    const EvictionCallback tell = (*log)->callback();
    for (; lines <= 5'000; ++lines) tell({.tokens = {}, .reason = "least mass", .to = "disk"});
    ASSERT_TRUE((*log)->finish().ok());
  }
  const std::string text = env.read_file("/evicted.tsv").value();
  EXPECT_EQ(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')), lines);
  // A second run begins anew.
  const auto log = EvictionLog::open(env, "/evicted.tsv");
  ASSERT_TRUE(log.ok() && (*log)->finish().ok());
  EXPECT_EQ(env.read_file("/evicted.tsv").value().find("least mass"), std::string::npos);
}

TEST(EvictionLog, SaysThatItCouldNotBeWritten) {
  MemoryEnv env;
  EXPECT_FALSE(EvictionLog::open(env, "/no/such/folder/evicted.tsv").ok());
  const auto log = EvictionLog::open(env, "/evicted.tsv");
  ASSERT_TRUE(log.ok());
  env.set_capacity(1);
  EXPECT_FALSE((*log)->finish().ok());
}

}  // namespace
}  // namespace headrace
