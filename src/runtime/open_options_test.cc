#include "runtime/open_options.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "env/memory_env.h"

namespace headrace {
namespace {

ModelInfo model_of(std::uint32_t trained_context) {
  ModelInfo model;
  model.trained_context = trained_context;
  return model;
}

TEST(CheckOptions, ReplacesEveryZeroAndEveryEmptyDefault) {
  MemoryEnv env;
  const auto checked = check_options({}, model_of(2048), env);
  ASSERT_TRUE(checked.ok()) << checked.error().message;
  EXPECT_EQ(checked->context, 2048U);
  EXPECT_EQ(checked->threads, 2U) << "one per core";
  EXPECT_EQ(checked->chunk_tokens, 512U);
  EXPECT_EQ(checked->kv.tokens_per_block, 256U);
  EXPECT_EQ(checked->kv.memory_bytes, 0U) << "0 has a meaning of its own";
  EXPECT_TRUE(checked->kv.disk_directory.starts_with("/tmp/headrace-"));
}

TEST(CheckOptions, EnginesThatWereGivenNoDirectoryDoNotShareOne) {
  MemoryEnv env;
  EXPECT_NE(check_options({}, model_of(2048), env)->kv.disk_directory,
            check_options({}, model_of(2048), env)->kv.disk_directory);
}

TEST(CheckOptions, LeavesWhatWasGivenAsItIs) {
  MemoryEnv env;
  const EngineOptions options{.model_path = "model.gguf",
                              .context = 100,
                              .threads = 3,
                              .chunk_tokens = 7,
                              .kv = {.type = KvType::f32,
                                     .memory_bytes = 12'345,
                                     .disk_directory = "/mnt/kv",
                                     .disk_bytes = 67,
                                     .tokens_per_block = 48}};
  const auto checked = check_options(options, model_of(2048), env);
  ASSERT_TRUE(checked.ok()) << checked.error().message;
  EXPECT_EQ(checked->model_path, "model.gguf");
  EXPECT_EQ(checked->context, 100U);
  EXPECT_EQ(checked->threads, 3U);
  EXPECT_EQ(checked->chunk_tokens, 7U);
  EXPECT_EQ(checked->kv.type, KvType::f32);
  EXPECT_EQ(checked->kv.memory_bytes, 12'345U);
  EXPECT_EQ(checked->kv.disk_directory, "/mnt/kv");
  EXPECT_EQ(checked->kv.disk_bytes, 67U);
  EXPECT_EQ(checked->kv.tokens_per_block, 48U);
}

struct OptionCase {
  std::string name;
  std::function<void(EngineOptions&)> change;
  std::string refusal;  ///< parts of the message, with a comma between them; empty: accepted
};

OptionCase context(std::uint32_t value, const std::string& refusal = "") {
  return {"Context" + std::to_string(value), [=](EngineOptions& o) { o.context = value; }, refusal};
}
OptionCase threads(std::uint32_t value, const std::string& refusal = "") {
  return {"Threads" + std::to_string(value), [=](EngineOptions& o) { o.threads = value; }, refusal};
}
OptionCase chunk(std::uint32_t value, const std::string& refusal = "") {
  return {"Chunk" + std::to_string(value), [=](EngineOptions& o) { o.chunk_tokens = value; },
          refusal};
}
OptionCase block(std::uint32_t value, const std::string& refusal = "") {
  return {"Block" + std::to_string(value), [=](EngineOptions& o) { o.kv.tokens_per_block = value; },
          refusal};
}

class CheckOptionsTable : public testing::TestWithParam<OptionCase> {};

TEST_P(CheckOptionsTable, AcceptsOrNamesTheOptionItsValueAndTheRange) {
  MemoryEnv env;
  EngineOptions options;
  GetParam().change(options);
  const auto checked = check_options(options, model_of(2048), env);
  if (GetParam().refusal.empty()) {
    EXPECT_TRUE(checked.ok()) << checked.error().message;
    return;
  }
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().code, ErrorCode::invalid_argument);
  const std::string& message = checked.error().message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  std::string rest = GetParam().refusal;
  while (!rest.empty()) {
    const std::string part = rest.substr(0, rest.find(','));
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
    rest.erase(0, part.size() + 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Options, CheckOptionsTable,
    testing::Values(context(1), context(2048), context(2049, "--context 2049,2048 tokens"),
                    context(0xFFFF'FFFF, "--context 4294967295,2048 tokens"), threads(1),
                    threads(256), threads(257, "--threads 257,1 to 256"),
                    threads(0xFFFF'FFFF, "--threads 4294967295"), chunk(1), chunk(8192),
                    chunk(0, "--chunk 0,1 to 8192"), chunk(8193, "--chunk 8193,1 to 8192"),
                    chunk(0xFFFF'FFFF, "--chunk 4294967295"), block(16), block(48), block(4096),
                    block(0, "--block-tokens 0,multiple of 16,16 to 4096"),
                    block(1, "--block-tokens 1"), block(15, "--block-tokens 15"),
                    block(17, "--block-tokens 17"), block(4112, "--block-tokens 4112,4096"),
                    block(0xFFFF'FFF0, "--block-tokens 4294967280")),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace headrace
