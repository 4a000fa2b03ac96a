// The forward pass of a tiny model: chunks, batches of pages and workers change no bit of the
// logits or of the pages (invariant 2).
#include "model/forward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/serial_parallel.h"
#include "env/thread_pool.h"
#include "kernel/test_parallel.h"
#include "model/test_gguf.h"
#include "model/test_kv.h"

namespace headrace {
namespace {

constexpr std::uint32_t rows_max = 40;

struct LoadedModel {
  explicit LoadedModel(const TestLlama& options)
      : opened(test_llama(options)), model(load_model(opened.file).value()) {}

  PageShape page_shape(std::uint32_t tokens) const {
    return {tokens, model.shape.kv_heads, model.shape.head_dim, KvType::f16};
  }

  OpenedGguf opened;
  Model model;
};

std::vector<TokenId> random_tokens(std::uint32_t count, unsigned seed) {
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 50);
  return tokens;
}

/// Runs `tokens` in steps of `chunk` rows; gives the logits of all rows, one after the other.
std::vector<float> run(ForwardPass& pass, std::uint32_t vocabulary, TestKv& kv,
                       std::span<const TokenId> tokens, std::uint32_t chunk) {
  std::vector<float> logits;
  for (std::uint32_t first = 0; first < tokens.size(); first += chunk) {
    const auto count = std::min(chunk, static_cast<std::uint32_t>(tokens.size()) - first);
    kv.begin_step(first, count);
    std::uint32_t next_row = 0;
    const Result<void> result = pass.run({&kv, tokens.subspan(first, count), first},
                                         [&](std::uint32_t row, const float* values) {
                                           EXPECT_EQ(row, next_row++);
                                           logits.insert(logits.end(), values, values + vocabulary);
                                           return true;
                                         });
    EXPECT_TRUE(result.ok());
    EXPECT_EQ(next_row, count);
  }
  return logits;
}

void expect_same(std::span<const float> expected, std::span<const float> actual,
                 const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::memcmp(&expected[i], &actual[i], sizeof(float)), 0)
        << what << ": logit " << i << " is " << actual[i] << " instead of " << expected[i];
  }
}

/// Runs in chunks of 1, 2, 5, 16 and all rows under several Parallels, and compares.
void expect_chunks_change_nothing(const TestLlama& options) {
  const LoadedModel loaded(options);
  const std::vector<TokenId> tokens = random_tokens(rows_max, 91);
  const PageShape shape = loaded.page_shape(16);
  SerialParallel serial;
  ShuffledParallel shuffled(3, 92);
  ThreadPool two(2);
  ThreadPool three(3);
  ForwardPass one_row = ForwardPass::create(loaded.model, serial, shape, 1).value();
  TestKv expected_kv(shape, options.layers);
  const std::vector<float> expected = run(one_row, 50, expected_kv, tokens, 1);
  for (const float value : expected) ASSERT_TRUE(std::isfinite(value));
  for (Parallel* parallel : {static_cast<Parallel*>(&serial), static_cast<Parallel*>(&shuffled),
                             static_cast<Parallel*>(&two), static_cast<Parallel*>(&three)}) {
    ForwardPass pass = ForwardPass::create(loaded.model, *parallel, shape, rows_max).value();
    for (const std::uint32_t chunk : {1U, 2U, 5U, 16U, rows_max}) {
      TestKv kv(shape, options.layers, 1 + chunk % 3);
      const std::vector<float> actual = run(pass, 50, kv, tokens, chunk);
      ASSERT_NO_FATAL_FAILURE(expect_same(expected, actual, "chunks of " + std::to_string(chunk)));
      ASSERT_TRUE(kv == expected_kv) << "pages, chunks of " << chunk;
    }
  }
}

/// Runs `check` in a child that uses the kernels `isa`: they are chosen once per process.
template <typename Check>
void run_with_kernels(const char* isa, Check check) {
  if (kernel::find_kernels(isa) == nullptr) GTEST_SKIP() << "this machine cannot run " << isa;
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto child = [&] {
    ::setenv("HEADRACE_FORCE_ISA", isa, 1);
    EXPECT_STREQ(kernel::kernels().name, isa);
    check();
    std::exit(testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

class ForwardPassOnEveryIsa : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Isa, ForwardPassOnEveryIsa, testing::Values("avx512", "avx2", "scalar"),
                         [](const auto& isa) { return std::string(isa.param); });

TEST_P(ForwardPassOnEveryIsa, ChunksAndWorkersChangeNoBit) {
  run_with_kernels(GetParam(), [] {
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                                 GGML_TYPE_Q5_1, GGML_TYPE_Q8_0}) {
      SCOPED_TRACE(ggml_type_name(type));
      ASSERT_NO_FATAL_FAILURE(expect_chunks_change_nothing({.weights = type}));
    }
  });
}

TEST(ForwardPass, ChunksChangeNoBitWithBiasesAndWithAHeadPerKvHead) {
  expect_chunks_change_nothing({.weights = GGML_TYPE_Q8_0, .biases = true});
  expect_chunks_change_nothing({.query_heads = 2, .kv_heads = 2, .weights = GGML_TYPE_Q4_1});
}

