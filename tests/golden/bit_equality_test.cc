// Row invariance (invariant 2), end to end: the logits of a token depend on the tokens before it
// and on the settings that change numbers, and on nothing else. Chunk size, threads, KV memory, the
// state of the disk tier and how the tokens arrive must not change one bit.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "headrace/engine.h"
#include "page/pool.h"
#include "tests/support/engine_run.h"
#include "tests/support/run_command.h"
#include "tests/support/segments.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/texts.h"
#include "tests/support/tiny_model.h"

namespace headrace::test {
namespace {

/// Makes the next reads of segments come from the device.
void drop_page_cache(const std::string& directory) {
  for (const std::string& path : segment_files(directory)) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(file, 0) << path;
    fdatasync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
  }
}

void expect_trace(const char* what, const LogitsTrace& expected, const EngineOptions& options,
                  std::span<const TokenId> tokens, std::uint32_t step_tokens = 0) {
  SCOPED_TRACE(what);
  const auto trace = trace_of(options, tokens, step_tokens);
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  expect_same_trace(expected, *trace);
}

// ----------------------------------------------------------------------------------------------
// the real model

class SmolLm2Logits : public testing::Test {
 protected:
  static constexpr std::uint32_t positions = 6000;

  void SetUp() override {
    if (test_model_path().empty()) GTEST_SKIP() << "HEADRACE_TEST_MODEL names no model";
    options_ = {.model_path = test_model_path(), .context = positions, .threads = 2, .kv = {}};
    options_.kv.disk_directory = directory_.path_of("kv");
    auto engine = Engine::open(options_);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    auto tokens = (*engine)->tokenize(text_of(TextKind::licence, 6 * positions), {});
    ASSERT_TRUE(tokens.ok()) << tokens.error().message;
    ASSERT_GE(tokens->size(), positions);
    tokens_.assign(tokens->begin(), tokens->begin() + positions);
  }

  /// The run that all others must equal: everything in memory, chunks of 512.
  LogitsTrace everything_in_memory(std::span<const TokenId> tokens) {
    auto trace = trace_of(options_, tokens);
    EXPECT_TRUE(trace.ok()) << trace.error().message;
    return trace.ok() ? *trace : LogitsTrace{};
  }

  EngineOptions with_memory(std::uint64_t bytes) const {
    EngineOptions options = options_;
    options.kv.memory_bytes = bytes;
    return options;
  }

