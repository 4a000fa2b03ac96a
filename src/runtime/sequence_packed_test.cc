// Windows whose positions are packed: texts longer than the model was trained for.
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "runtime/runtime_test_engine.h"

namespace headrace {
namespace {

class PackedPositions : public TinyEngineTest {
 protected:
  static constexpr std::uint32_t trained = 128;
  static constexpr std::uint32_t first = 4;
  static constexpr std::uint32_t newest = 60;

  void SetUp() override {
    TinyEngineTest::SetUp();
    for (const std::uint32_t count : {1U, 2U}) {
      const auto written =
          test::write_tiny_model(path(count), {.layers = count, .trained_context = trained});
      ASSERT_TRUE(written.ok()) << written.error().message;
    }
  }

  std::string path(std::uint32_t model_layers) const {
    return models_.path_of(std::to_string(model_layers) + ".gguf");
  }

  static AttentionOptions packed() {
    AttentionOptions attention;
    attention.mode = AttentionMode::window;
    attention.recall_first = first;
    attention.window_tokens = newest;
    attention.window_packed = true;
    return attention;
  }

  EngineOptions with(EngineOptions options, std::uint32_t model_layers,
                     const AttentionOptions& attention) const {
    options.model_path = path(model_layers);
    options.context = attention.mode == AttentionMode::window ? context : trained;
    options.attention = attention;
    return options;
  }

  /// The logits after each of the tokens behind the first `prompt`, which are read together.
  std::vector<std::vector<float>> logits_of(Engine& engine, std::size_t prompt,
                                            std::span<const TokenId> tokens) {
    std::vector<std::vector<float>> all;
    const auto sequence = new_sequence(engine);
    const Result<void> read = sequence->append(tokens.first(prompt), nullptr, nullptr);
    EXPECT_TRUE(read.ok()) << read.error().message;
    all.emplace_back(sequence->logits().begin(), sequence->logits().end());
    for (const TokenId token : tokens.subspan(prompt)) {
      const Result<void> decoded = sequence->decode(token);
      EXPECT_TRUE(decoded.ok()) << decoded.error().message;
      all.emplace_back(sequence->logits().begin(), sequence->logits().end());
    }
    return all;
  }

  const std::vector<TokenId> tokens_ = test::random_tokens(400, 5);

 private:
  test::TemporaryDirectory models_;
};

// The keys of a model of one layer depend on their own token alone, so a window is a shorter text.
TEST_F(PackedPositions, AreThoseOfTheTextThatIsRead) {
  EngineOptions options = with(roomy(), 1, packed());
  options.kv.type = KvType::f32;
  EngineOptions exact_options = with(roomy(), 1, {});
  exact_options.kv.type = KvType::f32;
  constexpr std::size_t prompt = 100;
  const auto actual = logits_of(open(options), prompt, tokens_);
  const auto exact = try_open(exact_options);
  ASSERT_TRUE(exact.ok()) << exact.error().message;
  for (const std::size_t end : {101U, 128U, 129U, 250U, 400U}) {
    std::vector<TokenId> read(tokens_.begin(), tokens_.begin() + first);
    read.insert(read.end(), tokens_.begin() + static_cast<std::ptrdiff_t>(end - newest),
                tokens_.begin() + static_cast<std::ptrdiff_t>(end));
    const auto expected = logits_of(**exact, read.size(), read).back();
    double largest = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(actual[end - prompt][i]) -
                                           static_cast<double>(expected[i])));
    }
    EXPECT_LT(largest, 1e-3) << "behind " << end;
  }
}

TEST_F(PackedPositions, MakeADifferenceOnceSomethingIsLeftOut) {
  EngineOptions options = with(roomy(), 2, packed());
  options.context = trained;
  const auto text = std::span(tokens_).first(100);
  const auto packed_logits = logits_of(open(options), 40, text);
  options.attention.window_packed = false;
  const auto true_logits = logits_of(open(options), 40, text);
  for (std::size_t i = 0; i < packed_logits.size(); ++i) {
    const std::size_t read = 40 + i;
    EXPECT_EQ(packed_logits[i] == true_logits[i], read <= first + newest) << read;
  }
}

