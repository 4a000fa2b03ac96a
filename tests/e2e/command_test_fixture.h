// CommandTest: what tests of the command share: a tiny model, a --kv-disk directory, and how a run
// is judged.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/texts.h"

namespace headrace::test {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

inline constexpr int exit_failure = 1;
inline constexpr int exit_usage = 2;
inline constexpr int exit_interrupted = 130;
inline constexpr std::uint64_t mebibyte = 1U << 20U;

Arguments operator+(Arguments left, const Arguments& right);

/// Standard output is one JSON value and nothing else.
Json parse_json(const CommandResult& result, int exit_code = 0);

void expect_one_line_error(const CommandResult& result, int exit_code, const std::string& mentions);

/// Skips where there is no command to run.
class CommandTest : public testing::Test {
 protected:
  void SetUp() override;

  std::string file_with(const std::string& text) const;
  /// A limit of the disk under which so many pages of the tiny model fit, of 16 tokens each.
  static std::uint64_t disk_bytes_of_pages(std::uint64_t pages);

  TemporaryDirectory directory_;
  std::string model_ = directory_.path_of("tiny.gguf");
  std::string kv_directory_ = directory_.path_of("kv");
};

}  // namespace headrace::test
