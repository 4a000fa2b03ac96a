// What sets the architectures apart: which parts of the graph each of them has.
#include <gtest/gtest.h>

#include <cmath>

#include "model/model.h"
#include "model/test_gguf.h"

namespace headrace {
namespace {

ModelShape shape_of(const TestGguf& gguf) {
  const OpenedGguf opened(gguf);
  return read_model_shape(opened.file).value();
}

Error load_error(const TestGguf& gguf) {
  const OpenedGguf opened(gguf);
  const Result<Model> model = load_model(opened.file);
  EXPECT_FALSE(model.ok());
  return model.ok() ? Error{ErrorCode::internal, "loaded"} : model.error();
}

TEST(Decoder, NamesTheTensorThatIsMissingOfEveryArchitecture) {
  for (const char* architecture : {"qwen2", "qwen3", "gemma3", "phi3", "granite", "smollm3"}) {
    const TestLlama options = {.architecture = architecture, .layers = 1};
    ASSERT_TRUE(load_model(OpenedGguf(test_llama(options)).file).ok()) << architecture;
    for (const std::string& name : test_llama(options).tensor_names()) {
      TestGguf gguf = test_llama(options);
      gguf.remove_tensor(name);
      const Error error = load_error(gguf);
      EXPECT_EQ(error.code, ErrorCode::corrupt) << architecture << ", " << name;
      // One tensor in place of three is looked for first, and they are named when it is not there.
      const std::string missing = name == "blk.0.attn_qkv.weight" ? "blk.0.attn_q.weight" : name;
      EXPECT_TRUE(contains(error.message, "lacks the tensor '" + missing + "'"));
    }
  }
}

TEST(Decoder, ALlamaHasNoneOfThePartsThatOnlySomeHave) {
  const OpenedGguf opened(test_llama());
  const Model model = load_model(opened.file).value();
  EXPECT_EQ(model.shape.rope_pairs, RopePairs::neighbours);
  EXPECT_EQ(model.shape.activation, Activation::silu);
  EXPECT_EQ(model.shape.embedding_scale, 1.0F);
  EXPECT_EQ(model.shape.residual_scale, 1.0F);
  EXPECT_EQ(model.shape.logit_scale, 1.0F);
  EXPECT_EQ(model.shape.attention_scale, 0.0);
  EXPECT_EQ(model.shape.window(1), 0U);
  EXPECT_TRUE(model.shape.is_rotated(0) && model.shape.is_rotated(1));
  EXPECT_EQ(model.layers[0].query_norm, nullptr);
  EXPECT_EQ(model.layers[0].attention_post_norm, nullptr);
}

TEST(Decoder, Qwen2BindsItsBiasesAndTurnsHalves) {
  TestGguf gguf = test_llama({.architecture = "qwen2", .biases = true});
  gguf.set_tensor("output.weight", 64, 50, std::vector<float>(64 * 50, 0.5F));
  gguf.set_tensor("output.bias", 50, 1, std::vector<float>(50, 0.25F));
  const OpenedGguf opened(gguf);
  const Model model = load_model(opened.file).value();
  EXPECT_EQ(model.shape.rope_pairs, RopePairs::halves);
  EXPECT_NE(model.layers[1].key.bias, nullptr);
  EXPECT_EQ(model.output.bias[49], 0.25F);
}

TEST(Decoder, Qwen3NormsHeads) {
  const OpenedGguf opened(test_llama({.architecture = "qwen3"}));
  const Model model = load_model(opened.file).value();
  EXPECT_EQ(reinterpret_cast<const std::byte*>(model.layers[1].key_norm),
            opened.file.find_tensor("blk.1.attn_k_norm.weight")->bytes.data());
  EXPECT_NE(model.layers[1].query_norm, model.layers[1].key_norm);
}

TEST(Decoder, Gemma3HasNormsAroundBothPartsAndALoudEmbedding) {
  const OpenedGguf opened(test_llama({.architecture = "gemma3"}));
  const Model model = load_model(opened.file).value();
  EXPECT_EQ(model.shape.embedding_scale, 8.0F) << "the root of 64";
  EXPECT_EQ(model.shape.activation, Activation::gelu);
  EXPECT_EQ(model.shape.logit_cap, 0.0F);
  EXPECT_TRUE(model.shape.windows.empty());
  EXPECT_NE(model.layers[0].attention_post_norm, nullptr);
  EXPECT_NE(model.layers[0].feed_forward_post_norm, nullptr);
}

TEST(Decoder, Gemma3ReadsWindowsInFiveOfSixLayersOrWhereTheFileSaysSo) {
  TestGguf gguf = test_llama({.architecture = "gemma3", .layers = 8});
  gguf.set_number("gemma3.attention.sliding_window", 16);
  const std::vector<std::uint32_t> five_of_six = {16, 16, 16, 16, 16, 0, 16, 16};
  EXPECT_EQ(shape_of(gguf).windows, five_of_six);
  gguf.set_number("gemma3.attention.sliding_window_pattern", 3);
  EXPECT_EQ(shape_of(gguf).windows, (std::vector<std::uint32_t>{16, 16, 0, 16, 16, 0, 16, 16}));
  gguf.set_number("gemma3.attention.sliding_window_pattern", 0);
  EXPECT_EQ(shape_of(gguf).windows, std::vector<std::uint32_t>(8, 16));
  gguf.set_numbers("gemma3.attention.sliding_window_pattern", {1, 0, 0, 1, 0, 0, 0, 1});
  EXPECT_EQ(shape_of(gguf).windows, (std::vector<std::uint32_t>{16, 0, 0, 16, 0, 0, 0, 16}));
  gguf.set_numbers("gemma3.attention.sliding_window_pattern", {1, 0});
  EXPECT_EQ(load_error(gguf).code, ErrorCode::corrupt);
  EXPECT_TRUE(contains(load_error(gguf).message, "has 2 entries for 8 layers"));
}

TEST(Decoder, Gemma3TurnsLayersWithAWindowByABaseOfTheirOwn) {
  TestGguf gguf = test_llama({.architecture = "gemma3"});
  gguf.set_number("gemma3.attention.sliding_window", 16);
  gguf.set_float("gemma3.rope.freq_base", 1e6F);
  gguf.set_text("gemma3.rope.scaling.type", "linear");
  gguf.set_float("gemma3.rope.scaling.factor", 8.0F);
  const Model model = load_model(OpenedGguf(gguf).file).value();
  EXPECT_NEAR(model.rope.frequencies[1], std::pow(1e6, -2.0 / 32) / 8.0, 1e-12);
  EXPECT_NEAR(model.window_rope.frequencies[1], std::pow(1e4, -2.0 / 32), 1e-12);
  gguf.set_float("gemma3.rope.freq_base_swa", 100.0F);
  const Model other = load_model(OpenedGguf(gguf).file).value();
  EXPECT_NEAR(other.window_rope.frequencies[1], std::pow(100.0, -2.0 / 32), 1e-12);
  gguf.set_text("gemma3.rope.scaling.type", "yarn");
  EXPECT_EQ(load_error(gguf).code, ErrorCode::unsupported);
  gguf.set_text("gemma3.rope.scaling.type", "linear");
  gguf.set_float("gemma3.rope.freq_base_swa", 1.0F);
  EXPECT_EQ(load_error(gguf).code, ErrorCode::corrupt);
}

TEST(Decoder, Phi3CutsItsTensorsIntoParts) {
  const OpenedGguf opened(
      test_llama({.architecture = "phi3", .weights = GGML_TYPE_Q8_0, .biases = true}));
  const Model model = load_model(opened.file).value();
  const LayerWeights& layer = model.layers[1];
  const std::byte* qkv = opened.file.find_tensor("blk.1.attn_qkv.weight")->bytes.data();
  constexpr std::size_t row_bytes = 68;  // 64 weights in q8_0
  EXPECT_EQ(layer.query.weights.rows.data, qkv);
  EXPECT_EQ(layer.query.weights.outputs, 128U);
  EXPECT_EQ(layer.key.weights.rows.data, qkv + 128 * row_bytes);
  EXPECT_EQ(layer.key.weights.outputs, 64U);
  EXPECT_EQ(layer.value.weights.rows.data, qkv + 192 * row_bytes);
  EXPECT_EQ(layer.key.bias, layer.query.bias + 128);
  EXPECT_EQ(layer.value.bias, layer.query.bias + 192);
  const std::byte* both = opened.file.find_tensor("blk.1.ffn_up.weight")->bytes.data();
  EXPECT_EQ(layer.gate.weights.rows.data, both);
  EXPECT_EQ(layer.up.weights.rows.data, both + 96 * row_bytes);
  EXPECT_EQ(layer.up.weights.outputs, 96U);
}

TEST(Decoder, Phi3HasRopeFactorsForShortAndForLongContexts) {
  TestGguf gguf = test_llama({.architecture = "phi3"});
  gguf.set_number("phi3.rope.dimension_count", 16);
  gguf.set_number("phi3.rope.scaling.original_context_length", 128);
  gguf.set_float("phi3.rope.scaling.attn_factor", 1.25F);
  gguf.set_tensor("rope_factors_short.weight", 8, 1, std::vector<float>(8, 2.0F));
  gguf.set_tensor("rope_factors_long.weight", 8, 1, std::vector<float>(8, 5.0F));
  const OpenedGguf opened(gguf);
  EXPECT_EQ(load_model(opened.file, 128).value().rope.frequencies[0], 1.0 / 2.0);
  EXPECT_EQ(load_model(opened.file, 129).value().rope.frequencies[0], 1.0 / 5.0);
  const Model trained = load_model(opened.file).value();
  EXPECT_EQ(trained.rope.frequencies[0], 1.0 / 5.0) << "trained for 512";
  EXPECT_EQ(trained.rope.frequencies.size(), 8U);
  EXPECT_EQ(trained.rope.magnitude, 1.25F);
  gguf.set_number("phi3.rope.dimension_count", 48);
  EXPECT_EQ(load_error(gguf).code, ErrorCode::unsupported);
  EXPECT_TRUE(contains(load_error(gguf).message, "rotates 48 of 32 dims"));
}

TEST(Decoder, GraniteReadsItsScales) {
  TestGguf gguf = test_llama({.architecture = "granite"});
  ModelShape shape = shape_of(gguf);
  EXPECT_EQ(shape.logit_scale, 0.25F) << "the file gives the divisor";
  EXPECT_EQ(shape.embedding_scale, 1.0F);
  EXPECT_EQ(shape.residual_scale, 1.0F);
  EXPECT_EQ(shape.attention_scale, 0.0);
  EXPECT_TRUE(shape.is_rotated(0));
  gguf.set_float("granite.embedding_scale", 12.0F);
  gguf.set_float("granite.residual_scale", 0.5F);
  gguf.set_float("granite.attention.scale", 0.125F);
  gguf.set_flag("granite.rope.scaling.finetuned", false);
  shape = shape_of(gguf);
  EXPECT_EQ(shape.embedding_scale, 12.0F);
  EXPECT_EQ(shape.residual_scale, 0.5F);
  EXPECT_EQ(shape.attention_scale, 0.125);
  EXPECT_FALSE(shape.is_rotated(0) || shape.is_rotated(1));
  gguf.remove_key("granite.logit_scale");
  EXPECT_EQ(load_error(gguf).code, ErrorCode::corrupt);
  gguf.set_float("granite.logit_scale", 0.0F);
  EXPECT_EQ(load_error(gguf).code, ErrorCode::corrupt);
}

TEST(Decoder, EveryFourthLayerOfSmolLm3KnowsNoPositions) {
  const ModelShape shape = shape_of(test_llama({.architecture = "smollm3", .layers = 9}));
  for (std::uint32_t layer = 0; layer < 9; ++layer)
    EXPECT_EQ(shape.is_rotated(layer), layer != 3 && layer != 7) << layer;
}

}  // namespace
}  // namespace headrace
