// What cannot be done is refused with an Error whose message tells a person what to do: never a
// crash, never a wrong answer, nothing left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "headrace/engine.h"
#include "tests/support/engine_run.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"
#include "tier/disk_tier.h"

namespace headrace::test {
namespace {

constexpr std::uint32_t trained_context = 512;

class Refusal : public testing::Test {
 protected:
  void SetUp() override {
    const auto written = write_tiny_model(
        directory_.path_of("tiny.gguf"),
        {.query_heads = 4, .kv_heads = 2, .head_dim = 32, .trained_context = trained_context});
    ASSERT_TRUE(written.ok()) << written.error().message;
    options_ = {.model_path = directory_.path_of("tiny.gguf"),
                .context = 400,
                .threads = 1,
                .chunk_tokens = 64,
                .kv = {.disk_directory = directory_.path_of("kv"), .tokens_per_block = 16}};
  }

  void TearDown() override {
    EXPECT_EQ(list_names(directory_.path_of("kv")), std::vector<std::string>{})
        << "nothing is left behind";
  }

  static void expect_helpful(const Error& error, ErrorCode code, const std::string& mentions) {
    EXPECT_EQ(error.code, code) << to_string(error.code) << ": " << error.message;
    EXPECT_NE(error.message.find(mentions), std::string::npos)
        << "should mention \"" << mentions << "\": " << error.message;
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << "one line: " << error.message;
    EXPECT_GE(error.message.size(), 20U) << error.message;
  }

  void expect_open_refused(const EngineOptions& options, ErrorCode code,
                           const std::string& mentions) {
    const auto engine = Engine::open(options);
    ASSERT_FALSE(engine.ok()) << "should not open";
    expect_helpful(engine.error(), code, mentions);
  }

  /// A disk on which so many pages fit.
  std::uint64_t disk_bytes_of_pages(std::uint64_t pages) const {
    const PageShape shape = {.tokens = options_.kv.tokens_per_block,
                             .kv_heads = 2,
                             .head_dim = 32,
                             .type = options_.kv.type};
    return disk_tier_limit_bytes(shape, pages);
  }

  TemporaryDirectory directory_;
  EngineOptions options_;
};

TEST_F(Refusal, OfAMissingModelNamesThePath) {
  options_.model_path = directory_.path_of("missing.gguf");
  expect_open_refused(options_, ErrorCode::not_found, "missing.gguf");
  const auto info = inspect_model(options_.model_path);
  ASSERT_FALSE(info.ok());
  expect_helpful(info.error(), ErrorCode::not_found, "missing.gguf");
}

TEST_F(Refusal, OfADirectoryAsModelNamesThePath) {
  options_.model_path = directory_.path();
  const auto engine = Engine::open(options_);
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.error().message.find(directory_.path()), std::string::npos)
      << engine.error().message;
}

TEST_F(Refusal, OfForeignFilesSaysThatTheyAreNotGguf) {
  const std::string path = directory_.path_of("foreign.gguf");
  for (const std::string& bytes :
       {std::string(), std::string("GG"), std::string("GGUF"), std::string(100000, 'x'),
        std::string("PK\3\4") + std::string(5000, '\0'),
        std::string("GGUF\3\0\0\0", 8) + std::string(5000, '\xFF')}) {
    SCOPED_TRACE(std::to_string(bytes.size()) + " bytes");
    write_bytes(path, bytes);
    options_.model_path = path;
    expect_open_refused(options_, ErrorCode::corrupt, "foreign.gguf");
    EXPECT_FALSE(inspect_model(path).ok());
  }
}

TEST_F(Refusal, OfAnotherArchitectureNamesIt) {
  std::string bytes = read_bytes(options_.model_path);
  const std::size_t at = bytes.find("llama", bytes.find("general.architecture"));
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 5, "mamba");
  options_.model_path = directory_.path_of("mamba.gguf");
  write_bytes(options_.model_path, bytes);
  expect_open_refused(options_, ErrorCode::unsupported, "mamba");
}

