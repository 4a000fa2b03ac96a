// A tiny model on disk and engines over it, in a world whose files can be made to fail.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cache/memory_plan.h"
#include "cache/page_store.h"
#include "env/fault_env.h"
#include "runtime/runtime.h"
#include "tests/support/engine_run.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace headrace {

class TinyEngineTest : public testing::Test {
 protected:
  static constexpr std::uint32_t layers = 2;
  static constexpr std::uint32_t block_tokens = 16;
  static constexpr std::uint32_t context = 512;

  static void SetUpTestSuite() {
    directory_ = std::make_unique<test::TemporaryDirectory>();
    const auto written =
        test::write_tiny_model(model_path(), {.layers = layers, .trained_context = 1024});
    ASSERT_TRUE(written.ok()) << written.error().message;
  }
  static void TearDownTestSuite() { directory_.reset(); }

  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override {
    set_log_level(level_);
    env_.set_plan({});
    engine_.reset();
    EXPECT_EQ(test::list_names(disk_directory()), std::vector<std::string>{})
        << "nothing is left behind";
  }

  static std::string model_path() { return directory_->path_of("tiny.gguf"); }
  static std::string disk_directory() { return directory_->path_of("kv"); }

  /// Everything in memory.
  static EngineOptions roomy() {
    return {.model_path = model_path(),
            .context = context,
            .threads = 1,
            .chunk_tokens = 32,
            .kv = {.disk_directory = disk_directory(), .tokens_per_block = block_tokens}};
  }

  /// One open block and the least that streams.
  static EngineOptions tight(std::uint32_t sequences = EngineOptions().sequences,
                             const AttentionOptions& attention = {}) {
    PageStoreOptions store;
    store.shape = {.tokens = block_tokens, .kv_heads = 2, .head_dim = 16, .type = KvOptions().type};
    store.layers = layers;
    store.context = context;
    store.sequences = sequences;
    store.attention = attention;
    std::uint64_t refused = 0;
    std::uint64_t works = full_memory_bytes(store);
    while (works - refused > 1) {
      store.memory_bytes = refused + (works - refused) / 2;
      (plan_memory(store).ok() ? works : refused) = store.memory_bytes;
    }
    EngineOptions options = roomy();
    options.kv.memory_bytes = works;
    options.sequences = sequences;
    options.attention = attention;
    return options;
  }

  /// Recall of so small a text: as many tokens as it may, whatever they weigh.
  static AttentionOptions small_recall(std::uint32_t tokens = 64) {
    AttentionOptions attention;
    attention.mode = AttentionMode::recall;
    attention.recall_tokens = tokens;
    attention.recall_share = 0;
    attention.recall_first = 4;
    attention.recall_newest = 16;
    return attention;
  }

  Result<std::unique_ptr<Engine>> try_open(const EngineOptions& options) {
    return Runtime::open(env_, options);
  }

  /// The engine of this test. Faults come later, from env_.
  Engine& open(const EngineOptions& options) {
    auto engine = try_open(options);
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    engine_ = std::move(engine).value();
    return *engine_;
  }

  static std::unique_ptr<Sequence> new_sequence(Engine& engine) {
    auto sequence = engine.new_sequence();
    EXPECT_TRUE(sequence.ok()) << sequence.error().message;
    return std::move(sequence).value();
  }

  /// What `tokens` give when everything is in memory and nothing fails.
  static test::LogitsTrace expected_trace(std::span<const TokenId> tokens) {
    const auto trace = test::trace_of(roomy(), tokens);
    EXPECT_TRUE(trace.ok()) << trace.error().message;
    return *trace;
  }

  static void expect_helpful(const Error& error, ErrorCode code, const std::string& mentions) {
    EXPECT_EQ(error.code, code) << to_string(error.code) << ": " << error.message;
    EXPECT_NE(error.message.find(mentions), std::string::npos) << error.message;
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << "one line: " << error.message;
  }

  void expect_refused(const EngineOptions& options, const std::string& mentions) {
    const auto opened = try_open(options);
    ASSERT_FALSE(opened.ok());
    expect_helpful(opened.error(), ErrorCode::invalid_argument, mentions);
  }

  FaultEnv env_{posix_env()};

 private:
  static inline std::unique_ptr<test::TemporaryDirectory> directory_;
  const LogLevel level_ = log_level();
  std::unique_ptr<Engine> engine_;
};

/// Of steps that draw a token, behind a prompt.
class DecodingTest : public TinyEngineTest {
 protected:
  static constexpr std::uint32_t prompt_tokens = 300;

  /// The logits after each of the tokens behind the prompt, decoded one by one.
  Result<test::LogitsTrace> decode(Engine& engine, Sequence& sequence) {
    test::LogitsTrace trace;
    HEADRACE_TRY(sequence.append(std::span(tokens_).first(prompt_tokens), nullptr, nullptr));
    for (const TokenId token : std::span(tokens_).subspan(prompt_tokens)) {
      HEADRACE_TRY(sequence.decode(token));
      EXPECT_EQ(sequence.logits().size(), engine.model().vocabulary);
      trace.push_back(hash_bytes(std::as_bytes(sequence.logits())));
    }
    return trace;
  }

  test::LogitsTrace decoded(Engine& engine) {
    const auto sequence = new_sequence(engine);
    auto trace = decode(engine, *sequence);
    EXPECT_TRUE(trace.ok()) << trace.error().message;
    return trace.ok() ? *trace : test::LogitsTrace{};
  }

  /// A sequence and its fork give the same logits for the same tokens.
  void expect_fork_goes_on(Engine& engine) {
    const auto first = new_sequence(engine);
    ASSERT_TRUE(decode(engine, *first).ok());
    auto fork = first->fork();
    ASSERT_TRUE(fork.ok()) << fork.error().message;
    for (const TokenId token : test::random_tokens(20, 6)) {
      ASSERT_TRUE(first->decode(token).ok());
      ASSERT_TRUE((*fork)->decode(token).ok());
      ASSERT_TRUE(std::ranges::equal(first->logits(), (*fork)->logits()));
    }
  }

  const std::vector<TokenId> tokens_ = test::random_tokens(prompt_tokens + 60, 5);
};

}  // namespace headrace
