// Case A24: an interrupted download must be refused when it is opened, not crash at its first use.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "headrace/engine.h"
#include "tests/support/run_command.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace headrace::test {
namespace {

class TruncatedModel : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = directory_.path_of("whole.gguf");
    TinyModelOptions options = tiny_model_options(GGML_TYPE_Q4_1);
    options.chat_template = true;
    const auto written = write_tiny_model(path, options);
    ASSERT_TRUE(written.ok()) << written.error().message;
    ASSERT_TRUE(Engine::open({.model_path = path, .context = 64, .kv = {}}).ok());
    bytes_ = read_bytes(path);
    cut_path_ = directory_.path_of("cut.gguf");
    header_bytes_ = bytes_.find("blk.1.ffn_down.weight");
    ASSERT_NE(header_bytes_, std::string::npos);
  }

  Result<std::unique_ptr<Engine>> open_with(const std::string& bytes) {
    write_bytes(cut_path_, bytes);
    return Engine::open({.model_path = cut_path_, .context = 64, .threads = 1, .kv = {}});
  }

  TemporaryDirectory directory_;
  std::string bytes_;
  std::string cut_path_;
  std::size_t header_bytes_ = 0;  ///< about
};

TEST_F(TruncatedModel, IsRefusedAtEveryCut) {
  std::set<std::size_t> cuts = {
      0, 1, 3, 4, 7, 8, 16, 23, 24, bytes_.size() - 1, bytes_.size() - 31};
  for (std::size_t cut = 25; cut < header_bytes_; cut += header_bytes_ / 150 + 1) cuts.insert(cut);
  for (std::size_t cut = header_bytes_; cut < bytes_.size(); cut += bytes_.size() / 150 + 1)
    cuts.insert(cut);
  std::cout << cuts.size() << " cuts of " << bytes_.size() << " bytes\n";
  for (const std::size_t cut : cuts) {
    SCOPED_TRACE("cut to " + std::to_string(cut) + " of " + std::to_string(bytes_.size()) +
                 " bytes");
    const auto engine = open_with(bytes_.substr(0, cut));
    ASSERT_FALSE(engine.ok());
    const Error& error = engine.error();
    EXPECT_EQ(error.code, ErrorCode::corrupt) << to_string(error.code) << ": " << error.message;
    EXPECT_NE(error.message.find("cut.gguf"), std::string::npos) << error.message;
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
    EXPECT_FALSE(inspect_model(cut_path_).ok());
  }
}

TEST_F(TruncatedModel, CutInsideATensorNamesTheTensorAndTheFileSize) {
  const std::size_t cut = bytes_.size() - 1000;
  const auto engine = open_with(bytes_.substr(0, cut));
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.error().message.find(".weight"), std::string::npos) << engine.error().message;
  EXPECT_NE(engine.error().message.find(std::to_string(cut)), std::string::npos)
      << engine.error().message;
}

TEST_F(TruncatedModel, WithDamagedMetadataOpensOrIsRefusedButNeverCrashes) {
  const std::uint64_t seed = std::random_device{}();
  std::cout << "seed=" << seed << "\n";
  std::mt19937_64 random(seed);
  std::size_t refused = 0;
  for (int round = 0; round < 300; ++round) {
    std::string bytes = bytes_;
    // Only inside counts, keys and values before the vocabulary: what is behind it is llama.cpp's
    // to read.
    const std::size_t at = random() % bytes_.find("tokenizer.ggml.model");
    bytes[at] = static_cast<char>(random());
    refused += open_with(bytes).ok() ? 0U : 1U;
  }
  std::cout << refused << " of 300 refused\n";
  EXPECT_GT(refused, 0U);
}

TEST_F(TruncatedModel, OfSmolLm2IsRefusedAtEveryCut) {
  if (test_model_path().empty()) GTEST_SKIP() << "HEADRACE_TEST_MODEL names no model";
  std::filesystem::copy_file(test_model_path(), cut_path_);
  const std::size_t whole_bytes = std::filesystem::file_size(cut_path_);
  std::vector<std::size_t> cuts;
  for (std::size_t cut = 0; cut < std::size_t{64} * 1024; cut += 97 * 16) cuts.push_back(cut);
  for (std::size_t part = 1; part < 16; ++part) cuts.push_back(whole_bytes / 16 * part + part);
  cuts.push_back(whole_bytes - 1);
  // From the longest down, so that each cut is one truncation.
  std::sort(cuts.rbegin(), cuts.rend());
  for (const std::size_t cut : cuts) {
    SCOPED_TRACE("cut to " + std::to_string(cut) + " bytes");
    std::filesystem::resize_file(cut_path_, cut);
    const auto engine =
        Engine::open({.model_path = cut_path_, .context = 64, .threads = 1, .kv = {}});
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.error().code, ErrorCode::corrupt) << engine.error().message;
  }
}

}  // namespace
}  // namespace headrace::test