TEST_F(PackedPositions, GiveTheSameBitsBehindTheTrainedContextHoweverATextIsRead) {
  const auto expected = logits_of(open(with(roomy(), 2, packed())), 100, tokens_).back();
  EngineOptions other = with(roomy(), 2, packed());
  other.threads = 3;
  other.chunk_tokens = 7;
  EXPECT_EQ(logits_of(open(other), 100, tokens_).back(), expected);
  EngineOptions in_part = with(tight(1, packed()), 2, packed());
  in_part.context = context;
  Engine& engine = open(in_part);
  EXPECT_EQ(logits_of(engine, 100, tokens_).back(), expected);
  EXPECT_GT(engine.kv_stats().pages_filled_from_disk, 0U);
  // A prompt over the border: exact as far as the model was trained, then token by token.
  const auto behind = logits_of(open(with(roomy(), 2, packed())), trained, tokens_).back();
  for (const std::uint32_t chunk : {7U, 64U}) {
    EngineOptions at_once = with(roomy(), 2, packed());
    at_once.chunk_tokens = chunk;
    EXPECT_EQ(logits_of(open(at_once), tokens_.size(), tokens_).back(), behind);
  }
}

TEST_F(PackedPositions, APageThatWasReadInPartAndIsLostIsAnErrorThatSaysSo) {
  EngineOptions options = with(tight(1, packed()), 2, packed());
  Engine& engine = open(options);
  const auto sequence = new_sequence(engine);
  ASSERT_TRUE(sequence->append(std::span(tokens_).first(300), nullptr, nullptr).ok());
  int refused = 0;
  for (std::size_t i = 0; i < 12; ++i) {
    env_.set_plan({{.operation = EnvOperation::read,
                    .at = 1 + i,
                    .kind = FaultKind::flip_bit,
                    .bit = 9'000 + i * 131}});
    const Result<void> decoded = sequence->decode(tokens_[300 + i]);
    env_.set_plan({});
    if (decoded.ok()) continue;
    ++refused;
    expect_helpful(decoded.error(), ErrorCode::io, "read the text anew");
  }
  EXPECT_GT(refused, 0);
}

TEST_F(PackedPositions, LongContextsWithoutThemAreRefused) {
  EngineOptions options = with(roomy(), 2, packed());
  options.attention.window_packed = false;
  expect_refused(options, "--window-positions packed");
  options.attention = {};
  expect_refused(options, "--context 512");
  options = with(roomy(), 2, packed());
  options.attention.window_tokens = trained - first + 1;
  expect_refused(options, "--window-tokens");
  options = with(roomy(), 2, packed());
  options.attention.certify = true;
  expect_refused(options, "--certify");
}

TEST_F(PackedPositions, ChangeNothingInOtherModes) {
  const auto text = std::span(tokens_).first(trained);
  for (const AttentionMode mode :
       {AttentionMode::exact, AttentionMode::recall, AttentionMode::sparse}) {
    AttentionOptions attention = small_recall();
    attention.mode = mode;
    attention.sparse_tokens = 64;
    const auto expected = logits_of(open(with(roomy(), 2, attention)), 40, text);
    attention.window_packed = true;
    Engine& engine = open(with(roomy(), 2, attention));
    EXPECT_EQ(logits_of(engine, 40, text), expected) << to_string(mode);
    EXPECT_TRUE(new_sequence(engine)->keep(0, 8).ok());
  }
}

TEST_F(PackedPositions, HaveNoPlaceForAZoneAndSayHowMuchRoomThereIs) {
  Engine& engine = open(with(roomy(), 2, packed()));
  const auto sequence = new_sequence(engine);
  expect_helpful(sequence->keep(0, 8).error(), ErrorCode::invalid_argument, "packed");
  const auto longer = test::random_tokens(context + 1, 6);
  expect_helpful(sequence->append(longer, nullptr, nullptr).error(), ErrorCode::invalid_argument,
                 "raise --context");
}

}  // namespace
}  // namespace headrace