TEST_F(Refusal, OfAContextAboveTheTrainedOneNamesTheTrainedOne) {
  options_.context = trained_context + 1;
  expect_open_refused(options_, ErrorCode::invalid_argument, std::to_string(trained_context));
}

TEST_F(Refusal, OfOddBlockSizesSaysMultipleOfSixteen) {
  for (const std::uint32_t tokens : {0U, 1U, 8U, 24U, 100U, 4112U, 1000000U}) {
    SCOPED_TRACE(tokens);
    options_.kv.tokens_per_block = tokens;
    expect_open_refused(options_, ErrorCode::invalid_argument, "16");
  }
}

TEST_F(Refusal, OfTooLittleKvMemorySaysHowMuchOneStepNeeds) {
  const std::uint64_t smallest = smallest_kv_memory(options_, 1);
  for (const std::uint64_t memory : {std::uint64_t{1}, smallest / 2, smallest - 1}) {
    SCOPED_TRACE(memory);
    options_.kv.memory_bytes = memory;
    expect_open_refused(options_, ErrorCode::out_of_budget, "iB");
  }
  // And with what it asks for, a whole context works.
  options_.kv.memory_bytes = smallest;
  const auto trace = trace_of(options_, random_tokens(400, 41));
  EXPECT_TRUE(trace.ok()) << trace.error().message;
}

TEST_F(Refusal, OfADiskDirectoryThatCannotBeNamesIt) {
  write_bytes(directory_.path_of("file"), "not a directory");
  options_.kv.memory_bytes = smallest_kv_memory(options_, 512);
  options_.kv.disk_directory = directory_.path_of("file") + "/below";
  expect_open_refused(options_, ErrorCode::io, "file/below");
  options_.kv.disk_directory = "/proc/headrace-cannot-be-made-here";
  expect_open_refused(options_, ErrorCode::io, "/proc/headrace-cannot-be-made-here");
}

TEST_F(Refusal, OfADiskDirectoryThatAnotherEngineUsesSaysSo) {
  options_.kv.memory_bytes = smallest_kv_memory(options_, 512);
  const auto first = Engine::open(options_);
  ASSERT_TRUE(first.ok()) << first.error().message;
  expect_open_refused(options_, ErrorCode::io, options_.kv.disk_directory);
}

TEST_F(Refusal, OfADiskWithoutRoomForOnePageSaysHowMuchItNeeds) {
  options_.kv.memory_bytes = smallest_kv_memory(options_, 512);
  for (const bool keeps : {false, true}) {
    SCOPED_TRACE(keeps);
    options_.kv.keep_disk = keeps;
    if (keeps) options_.kv.memory_bytes = 0;
    options_.kv.disk_bytes = 16 * 1024;
    expect_open_refused(options_, ErrorCode::invalid_argument, "give at least");
  }
}

TEST_F(Refusal, OfAFullDiskSaysSoAndKeepsTheTokensOfCompletedSteps) {
  options_.kv.memory_bytes = smallest_kv_memory(options_, 512);
  options_.kv.disk_bytes = disk_bytes_of_pages(8);  // of 50
  const auto engine = Engine::open(options_);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const auto sequence = (*engine)->new_sequence();
  ASSERT_TRUE(sequence.ok()) << sequence.error().message;
  const std::vector<TokenId> tokens = random_tokens(400, 42);
  LogitsTrace trace;
  const auto appended = append_traced(**engine, **sequence, tokens, 0, trace);
  ASSERT_FALSE(appended.ok()) << "400 tokens cannot fit into 8 pages of disk";
  expect_helpful(appended.error(), ErrorCode::out_of_budget, "disk");
  EXPECT_LT((*sequence)->tokens().size(), tokens.size());
  EXPECT_LE((*engine)->kv_stats().disk_bytes_peak, options_.kv.disk_bytes);

  // What was computed until then is right.
  EngineOptions everything = options_;
  everything.kv.memory_bytes = 0;
  everything.kv.disk_directory = directory_.path_of("unused");
  const auto expected = trace_of(everything, std::span(tokens).first(trace.size()));
  ASSERT_TRUE(expected.ok()) << expected.error().message;
  expect_same_trace(*expected, trace);
}

