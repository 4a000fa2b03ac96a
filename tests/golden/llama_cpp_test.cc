// Our logits against llama.cpp's own forward pass over the same file and tokens: the oracle for
// everything numeric.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "headrace/engine.h"
#include "tests/support/compare.h"
#include "tests/support/f32_twin.h"
#include "tests/support/llama_reference.h"
#include "tests/support/mha_twin.h"
#include "tests/support/run_command.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/texts.h"
#include "tests/support/tiny_model.h"

namespace headrace::test {
namespace {

constexpr std::size_t turn_tokens = 256;

/// Logits of some rows, [row][vocabulary].
using Rows = std::vector<float>;

Result<Rows> next_rows(LlamaReference& reference, std::span<const TokenId> tokens) {
  Rows rows;
  HEADRACE_TRY(reference.append(tokens, [&](std::uint32_t, const float* logits) {
    rows.insert(rows.end(), logits, logits + reference.vocabulary());
  }));
  return rows;
}

Result<Rows> next_rows(Engine& engine, Sequence& sequence, std::span<const TokenId> tokens) {
  Rows rows;
  HEADRACE_TRY(sequence.append(tokens, nullptr, [&](std::uint32_t, const float* logits) {
    rows.insert(rows.end(), logits, logits + engine.model().vocabulary);
    return true;
  }));
  return rows;
}

void add_rows(LogitComparison& comparison, const Rows& expected, const Rows& rows,
              std::size_t vocabulary) {
  ASSERT_EQ(expected.size(), rows.size());
  for (std::size_t begin = 0; begin < rows.size(); begin += vocabulary) {
    comparison.add(std::span(expected).subspan(begin, vocabulary),
                   std::span(rows).subspan(begin, vocabulary));
  }
}

/// Runs both in turns of `turn_tokens`, so that only so many rows are kept.
Result<LogitComparison> compare_with_llama_cpp(Engine& engine, const std::string& path,
                                               std::span<const TokenId> tokens, KvType kv_type) {
  HEADRACE_TRY_ASSIGN(
      const auto reference,
      LlamaReference::open(path, {.kv_type = kv_type,
                                  .context = static_cast<std::uint32_t>(tokens.size()),
                                  .batch_tokens = turn_tokens}));
  HEADRACE_TRY_ASSIGN(const auto sequence, engine.new_sequence());
  EXPECT_EQ(reference->vocabulary(), engine.model().vocabulary);
  LogitComparison comparison;
  while (!tokens.empty()) {
    const auto turn = tokens.first(std::min(turn_tokens, tokens.size()));
    tokens = tokens.subspan(turn.size());
    HEADRACE_TRY_ASSIGN(const Rows expected, next_rows(*reference, turn));
    HEADRACE_TRY_ASSIGN(const Rows rows, next_rows(engine, *sequence, turn));
    add_rows(comparison, expected, rows, reference->vocabulary());
  }
  return comparison;
}

/// llama.cpp's run and ours, on a quantised file and on its f32 twin, token by token. llama.cpp's
/// on the twin, with f32 KV, counts as exact.
class FourRuns {
 public:
  static Result<FourRuns> open(const std::string& path, const std::string& twin_path,
                               std::uint32_t positions) {
    const LlamaReferenceOptions options = {.context = positions, .batch_tokens = turn_tokens};
    LlamaReferenceOptions exact_options = options;
    exact_options.kv_type = KvType::f32;
    FourRuns runs;
    HEADRACE_TRY_ASSIGN(runs.exact_, LlamaReference::open(twin_path, exact_options));
    HEADRACE_TRY_ASSIGN(runs.llama_, LlamaReference::open(path, options));
    HEADRACE_TRY_ASSIGN(runs.engine_,
                        Engine::open({.model_path = path, .context = positions, .kv = {}}));
    HEADRACE_TRY_ASSIGN(runs.sequence_, runs.engine_->new_sequence());
    HEADRACE_TRY_ASSIGN(runs.twin_engine_,
                        Engine::open({.model_path = twin_path, .context = positions, .kv = {}}));
    HEADRACE_TRY_ASSIGN(runs.twin_sequence_, runs.twin_engine_->new_sequence());
    return runs;
  }