  TemporaryDirectory directory_;
  EngineOptions options_;
  std::vector<TokenId> tokens_;
};

TEST_F(SmolLm2Logits, AreTheSameWithAnyChunkSizeAndThreadCount) {
  const LogitsTrace expected = everything_in_memory(tokens_);
  EngineOptions options = options_;
  options.chunk_tokens = 64;
  expect_trace("chunks of 64", expected, options, tokens_);
  options.chunk_tokens = 7;
  expect_trace("chunks of 7", expected, options, tokens_);
  options = options_;
  options.threads = 1;
  expect_trace("1 thread", expected, options, tokens_);
  options.threads = 3;
  expect_trace("3 threads", expected, options, tokens_);
}

TEST_F(SmolLm2Logits, AreTheSameOneTokenAtATime) {
  const auto tokens = std::span(tokens_).first(300);
  options_.kv.tokens_per_block = 64;
  const LogitsTrace expected = everything_in_memory(tokens);
  EngineOptions options = options_;
  expect_trace("append() of 1", expected, options, tokens, 1);
  options.chunk_tokens = 1;
  expect_trace("chunks of 1", expected, options, tokens);
  options.kv.memory_bytes = smallest_kv_memory(options, 1U << 16U);
  expect_trace("chunks of 1, least memory", expected, options, tokens);
}

TEST_F(SmolLm2Logits, AreTheSameWithAnyKvMemory) {
  const LogitsTrace expected = everything_in_memory(tokens_);
  const auto needed = kv_bytes_needed(options_);
  ASSERT_TRUE(needed.ok()) << needed.error().message;
  expect_trace("1/2 of the KV", expected, with_memory(*needed / 2), tokens_);
  const std::uint64_t smallest = smallest_kv_memory(options_, 1U << 16U);
  std::cout << "KV needed " << *needed << " bytes, least KV memory " << smallest << " bytes\n";
  EXPECT_LE(smallest, *needed / 8) << "1/8 must be enough";
  expect_trace("1/8 of the KV", expected, with_memory(*needed / 8), tokens_);
  expect_trace("the least KV memory", expected, with_memory(smallest), tokens_);
  EXPECT_EQ(list_names(options_.kv.disk_directory), std::vector<std::string>{});
}

TEST_F(SmolLm2Logits, AreTheSameWithAColdAndAWarmDiskTier) {
  const auto tokens = std::span(tokens_).first(3072);  // whole blocks: no open page keeps its slot
  options_.context = 3072;
  const LogitsTrace expected = everything_in_memory(tokens);
  const auto needed = kv_bytes_needed(options_);
  ASSERT_TRUE(needed.ok()) << needed.error().message;
  auto engine = Engine::open(with_memory(*needed / 4));
  ASSERT_TRUE(engine.ok()) << engine.error().message;

  // The first sequence writes its pages, and every second one of its steps finds them forgotten by
  // the system.
  LogitsTrace cold;
  const auto first = (*engine)->new_sequence();
  ASSERT_TRUE(first.ok()) << first.error().message;
  for (std::size_t begin = 0; begin < tokens.size(); begin += 768) {
    const auto appended = append_traced(**engine, **first, tokens.subspan(begin, 768), 0, cold);
    ASSERT_TRUE(appended.ok()) << appended.error().message;
    if (begin / 768 % 2 == 0) drop_page_cache(options_.kv.disk_directory);
  }
  expect_same_trace(expected, cold);
  EXPECT_GT((*engine)->kv_stats().pages_filled_from_disk, 0U);

  // The second one has the same pages, which are there already.
  LogitsTrace warm;
  const auto second = (*engine)->new_sequence();
  ASSERT_TRUE(second.ok()) << second.error().message;
  const auto appended = append_traced(**engine, **second, tokens, 0, warm);
  ASSERT_TRUE(appended.ok()) << appended.error().message;
  expect_same_trace(expected, warm);
  EXPECT_EQ((*engine)->kv_stats().pages_damaged, 0U);
}

TEST_F(SmolLm2Logits, AreTheSameWhenDecodedAndWhenReadAsAPrompt) {
  const auto prompt = std::span(tokens_).first(1000);
  const auto needed = kv_bytes_needed(options_);
  ASSERT_TRUE(needed.ok()) << needed.error().message;
  auto engine = Engine::open(with_memory(*needed / 8));
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const auto sequence = (*engine)->new_sequence();
  ASSERT_TRUE(sequence.ok()) << sequence.error().message;
  GenerateOptions generation;
  generation.max_tokens = 48;
  generation.ignore_end = true;
  const auto answer = (*sequence)->generate(prompt, generation);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  ASSERT_EQ(answer->tokens.size(), 48U);

  // Every token of the answer must be the favourite of the run that reads it as a prompt.
  std::vector<TokenId> all(prompt.begin(), prompt.end());
  all.insert(all.end(), answer->tokens.begin(), answer->tokens.end());
  auto reader = Engine::open(options_);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  const auto read = (*reader)->new_sequence();
  ASSERT_TRUE(read.ok()) << read.error().message;
  const std::size_t vocabulary = (*reader)->model().vocabulary;
  const auto appended =
      (*read)->append(all, nullptr, [&](std::uint32_t position, const float* logits) {
        if (position + 1 < prompt.size() || position + 1 >= all.size()) return true;
        const TokenId favourite =
            static_cast<TokenId>(std::max_element(logits, logits + vocabulary) - logits);
        EXPECT_EQ(favourite, all[position + 1]) << "after position " << position;
        return true;
      });
  ASSERT_TRUE(appended.ok()) << appended.error().message;
}

// The logits of the last rows stand for all: they depend on the keys and values of every row
// before. (Those of all 4,000 rows would be 4 GB.)
TEST(Gemma3Logits, AreTheSameWithAnEighthOfTheKvMemory) {
  if (test_gemma_path().empty()) GTEST_SKIP() << "HEADRACE_TEST_GEMMA names no model";
  constexpr std::size_t positions = 4000;
  constexpr std::size_t traced = 40;
  const TemporaryDirectory directory;
  EngineOptions options = {.model_path = test_gemma_path(), .context = positions, .kv = {}};
  options.sequences = 1;             // books of others would take a part of so little memory
  options.kv.tokens_per_block = 32;  // an eighth is less than two open blocks of 64 tokens
  options.kv.disk_directory = directory.path_of("kv");
  LogitsTrace traces[2];
  for (LogitsTrace& trace : traces) {
    auto engine = Engine::open(options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    const auto tokens = (*engine)->tokenize(text_of(TextKind::code, 6 * positions), {});
    ASSERT_TRUE(tokens.ok()) << tokens.error().message;
    ASSERT_GE(tokens->size(), positions);
    const auto sequence = (*engine)->new_sequence();
    ASSERT_TRUE(sequence.ok()) << sequence.error().message;
    const auto read = std::span(*tokens).first(positions - traced);
    const auto appended = (*sequence)->append(read, nullptr, nullptr);
    ASSERT_TRUE(appended.ok()) << appended.error().message;
    const auto row = [&](std::uint32_t, const float* logits) {
      trace.push_back(hash_bytes(std::as_bytes(std::span(logits, (*engine)->model().vocabulary))));
      return true;
    };
    const auto last =
        (*sequence)->append(std::span(*tokens).subspan(read.size(), traced), nullptr, row);
    ASSERT_TRUE(last.ok()) << last.error().message;
    const auto needed = kv_bytes_needed(options);
    ASSERT_TRUE(needed.ok()) << needed.error().message;
    options.kv.memory_bytes = *needed / 8;
  }
  expect_same_trace(traces[0], traces[1]);
}

// ------------------------------------------------------------------------------- tiny models, all
// positions

struct Geometry {
  std::uint32_t head_dim;
  std::uint32_t kv_heads;
  std::uint32_t group;  ///< query heads per kv head
};

class TinyModelLogits : public testing::TestWithParam<Geometry> {
 protected:
  static constexpr std::uint32_t positions = 200;

  void write_model(ggml_type type) {
    TinyModelOptions model = tiny_model_options(type);
    model.head_dim = GetParam().head_dim;
    model.kv_heads = GetParam().kv_heads;
    model.query_heads = GetParam().kv_heads * GetParam().group;
    model.biases = GetParam().kv_heads == 2;
    const auto written = write_tiny_model(directory_.path_of("tiny.gguf"), model);
    ASSERT_TRUE(written.ok()) << written.error().message;
  }

  EngineOptions options_for(KvType type, std::uint32_t tokens_per_block) const {
    return {.model_path = directory_.path_of("tiny.gguf"),
            .context = positions,
            .threads = 1,
            .kv = {.type = type,
                   .disk_directory = directory_.path_of("kv"),
                   .tokens_per_block = tokens_per_block}};
  }

  void expect_same_everywhere(KvType type, std::uint32_t tokens_per_block) {
    SCOPED_TRACE(std::string(to_string(type)) + ", blocks of " + std::to_string(tokens_per_block));
    const EngineOptions base = options_for(type, tokens_per_block);
    const auto expected = trace_of(base, tokens_);
    ASSERT_TRUE(expected.ok()) << expected.error().message;

    for (const std::uint32_t chunk :
         {1U, 2U, 3U, 5U, 7U, 8U, 13U, 15U, 16U, 17U, 31U, 33U, 64U, 100U}) {
      for (const std::uint32_t threads : {1U, 2U, 3U}) {
        if (threads == 3 && chunk % 5 != 0) continue;
        EngineOptions options = base;
        options.chunk_tokens = chunk;
        options.threads = threads;
        const std::string what =
            "chunks of " + std::to_string(chunk) + ", threads " + std::to_string(threads);
        expect_trace(what.c_str(), *expected, options, tokens_);
      }
    }
    for (const std::uint32_t chunk : {1U, 7U, 16U, 64U, 512U}) {
      EngineOptions options = base;
      options.chunk_tokens = chunk;
      const std::uint64_t smallest = smallest_kv_memory(options, 512);
      const auto needed = kv_bytes_needed(options);
      ASSERT_TRUE(needed.ok()) << needed.error().message;
      for (const std::uint64_t memory :
           {smallest, smallest + 4096, std::max(smallest, *needed / 2)}) {
        options.kv.memory_bytes = memory;
        const std::string what =
            "chunks of " + std::to_string(chunk) + ", KV memory " + std::to_string(memory);
        expect_trace(what.c_str(), *expected, options, tokens_);
        expect_trace((what + ", append() of 23").c_str(), *expected, options, tokens_, 23);
      }
    }
    EXPECT_EQ(list_names(base.kv.disk_directory), std::vector<std::string>{});
  }

  TemporaryDirectory directory_;
  std::vector<TokenId> tokens_ = random_tokens(positions, 21);
};

TEST_P(TinyModelLogits, AreTheSameWithAnyChunkThreadsAndMemory) {
  write_model(GGML_TYPE_F32);
  for (const KvType type : kv_types) {
    if (type == KvType::q8 && GetParam().head_dim % 32 != 0) continue;
    for (const std::uint32_t tokens_per_block : {16U, 48U})
      expect_same_everywhere(type, tokens_per_block);
  }
}

TEST_P(TinyModelLogits, AreTheSameWithQuantisedWeights) {
  write_model(GGML_TYPE_Q4_1);
  expect_same_everywhere(KvType::i16, 32);
}

INSTANTIATE_TEST_SUITE_P(Geometries, TinyModelLogits,
                         testing::Values(Geometry{32, 1, 1}, Geometry{32, 2, 7}, Geometry{80, 2, 2},
                                         Geometry{128, 2, 4}, Geometry{16, 4, 3},
                                         Geometry{64, 4, 1}),
                         [](const auto& test) {
                           return "HeadDim" + std::to_string(test.param.head_dim) + "KvHeads" +
                                  std::to_string(test.param.kv_heads) + "Group" +
                                  std::to_string(test.param.group);
                         });

TEST(TwoSequencesInOnePool, GetTheSameLogitsAsAlone) {
  const TemporaryDirectory directory;
  const std::string path = directory.path_of("tiny.gguf");
  const auto written = write_tiny_model(path, {.layers = 3, .head_dim = 32});
  ASSERT_TRUE(written.ok()) << written.error().message;
  EngineOptions options = {
      .model_path = path,
      .context = 300,
      .threads = 2,
      .chunk_tokens = 64,
      .kv = {.disk_directory = directory.path_of("kv"), .tokens_per_block = 16}};
  const std::vector<TokenId> first_tokens = random_tokens(300, 23);
  std::vector<TokenId> second_tokens = random_tokens(300, 24);
  std::copy_n(first_tokens.begin(), 100, second_tokens.begin());  // a beginning in common
  const auto first_expected = trace_of(options, first_tokens);
  const auto second_expected = trace_of(options, second_tokens);
  ASSERT_TRUE(first_expected.ok() && second_expected.ok());

  // Room for the open pages of both, not for what both hold.
  const PageShape page = {.tokens = 16, .kv_heads = 2, .head_dim = 32, .type = options.kv.type};
  options.kv.memory_bytes = smallest_kv_memory(options, 512) + 4 * PagePool::slot_bytes(page);
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const auto first = (*engine)->new_sequence();
  const auto second = (*engine)->new_sequence();
  ASSERT_TRUE(first.ok() && second.ok());
  LogitsTrace first_trace;
  LogitsTrace second_trace;
  for (std::size_t begin = 0; begin < 300; begin += 50) {  // blocks are left open in between
    const auto one = append_traced(**engine, **first, std::span(first_tokens).subspan(begin, 50), 0,
                                   first_trace);
    ASSERT_TRUE(one.ok()) << "first, from " << begin << ": " << one.error().message;
    const auto other = append_traced(**engine, **second,
                                     std::span(second_tokens).subspan(begin, 50), 0, second_trace);
    ASSERT_TRUE(other.ok()) << "second, from " << begin << ": " << other.error().message;
  }
  expect_same_trace(*first_expected, first_trace);
  expect_same_trace(*second_expected, second_trace);
}

class TinyArchitectureLogits : public testing::TestWithParam<std::string> {};

TEST_P(TinyArchitectureLogits, GivesTheSameLogitsWithAnyChunkThreadsAndMemory) {
  const TemporaryDirectory directory;
  const std::string path = directory.path_of("tiny.gguf");
  const std::vector<TokenId> tokens = random_tokens(200, 25);
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_Q4_1}) {
    SCOPED_TRACE(ggml_type_name(type));
    const auto written = write_tiny_model(path, tiny_model_options(GetParam(), type));
    ASSERT_TRUE(written.ok()) << written.error().message;
    const EngineOptions base = {
        .model_path = path,
        .context = 200,
        .threads = 1,
        .kv = {.disk_directory = directory.path_of("kv"), .tokens_per_block = 16}};
    const auto expected = trace_of(base, tokens);
    ASSERT_TRUE(expected.ok()) << expected.error().message;
    expect_trace("append() of 1", *expected, base, tokens, 1);
    for (const std::uint32_t chunk : {1U, 7U, 64U}) {
      for (const std::uint32_t threads : {1U, 2U, 3U}) {
        SCOPED_TRACE("chunks of " + std::to_string(chunk) + ", threads " + std::to_string(threads));
        EngineOptions options = base;
        options.chunk_tokens = chunk;
        options.threads = threads;
        expect_trace("everything in memory", *expected, options, tokens);
        options.kv.memory_bytes = smallest_kv_memory(options, 512);
        expect_trace("the least KV memory", *expected, options, tokens);
      }
    }
    EXPECT_EQ(list_names(base.kv.disk_directory), std::vector<std::string>{});
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, TinyArchitectureLogits,
                         testing::ValuesIn(tiny_model_architectures()),
                         [](const auto& test) { return test.param; });

class TinyModelWithWeights : public testing::TestWithParam<ggml_type> {};

TEST_P(TinyModelWithWeights, GivesTheSameLogitsWithAnyChunkAndThreads) {
  const TemporaryDirectory directory;
  TinyModelOptions model = tiny_model_options(GetParam());
  model.vocabulary = 301;
  const std::string path = directory.path_of("tiny.gguf");
  const auto written = write_tiny_model(path, model);
  ASSERT_TRUE(written.ok()) << written.error().message;
  const std::vector<TokenId> tokens = random_tokens(150, 22);
  EngineOptions options = {.model_path = path, .context = 160, .threads = 1, .kv = {}};
  const auto expected = trace_of(options, tokens);
  ASSERT_TRUE(expected.ok()) << expected.error().message;
  for (const std::uint32_t chunk :
       {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 9U, 12U, 16U, 17U, 24U, 32U, 33U, 63U, 128U}) {
    options.chunk_tokens = chunk;
    options.threads = 1 + chunk % 3;
    expect_trace(("chunks of " + std::to_string(chunk)).c_str(), *expected, options, tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(WeightTypes, TinyModelWithWeights,
                         testing::ValuesIn(tiny_model_weight_types()),
                         [](const auto& test) { return std::string(ggml_type_name(test.param)); });

}  // namespace
}  // namespace headrace::test
