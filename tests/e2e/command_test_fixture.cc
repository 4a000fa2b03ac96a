#include "tests/e2e/command_test_fixture.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "headrace/options.h"
#include "tests/support/tiny_model.h"
#include "tier/disk_tier.h"

namespace headrace::test {
namespace {

TinyModelOptions model_options() {
  TinyModelOptions model = tiny_model_options(GGML_TYPE_Q4_1);
  model.layers = 4;
  model.head_dim = 32;
  model.trained_context = 2048;
  model.chat_template = true;
  return model;
}

}  // namespace

Arguments operator+(Arguments left, const Arguments& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

Json parse_json(const CommandResult& result, int exit_code) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  Json json = Json::parse(result.out, nullptr, false);
  if (!json.is_structured()) throw std::runtime_error("no JSON: " + result.out + result.err);
  return json;
}

void expect_one_line_error(const CommandResult& result, int exit_code,
                           const std::string& mentions) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(mentions), std::string::npos)
      << "should mention \"" << mentions << "\": " << result.err;
}

void CommandTest::SetUp() {
  if (command_path().empty()) GTEST_SKIP() << "HEADRACE_BINARY names no program";
  const auto written = write_tiny_model(model_, model_options());
  ASSERT_TRUE(written.ok()) << written.error().message;
  std::filesystem::create_directory(kv_directory_);
}

std::string CommandTest::file_with(const std::string& text) const {
  std::string path = directory_.path_of("prompt.txt");
  write_bytes(path, text);
  return path;
}

std::uint64_t CommandTest::disk_bytes_of_pages(std::uint64_t pages) {
  const TinyModelOptions model = model_options();
  const PageShape shape = {.tokens = 16,
                           .kv_heads = model.kv_heads,
                           .head_dim = model.head_dim,
                           .type = KvOptions().type};
  return disk_tier_limit_bytes(shape, pages);
}

}  // namespace headrace::test