TEST_F(Refusal, OfAFullDiskLeavesTheEngineUsable) {
  options_.kv.memory_bytes = smallest_kv_memory(options_, 512);
  options_.kv.disk_bytes = disk_bytes_of_pages(8);
  const auto engine = Engine::open(options_);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  {
    const auto sequence = (*engine)->new_sequence();
    ASSERT_TRUE(sequence.ok()) << sequence.error().message;
    EXPECT_FALSE((*sequence)->append(random_tokens(400, 42), nullptr, nullptr).ok());
  }
  const auto small = (*engine)->new_sequence();
  ASSERT_TRUE(small.ok()) << small.error().message;
  const auto appended = (*small)->append(random_tokens(16, 43), nullptr, nullptr);
  EXPECT_TRUE(appended.ok()) << appended.error().message;
}

TEST_F(Refusal, OfTokensThatCannotBeReadLeavesTheSequenceAsItWas) {
  const auto engine = Engine::open(options_);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const auto sequence = (*engine)->new_sequence();
  ASSERT_TRUE(sequence.ok()) << sequence.error().message;
  EXPECT_TRUE((*sequence)->logits().empty());
  const std::vector<TokenId> start = random_tokens(20, 44);
  ASSERT_TRUE((*sequence)->append(start, nullptr, nullptr).ok());
  const std::vector<float> logits((*sequence)->logits().begin(), (*sequence)->logits().end());

  const std::vector<std::vector<TokenId>> refused = {
      {},
      {-1},
      {1, 2, 1000000},
      {static_cast<TokenId>((*engine)->model().vocabulary)},
      random_tokens(381, 45)};
  for (const auto& tokens : refused) {
    const auto appended = (*sequence)->append(tokens, nullptr, nullptr);
    ASSERT_FALSE(appended.ok()) << tokens.size() << " tokens";
    EXPECT_EQ(appended.error().code, ErrorCode::invalid_argument) << appended.error().message;
    EXPECT_EQ((*sequence)->tokens().size(), start.size());
    EXPECT_TRUE(std::equal(logits.begin(), logits.end(), (*sequence)->logits().begin()));
  }
  EXPECT_TRUE((*sequence)->append(random_tokens(380, 45), nullptr, nullptr).ok())
      << "up to the context it goes";
}

TEST_F(Refusal, ToGoOnKeepsWhatWasRead) {
  const auto engine = Engine::open(options_);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  auto sequence = (*engine)->new_sequence();
  ASSERT_TRUE(sequence.ok()) << sequence.error().message;
  const std::vector<TokenId> tokens = random_tokens(300, 46);
  const auto cancelled = (*sequence)->append(
      tokens, [](std::uint32_t done, std::uint32_t) { return done < 128; }, nullptr);
  ASSERT_FALSE(cancelled.ok());
  EXPECT_EQ(cancelled.error().code, ErrorCode::cancelled);
  const std::size_t read = (*sequence)->tokens().size();
  EXPECT_GE(read, 64U);
  EXPECT_LT(read, tokens.size());

  // Going on later gives what an uninterrupted run gives.
  ASSERT_TRUE((*sequence)->append(std::span(tokens).subspan(read), nullptr, nullptr).ok());
  const std::vector<float> resumed((*sequence)->logits().begin(), (*sequence)->logits().end());
  sequence.value().reset();
  const auto whole = (*engine)->new_sequence();
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  ASSERT_TRUE((*whole)->append(tokens, nullptr, nullptr).ok());
  EXPECT_TRUE(std::equal(resumed.begin(), resumed.end(), (*whole)->logits().begin(),
                         (*whole)->logits().end()));
}

}  // namespace
}  // namespace headrace::test