  const Engine& engine() const { return *engine_; }

  /// Reads tokens whose logits do not count.
  Result<void> read(std::span<const TokenId> tokens) {
    HEADRACE_TRY(exact_->append(tokens, {}));
    HEADRACE_TRY(llama_->append(tokens, {}));
    HEADRACE_TRY(sequence_->append(tokens, nullptr, nullptr));
    return twin_sequence_->append(tokens, nullptr, nullptr);
  }

  /// Reads tokens and compares their logits.
  Result<void> compare(std::span<const TokenId> tokens) {
    HEADRACE_TRY_ASSIGN(const Rows exact_rows, next_rows(*exact_, tokens));
    HEADRACE_TRY_ASSIGN(const Rows llama_rows, next_rows(*llama_, tokens));
    HEADRACE_TRY_ASSIGN(const Rows our_rows, next_rows(*engine_, *sequence_, tokens));
    HEADRACE_TRY_ASSIGN(const Rows twin_rows, next_rows(*twin_engine_, *twin_sequence_, tokens));
    const std::size_t vocabulary = exact_->vocabulary();
    add_rows(twin_to_exact_, exact_rows, twin_rows, vocabulary);
    add_rows(llama_to_exact_, exact_rows, llama_rows, vocabulary);
    add_rows(ours_to_exact_, exact_rows, our_rows, vocabulary);
    add_rows(ours_to_llama_, llama_rows, our_rows, vocabulary);
    return {};
  }

  std::uint64_t positions() const { return twin_to_exact_.positions(); }

  void print(const std::string& heading) const {
    std::cout << heading << "\n  ours, f32 weights, to exact: " << twin_to_exact_.summary()
              << "\n  llama.cpp to exact:          " << llama_to_exact_.summary()
              << "\n  ours to exact:               " << ours_to_exact_.summary()
              << "\n  ours to llama.cpp:           " << ours_to_llama_.summary() << "\n";
  }

  void expect_agreement() const {
    EXPECT_TRUE(twin_to_exact_.all_finite() && ours_to_exact_.all_finite());
    EXPECT_LE(twin_to_exact_.mean_kl(), 1e-4);
    EXPECT_GE(twin_to_exact_.same_top1(), 0.99);
    // Few positions carry much of the mean, so the two draws differ: measured on three texts were
    // 1.02, 0.95 and 1.12 (there one position of 2,000, at KL 0.53, is most of the difference).
    EXPECT_LE(ours_to_exact_.mean_kl(), 1.25 * llama_to_exact_.mean_kl());
    EXPECT_GE(ours_to_exact_.same_top1(), llama_to_exact_.same_top1() - 0.01);
    // Two independent draws of the noise are twice as far from each other as from the exact result.
    EXPECT_LE(ours_to_llama_.mean_kl(), 2.2 * llama_to_exact_.mean_kl());
  }

 private:
  FourRuns() = default;

  std::unique_ptr<LlamaReference> exact_;
  std::unique_ptr<LlamaReference> llama_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Sequence> sequence_;
  std::unique_ptr<Engine> twin_engine_;
  std::unique_ptr<Sequence> twin_sequence_;
  LogitComparison twin_to_exact_;
  LogitComparison llama_to_exact_;
  LogitComparison ours_to_exact_;
  LogitComparison ours_to_llama_;
};

/// SmolLM2's weights are quantised, and llama.cpp rounds activations to 8 bits on their way through
/// them. Rounding is chaotic: a difference in the last bit becomes, some layers on, another draw of
/// the same noise. On this file llama.cpp with f16 KV is as far from itself with f32 KV (mean KL
/// 4e-3, same top-1 96 %) as from the exact result (4e-3, 96 %). So two questions are asked apart.
/// Without that noise (the f32 twin of the file): are both the same function? With it: are we as
/// near to the exact result as llama.cpp is?
class SmolLm2 : public testing::TestWithParam<TextKind> {
 protected:
  static constexpr std::size_t positions = 2000;

