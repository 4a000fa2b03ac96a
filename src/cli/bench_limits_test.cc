#include "cli/bench_limits.h"

#include <gtest/gtest.h>

#include "env/fault_env.h"
#include "env/memory_env.h"
#include "env/scratch_directory.h"

namespace headrace {
namespace {

LimitsOptions small(const std::string& directory) {
  return {.threads = 2,
          .disk_directory = directory,
          .memory_bytes = 1U << 20U,
          .disk_bytes = 8U << 20U,
          .rounds = 2,
          .peak_steps = 4096};
}

TEST(BenchLimits, AreMeasuredOnThisMachine) {
  Env& env = posix_env();
  const ScratchDirectory scratch = ScratchDirectory::create(env).value();
  const auto limits = measure_limits(env, small(scratch.path()));
  ASSERT_TRUE(limits.ok()) << limits.error().message;
  EXPECT_GT(limits->memory_read_bytes, 1e7);
  EXPECT_GT(limits->int8_operations, 1e7);
  EXPECT_GE(limits->bf16_operations, 0);
  EXPECT_GT(limits->disk_write_bytes, 1e5);
  EXPECT_GT(limits->disk_read_bytes, 1e5);
  EXPECT_EQ(env.list_directory(scratch.path()).value(), std::vector<std::string>());
}

TEST(BenchLimits, LeaveNoFolderBehindThatWasNotThere) {
  MemoryEnv env;
  ASSERT_TRUE(measure_limits(env, small("/tmp/new")).ok());
  EXPECT_FALSE(env.exists("/tmp/new"));
  EXPECT_TRUE(env.exists("/tmp"));
}

TEST(BenchLimits, WhereTheClockStandsStillNothingIsMeasured) {
  MemoryEnv env;
  const auto limits = measure_limits(env, small("/tmp"));
  ASSERT_TRUE(limits.ok());
  EXPECT_EQ(limits->memory_read_bytes, 0);
  EXPECT_EQ(limits->disk_read_bytes, 0);
}

TEST(BenchLimits, ADiskThatFailsLeavesNoFileBehind) {
  for (const EnvOperation operation :
       {EnvOperation::open, EnvOperation::write, EnvOperation::sync, EnvOperation::read}) {
    MemoryEnv base;
    FaultEnv env(base);
    env.set_plan({{.operation = operation, .code = ErrorCode::out_of_budget}});
    const auto limits = measure_limits(env, small("/tmp"));
    ASSERT_FALSE(limits.ok()) << to_string(operation);
    EXPECT_EQ(limits.error().code, ErrorCode::out_of_budget);
    EXPECT_EQ(base.list_directory("/tmp").value(), std::vector<std::string>())
        << to_string(operation);
  }
}

TEST(BenchMachine, IsDescribedByWhatTheSystemSays) {
  const Machine here = describe_machine(posix_env());
  EXPECT_GT(here.cores, 0U);
  EXPECT_FALSE(here.cpu.empty());
  EXPECT_EQ(here.cpu.find('\n'), std::string::npos);
  EXPECT_EQ(here.system.find("Linux "), 0U);
  EXPECT_FALSE(here.instruction_set.empty());
}

TEST(BenchMachine, HasTheNameAndTheFamilyOfItsProcessor) {
  MemoryEnv env;
  ASSERT_TRUE(env.make_directories("/proc").ok());
  const auto file = env.open_file("/proc/cpuinfo", OpenMode::create_new).value();
  const std::string text =
      "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n";
  const Bytes bytes = std::as_bytes(std::span(text));
  ASSERT_TRUE(file->write_at(0, std::span(&bytes, 1)).ok());
  EXPECT_EQ(describe_machine(env).cpu, "AMD EPYC (family 26)");
}

TEST(BenchMachine, NeedNotSayAnything) {
  MemoryEnv env;
  const Machine machine = describe_machine(env);
  EXPECT_EQ(machine.cpu, "unknown");
  EXPECT_EQ(machine.system, "Linux");
  EXPECT_EQ(machine.memory_bytes, std::uint64_t{8} << 30U);
}

}  // namespace
}  // namespace headrace
