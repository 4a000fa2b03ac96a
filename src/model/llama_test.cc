// Reading architecture `llama`: what is bound, and what a bad file is told.
#include <gtest/gtest.h>

#include "model/model.h"
#include "model/test_gguf.h"

namespace headrace {
namespace {

Error load_error(const TestGguf& gguf) {
  const OpenedGguf opened(gguf);
  const Result<Model> model = load_model(opened.file);
  EXPECT_FALSE(model.ok());
  return model.ok() ? Error{ErrorCode::internal, "loaded"} : model.error();
}

TEST(Llama, ReadsItsShape) {
  const OpenedGguf opened(test_llama());
  const ModelShape shape = read_model_shape(opened.file).value();
  EXPECT_EQ(shape.layers, 2U);
  EXPECT_EQ(shape.embedding, 64U);
  EXPECT_EQ(shape.query_heads, 4U);
  EXPECT_EQ(shape.kv_heads, 2U);
  EXPECT_EQ(shape.head_dim, 32U);
  EXPECT_EQ(shape.feed_forward, 96U);
  EXPECT_EQ(shape.vocabulary, 50U);
  EXPECT_EQ(shape.trained_context, 512U);
  EXPECT_EQ(shape.norm_epsilon, 1e-5F);
  EXPECT_EQ(shape.query_width(), 128U);
  EXPECT_EQ(shape.kv_width(), 64U);
}

TEST(Llama, WithoutKeysOfItsOwnAHeadHasItsShareAndEveryQueryHeadItsKv) {
  TestGguf gguf = test_llama({.query_heads = 2, .kv_heads = 2});
  gguf.remove_key("llama.attention.head_count_kv");
  gguf.remove_key("llama.attention.key_length");
  const OpenedGguf opened(gguf);
  const ModelShape shape = read_model_shape(opened.file).value();
  EXPECT_EQ(shape.kv_heads, 2U);
  EXPECT_EQ(shape.head_dim, 32U);
}

TEST(Llama, BindsEveryTensorWithItsFormat) {
  TestGguf gguf = test_llama({.weights = GGML_TYPE_Q4_1, .biases = true});
  gguf.set_tensor("output.weight", 64, 50, std::vector<float>(64 * 50, 0.5F), GGML_TYPE_F16);
  const OpenedGguf opened(gguf);
  const Model model = load_model(opened.file).value();
  EXPECT_EQ(model.architecture, "llama");
  ASSERT_EQ(model.layers.size(), 2U);
  EXPECT_EQ(model.embedding.rows.format, kernel::WeightFormat::q4_1);
  EXPECT_EQ(model.embedding.outputs, 50U);
  EXPECT_EQ(model.output.weights.rows.format, kernel::WeightFormat::f16);
  EXPECT_EQ(model.output.weights.rows.row_bytes, 128U);
  const auto at = [&](const std::string& name) {
    return opened.file.find_tensor(name)->bytes.data();
  };
  const LayerWeights& layer = model.layers[1];
  EXPECT_EQ(layer.key.weights.rows.data, at("blk.1.attn_k.weight"));
  EXPECT_EQ(layer.key.weights.rows.width, 64U);
  EXPECT_EQ(layer.key.weights.rows.row_bytes, 40U);
  EXPECT_EQ(layer.key.weights.outputs, 64U);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(layer.value.bias), at("blk.1.attn_v.bias"));
  EXPECT_EQ(layer.gate.bias, nullptr);
  EXPECT_EQ(layer.down.weights.rows.width, 96U);
}

TEST(Llama, WithoutAnOutputMatrixTheEmbeddingIsTheOutput) {
  const OpenedGguf opened(test_llama());
  const Model model = load_model(opened.file).value();
  EXPECT_EQ(model.output.weights.rows.data, model.embedding.rows.data);
}

TEST(Llama, NamesTheTensorThatIsMissing) {
  const TestGguf whole = test_llama();
  for (const std::string& name : whole.tensor_names()) {
    TestGguf gguf = test_llama();
    gguf.remove_tensor(name);
    const Error error = load_error(gguf);
    EXPECT_EQ(error.code, ErrorCode::corrupt) << name;
    EXPECT_EQ(error.message, "'test.gguf' lacks the tensor '" + name + "'; get the file again");
  }
}

TEST(Llama, NamesTheTensorWhoseShapeIsWrong) {
  TestGguf gguf = test_llama();
  gguf.set_tensor("blk.1.ffn_up.weight", 64, 95, std::vector<float>(64 * 95));
  const Error error = load_error(gguf);
  EXPECT_EQ(error.code, ErrorCode::corrupt);
  EXPECT_EQ(error.message,
            "'test.gguf': the tensor 'blk.1.ffn_up.weight' is 64 x 95, but its metadata promise "
            "64 x 96");
}

TEST(Llama, NamesTheTensorWhoseTypeIsWrong) {
  TestGguf norm = test_llama();
  norm.set_tensor("blk.0.attn_norm.weight", 64, 1, std::vector<float>(64), GGML_TYPE_F16);
  EXPECT_EQ(load_error(norm).code, ErrorCode::unsupported);
  EXPECT_TRUE(contains(load_error(norm).message, "'blk.0.attn_norm.weight' is not F32"));
}

TEST(Llama, NamesTheKeyThatIsMissing) {
  for (const char* key :
       {"llama.block_count", "llama.embedding_length", "llama.attention.head_count",
        "llama.feed_forward_length", "llama.context_length",
        "llama.attention.layer_norm_rms_epsilon", "general.architecture"}) {
    TestGguf gguf = test_llama();
    gguf.remove_key(key);
    const Error error = load_error(gguf);
    EXPECT_EQ(error.code, ErrorCode::corrupt) << key;
    EXPECT_EQ(error.message, "'test.gguf' lacks the value '" + std::string(key) + "'");
  }
}

TEST(Llama, MayGiveANumberForEveryLayerIfAllAreAlike) {
  for (const char* key : {"llama.attention.head_count", "llama.attention.head_count_kv",
                          "llama.feed_forward_length"}) {
    SCOPED_TRACE(key);
    const ModelShape plain = read_model_shape(OpenedGguf(test_llama()).file).value();
    TestGguf gguf = test_llama();
    const std::uint32_t value = key == std::string("llama.feed_forward_length") ? plain.feed_forward
                                : key == std::string("llama.attention.head_count")
                                    ? plain.query_heads
                                    : plain.kv_heads;
    gguf.set_numbers(key, {value, value});
    const OpenedGguf alike(gguf);
    const auto shape = read_model_shape(alike.file);
    ASSERT_TRUE(shape.ok()) << shape.error().message;
    EXPECT_EQ(shape->query_heads, plain.query_heads);
    EXPECT_EQ(shape->kv_heads, plain.kv_heads);
    EXPECT_EQ(shape->feed_forward, plain.feed_forward);
    gguf.set_numbers(key, {value, 2 * value});
    const Error error = load_error(gguf);
    EXPECT_EQ(error.code, ErrorCode::unsupported);
    EXPECT_EQ(error.message, "'test.gguf' has layers that differ in '" + std::string(key) +
                                 "', which cannot be run yet");
    gguf.set_numbers(key, {});
    EXPECT_EQ(load_error(gguf).code, ErrorCode::corrupt);
  }
}

TEST(Llama, RefusesKeysAndValuesOfDifferentWidths) {
  TestGguf gguf = test_llama();
  gguf.set_number("llama.attention.value_length", 16);
  const Error error = load_error(gguf);
  EXPECT_EQ(error.code, ErrorCode::unsupported);
  EXPECT_TRUE(contains(error.message, "has keys of 32 and values of 16 dims"));
}

TEST(Llama, RefusesATensorThatNothingReads) {
  TestGguf gguf = test_llama();
  gguf.set_tensor("blk.0.attn_sinks.weight", 4, 1, std::vector<float>(4));
  const Error error = load_error(gguf);
  EXPECT_EQ(error.code, ErrorCode::unsupported);
  EXPECT_TRUE(contains(error.message, "has the tensor 'blk.0.attn_sinks.weight'"));
}

TEST(Llama, RefusesAMixtureOfExperts) {
  TestGguf gguf = test_llama();
  gguf.set_number("llama.expert_count", 8);
  const Error error = load_error(gguf);
  EXPECT_EQ(error.code, ErrorCode::unsupported);
  EXPECT_EQ(error.message, "'test.gguf' is a mixture of experts, which cannot be run yet");
  gguf.set_number("llama.expert_count", 0);
  EXPECT_TRUE(load_model(OpenedGguf(gguf).file).ok());
}

TEST(Llama, RefusesToTurnAPartOfAHeadOnly) {
  TestGguf gguf = test_llama();
  gguf.set_number("llama.rope.dimension_count", 16);
  const Error error = load_error(gguf);
  EXPECT_EQ(error.code, ErrorCode::unsupported);
  EXPECT_TRUE(contains(error.message, "rotates 16 of 32 dims of a head"));
  gguf.set_number("llama.rope.dimension_count", 32);
  EXPECT_TRUE(load_model(OpenedGguf(gguf).file).ok());
}

}  // namespace
}  // namespace headrace