  void SetUp() override {
    if (path_.empty()) GTEST_SKIP() << "HEADRACE_TEST_MODEL names no model";
    const auto twin = write_f32_twin(path_, twin_path_);
    ASSERT_TRUE(twin.ok()) << twin.error().message;
    auto engine = Engine::open({.model_path = path_, .context = positions, .kv = {}});
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    auto tokens = (*engine)->tokenize(text_of(GetParam(), 6 * positions), {});
    ASSERT_TRUE(tokens.ok()) << tokens.error().message;
    ASSERT_GE(tokens->size(), positions);
    tokens_.assign(tokens->begin(), tokens->begin() + positions);
  }

  TemporaryDirectory directory_;
  std::string path_ = test_model_path();
  std::string twin_path_ = directory_.path_of("f32.gguf");
  std::vector<TokenId> tokens_;
};

TEST_P(SmolLm2, IsTheSameFunctionAsLlamaCppAndAsNearToItsExactLogits) {
  auto runs = FourRuns::open(path_, twin_path_, positions);
  ASSERT_TRUE(runs.ok()) << runs.error().message;
  for (std::size_t begin = 0; begin < positions; begin += turn_tokens) {
    const auto turn = std::span(tokens_).subspan(begin, std::min(turn_tokens, positions - begin));
    const auto compared = runs->compare(turn);
    ASSERT_TRUE(compared.ok()) << compared.error().message;
  }
  runs->print(to_string(GetParam()));
  EXPECT_EQ(runs->positions(), positions);
  runs->expect_agreement();
}

INSTANTIATE_TEST_SUITE_P(Texts, SmolLm2, testing::ValuesIn(text_kinds()), [](const auto& test) {
  std::string name = to_string(test.param);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

/// Gemma 3 has windows of 512 tokens in 15 of its 18 layers, 262,144 tokens to choose from, and the
/// weight types of Q4_K_M. The same two questions, at prompts that end before, at and after the
/// edges of the window and of our blocks.
TEST(Gemma3, IsTheSameFunctionAsLlamaCppAndAsNearToItsExactLogits) {
  const std::string path = test_gemma_path();
  if (path.empty()) GTEST_SKIP() << "HEADRACE_TEST_GEMMA names no model";
  struct Stretch {
    std::size_t begin;
    std::size_t end;
  };
  // Positions whose logits are compared: 510 is the last of a prompt of 511 tokens.
  constexpr Stretch stretches[] = {{0, 48}, {488, 536}, {1000, 1048}, {2024, 2072}, {3952, 4000}};
  constexpr std::size_t positions = 4000;
  const TemporaryDirectory directory;
  const std::string twin_path = directory.path_of("f32.gguf");
  const auto twin = write_f32_twin(path, twin_path);
  ASSERT_TRUE(twin.ok()) << twin.error().message;

  auto runs = FourRuns::open(path, twin_path, positions);
  ASSERT_TRUE(runs.ok()) << runs.error().message;
  const auto tokens = runs->engine().tokenize(text_of(TextKind::licence, 6 * positions), {});
  ASSERT_TRUE(tokens.ok()) << tokens.error().message;
  ASSERT_GE(tokens->size(), positions);
  std::size_t read = 0;
  for (const Stretch& stretch : stretches) {
    const auto before = std::span(*tokens).subspan(read, stretch.begin - read);
    if (!before.empty()) {
      const auto skipped = runs->read(before);
      ASSERT_TRUE(skipped.ok()) << skipped.error().message;
    }
    const auto turn = std::span(*tokens).subspan(stretch.begin, stretch.end - stretch.begin);
    const auto compared = runs->compare(turn);
    ASSERT_TRUE(compared.ok()) << compared.error().message;
    read = stretch.end;
    runs->print("to position " + std::to_string(read));
  }
  runs->expect_agreement();
}

/// How near a tiny model's logits must be to llama.cpp's.
struct Bounds {
  double mean_kl = 1e-3;
  double same_top1 = 0.99;
  double lost_lead =
      1.0;  ///< most that llama.cpp's favourite may lead ours by where they differ, in logits
};

/// Weights that neither side rounds its activations for: only the order of additions and f16 KV
/// differ.
constexpr Bounds exact_weights = {.mean_kl = 1e-5, .same_top1 = 0.99, .lost_lead = 0.02};

/// For the quantised types both sides round activations to 8 bits. A random model has far more near
/// ties than a trained one: llama.cpp with f32 KV agrees with itself with f16 KV on 97.7 to 99.7 %
/// of such positions, at a mean KL of up to 3e-4. So what counts is the KL, and that where the
/// favourites differ they are nearly tied (logits spread over +-3; a wrong rotation or page gives a
/// lost lead of 2 and more).
constexpr Bounds rounded_activations = {.mean_kl = 1e-3, .same_top1 = 0.96, .lost_lead = 0.3};

Bounds bounds_of(ggml_type type) {
  return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 ? exact_weights : rounded_activations;
}

class TinyModel : public testing::Test {
 protected:
  void expect_agreement(const TinyModelOptions& model, KvType kv_type = KvType::f16) {
    const std::string path = directory_.path_of("tiny.gguf");
    const auto written = write_tiny_model(path, model);
    ASSERT_TRUE(written.ok()) << written.error().message;
    expect_agreement_of_file(path, bounds_of(model.weight_type), kv_type);
  }

  void expect_agreement_of_file(const std::string& path, const Bounds& bounds, KvType kv_type) {
    EngineOptions options = {.model_path = path, .context = 512, .threads = 2, .kv = {}};
    options.kv.type = kv_type;
    options.kv.tokens_per_block = 64;
    auto engine = Engine::open(options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    const std::vector<TokenId> tokens = random_tokens(300, 11);
    const auto compared = compare_with_llama_cpp(**engine, path, tokens, kv_type);
    ASSERT_TRUE(compared.ok()) << compared.error().message;
    SCOPED_TRACE(compared->summary());
    std::cout << compared->summary() << "\n";
    EXPECT_TRUE(compared->all_finite());
    EXPECT_LE(compared->mean_kl(), bounds.mean_kl);
    EXPECT_GE(compared->same_top1(), bounds.same_top1);
    EXPECT_LE(compared->max_lost_lead(), bounds.lost_lead);
  }

  TemporaryDirectory directory_;
};

TEST_F(TinyModel, WithGroupedHeadsAgreesWithLlamaCpp) {
  for (const std::uint32_t group : {2U, 3U, 4U, 7U}) {
    SCOPED_TRACE("query heads per kv head: " + std::to_string(group));
    expect_agreement({.embedding = 96,
                      .query_heads = 2 * group,
                      .kv_heads = 2,
                      .head_dim = 32,
                      .feed_forward = 160});
  }
}

TEST_F(TinyModel, WithOneKvHeadAgreesWithLlamaCpp) {
  expect_agreement({.query_heads = 4, .kv_heads = 1, .head_dim = 16});
}

TEST_F(TinyModel, WithAsManyKvHeadsAsQueryHeadsAgreesWithLlamaCpp) {
  expect_agreement({.query_heads = 4, .kv_heads = 4, .head_dim = 16});
}

TEST_F(TinyModel, WithHeadsWiderThanTheEmbeddingAgreesWithLlamaCpp) {
  for (const std::uint32_t head_dim : {48U, 64U, 80U, 96U, 128U}) {
    SCOPED_TRACE("head_dim " + std::to_string(head_dim));
    expect_agreement({.embedding = 64, .query_heads = 3, .kv_heads = 1, .head_dim = head_dim});
  }
}

TEST_F(TinyModel, WithAnOutputOfItsOwnAgreesWithLlamaCpp) {
  expect_agreement({.tied_output = false});
  TinyModelOptions quantised = tiny_model_options(GGML_TYPE_Q6_K);
  quantised.tied_output = false;
  expect_agreement(quantised);
}

TEST_F(TinyModel, WithBiasesAgreesWithLlamaCpp) {
  expect_agreement({.biases = true});
  TinyModelOptions quantised = tiny_model_options(GGML_TYPE_Q8_0);
  quantised.biases = true;
  expect_agreement(quantised);
}

TEST_F(TinyModel, WithOneLayerOrSixAgreesWithLlamaCpp) {
  expect_agreement({.layers = 1});
  expect_agreement({.layers = 6});
}

TEST_F(TinyModel, WithAnOddVocabularyAgreesWithLlamaCpp) {
  expect_agreement({.vocabulary = tiny_model_smallest_vocabulary});
  TinyModelOptions quantised = tiny_model_options(GGML_TYPE_Q4_0);
  quantised.vocabulary = 301;
  expect_agreement(quantised);
}

TEST_F(TinyModel, WithKvInF32AgreesWithLlamaCpp) {
  expect_agreement({}, KvType::f32);
  expect_agreement(tiny_model_options(GGML_TYPE_Q4_1), KvType::f32);
}

TEST_F(TinyModel, WithAnotherRopeBaseAgreesWithLlamaCpp) {
  expect_agreement({.rope_base = 500000.0F});
  expect_agreement({.rope_base = 100.0F});
}

TEST_F(TinyModel, WithLinearRopeScalingAgreesWithLlamaCpp) {
  expect_agreement({.rope = RopeVariant::linear, .rope_factor = 4.0F});
}

TEST_F(TinyModel, WithYarnRopeScalingAgreesWithLlamaCpp) {
  // The original context decides which frequencies are interpolated: try some that cut through the
  // middle.
  for (const std::uint32_t original_context : {64U, 256U, 1024U, 2048U}) {
    SCOPED_TRACE("original context " + std::to_string(original_context));
    expect_agreement({.head_dim = 32,
                      .rope = RopeVariant::yarn,
                      .rope_factor = 4.0F,
                      .rope_original_context = original_context});
  }
}

TEST_F(TinyModel, WithYarnAndAnAttentionFactorAgreesWithLlamaCpp) {
  expect_agreement({.head_dim = 32,
                    .rope = RopeVariant::yarn,
                    .rope_factor = 8.0F,
                    .rope_original_context = 256,
                    .rope_attention_factor = 1.3F});
}

TEST_F(TinyModel, WithRopeFactorsAgreesWithLlamaCpp) {
  expect_agreement({.head_dim = 32, .rope_base = 500000.0F, .rope = RopeVariant::factors});
}

// The canary: with a wrong rotation, the bounds above must be missed by far.
TEST_F(TinyModel, WithAnotherRotationIsNoticed) {
  const std::string plain_path = directory_.path_of("plain.gguf");
  const std::string scaled_path = directory_.path_of("scaled.gguf");
  for (const RopeVariant rope : {RopeVariant::linear, RopeVariant::yarn, RopeVariant::factors}) {
    const auto plain = write_tiny_model(plain_path, {.head_dim = 32});
    ASSERT_TRUE(plain.ok()) << plain.error().message;
    const auto scaled = write_tiny_model(scaled_path, {.head_dim = 32, .rope = rope});
    ASSERT_TRUE(scaled.ok()) << scaled.error().message;
    auto engine = Engine::open({.model_path = plain_path, .context = 512, .kv = {}});
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    const auto compared =
        compare_with_llama_cpp(**engine, scaled_path, random_tokens(300, 11), KvType::f16);
    ASSERT_TRUE(compared.ok()) << compared.error().message;
    EXPECT_GT(compared->mean_kl(), 30 * exact_weights.mean_kl) << compared->summary();
  }
}

TEST_F(TinyModel, AndItsMhaTwinGiveTheSameAnswers) {
  const std::string path = directory_.path_of("grouped.gguf");
  const std::string twin_path = directory_.path_of("twin.gguf");
  TinyModelOptions options = tiny_model_options(GGML_TYPE_Q4_1);
  options.biases = true;
  const auto written = write_tiny_model(path, options);
  ASSERT_TRUE(written.ok()) << written.error().message;
  const auto twin = write_mha_twin(path, twin_path);
  ASSERT_TRUE(twin.ok()) << twin.error().message;
  auto engine = Engine::open({.model_path = twin_path, .context = 512, .kv = {}});
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  EXPECT_EQ((*engine)->model().kv_heads, options.query_heads);
  const auto compared = compare_with_llama_cpp(**engine, path, random_tokens(300, 12), KvType::f16);
  ASSERT_TRUE(compared.ok()) << compared.error().message;
  EXPECT_LE(compared->mean_kl(), rounded_activations.mean_kl) << compared->summary();
}

// Phi 3 has factors for contexts up to the original one and others beyond.
TEST_F(TinyModel, WithFactorsForLongAndShortContextsAgreesWithLlamaCpp) {
  for (const std::uint32_t original_context : {128U, 1024U}) {
    SCOPED_TRACE("original context " + std::to_string(original_context));
    TinyModelOptions model = tiny_model_options("phi3", GGML_TYPE_F32);
    model.rope_original_context = original_context;
    expect_agreement(model);
  }
}

TEST_F(TinyModel, ThatTurnsAPartOfItsHeadsAgreesWithLlamaCpp) {
  for (const char* architecture : {"phi3", "gemma3"}) {
    SCOPED_TRACE(architecture);
    TinyModelOptions model = tiny_model_options(architecture, GGML_TYPE_F32);
    model.embedding = 128;
    model.head_dim = 32;
    model.rotated_dims = 24;
    expect_agreement(model);
  }
}

TEST_F(TinyModel, WithAnyWindowAgreesWithLlamaCpp) {
  for (const std::uint32_t window : {0U, 1U, 8U, 63U, 64U, 65U, 300U}) {
    SCOPED_TRACE("window " + std::to_string(window));
    TinyModelOptions model = tiny_model_options("gemma3", GGML_TYPE_F32);
    model.window = window;
    if (window == 8) model.window_step = 0;
    expect_agreement(model);
  }
}

TEST_F(TinyModel, WithLinearScalingOfLayersWithoutAWindowAgreesWithLlamaCpp) {
  TinyModelOptions model = tiny_model_options("gemma3", GGML_TYPE_F32);
  model.rope_base = 1000.0F;
  model.rope = RopeVariant::linear;
  model.rope_factor = 8.0F;
  expect_agreement(model);
}

TEST_F(TinyModel, WithCappedLogitsAgreesWithLlamaCpp) {
  TinyModelOptions model = tiny_model_options("gemma3", GGML_TYPE_F32);
  model.logit_cap = 1.5F;
  expect_agreement(model);
}

class TinyArchitecture : public TinyModel, public testing::WithParamInterface<std::string> {};

TEST_P(TinyArchitecture, AgreesWithLlamaCppWithEveryKindOfWeights) {
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_Q4_1, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K}) {
    SCOPED_TRACE(ggml_type_name(type));
    expect_agreement(tiny_model_options(GetParam(), type));
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, TinyArchitecture,
                         testing::ValuesIn(tiny_model_architectures()),
                         [](const auto& test) { return test.param; });

class TinyModelOfWeightType : public TinyModel, public testing::WithParamInterface<ggml_type> {};

TEST_P(TinyModelOfWeightType, AgreesWithLlamaCpp) {
  expect_agreement(tiny_model_options(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(WeightTypes, TinyModelOfWeightType,
                         testing::ValuesIn(tiny_model_weight_types()),
                         [](const auto& test) { return std::string(ggml_type_name(test.param)); });

}  // namespace
}  // namespace headrace::test