TEST(ForwardPass, EveryTokenBeforeCountsAndNoneAfter) {
  const LoadedModel loaded({});
  const PageShape shape = loaded.page_shape(16);
  SerialParallel serial;
  ForwardPass pass = ForwardPass::create(loaded.model, serial, shape, rows_max).value();
  std::vector<TokenId> tokens = random_tokens(20, 93);
  TestKv kv(shape, 2);
  const std::vector<float> expected = run(pass, 50, kv, tokens, 20);
  tokens[7] = (tokens[7] + 1) % 50;
  TestKv other_kv(shape, 2);
  const std::vector<float> changed = run(pass, 50, other_kv, tokens, 20);
  for (std::size_t row = 0; row < 20; ++row) {
    const bool same = std::memcmp(&expected[row * 50], &changed[row * 50], 50 * sizeof(float)) == 0;
    EXPECT_EQ(same, row < 7) << "row " << row;
  }
}

TEST(ForwardPass, GivesTheLogitsThatAreAskedForUntilItIsStopped) {
  const LoadedModel loaded({});
  const PageShape shape = loaded.page_shape(16);
  SerialParallel serial;
  ForwardPass pass = ForwardPass::create(loaded.model, serial, shape, rows_max).value();
  const std::vector<TokenId> tokens = random_tokens(rows_max, 94);
  const auto rows_given = [&](std::uint32_t first_logits_row, std::uint32_t layers_end,
                              std::uint32_t stop_at) {
    TestKv kv(shape, 2);
    kv.begin_step(0, rows_max);
    std::vector<std::uint32_t> rows;
    const Result<void> result =
        pass.run({&kv, tokens, 0, first_logits_row, layers_end}, [&](std::uint32_t row, auto) {
          rows.push_back(row);
          return row != stop_at;
        });
    EXPECT_TRUE(result.ok());
    return rows;
  };
  EXPECT_EQ(rows_given(38, 0, 99), (std::vector<std::uint32_t>{38, 39}));
  EXPECT_EQ(rows_given(rows_max, 0, 99), std::vector<std::uint32_t>());
  EXPECT_EQ(rows_given(0, 0, 99).size(), rows_max) << "more rows than one product of logits takes";
  EXPECT_EQ(rows_given(36, 0, 37), (std::vector<std::uint32_t>{36, 37}));
  EXPECT_EQ(rows_given(0, 1, 99), std::vector<std::uint32_t>()) << "not all layers, no logits";
  EXPECT_EQ(rows_given(39, 2, 99), std::vector<std::uint32_t>{39});
}

TEST(ForwardPass, FewerLayersWriteTheSamePagesOfThoseLayers) {
  const LoadedModel loaded({});
  const PageShape shape = loaded.page_shape(16);
  SerialParallel serial;
  ForwardPass pass = ForwardPass::create(loaded.model, serial, shape, rows_max).value();
  const std::vector<TokenId> tokens = random_tokens(20, 95);
  TestKv whole(shape, 2);
  run(pass, 50, whole, tokens, 20);
  TestKv part(shape, 2);
  part.begin_step(0, 20);
  ASSERT_TRUE(pass.run({&part, tokens, 0, 20, 1}, nullptr).ok());
  EXPECT_TRUE(part.same_layer(whole, 0));
  EXPECT_FALSE(part.same_layer(whole, 1));
}

TEST(ForwardPass, AStepThatLostAPageGivesTheSameBitsWhenRepeated) {
  const LoadedModel loaded({.weights = GGML_TYPE_Q8_0});
  const PageShape shape = loaded.page_shape(16);
  SerialParallel serial;
  ForwardPass pass = ForwardPass::create(loaded.model, serial, shape, rows_max).value();
  const std::vector<TokenId> tokens = random_tokens(rows_max, 96);
  TestKv undisturbed(shape, 2);
  const std::vector<float> expected = run(pass, 50, undisturbed, tokens, rows_max);
  TestKv kv(shape, 2);
  for (const std::uint32_t layer : {0U, 1U}) {
    kv.begin_step(0, rows_max);
    kv.lose(layer);
    const Result<void> result = pass.run({&kv, tokens}, [](std::uint32_t, const float*) {
      ADD_FAILURE() << "logits of a step that failed";
      return true;
    });
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::page_lost);
  }
  kv.heal();
  ASSERT_NO_FATAL_FAILURE(
      expect_same(expected, run(pass, 50, kv, tokens, rows_max), "the repeated step"));
  EXPECT_TRUE(kv == undisturbed);
}

TEST(ForwardPassDeathTest, MoreRowsThanTheWorkspaceHoldsAreABug) {
  const LoadedModel loaded({});
  const PageShape shape = loaded.page_shape(16);
  SerialParallel serial;
  ForwardPass pass = ForwardPass::create(loaded.model, serial, shape, 2).value();
  const std::vector<TokenId> tokens(3);
  TestKv kv(shape, 2);
  kv.begin_step(0, 3);
  EXPECT_DEATH(static_cast<void>(pass.run({&kv, tokens}, nullptr)), "more rows than the workspace");
}

}  // namespace
}  // namespace headrace
