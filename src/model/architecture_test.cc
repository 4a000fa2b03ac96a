#include "model/architecture.h"

#include <gtest/gtest.h>

#include "model/test_gguf.h"

namespace headrace {
namespace {

TEST(Architecture, AnUnknownOneIsToldWhichAreKnown) {
  TestGguf gguf = test_llama();
  gguf.set_text("general.architecture", "mamba");
  const OpenedGguf opened(gguf);
  const auto shape = read_model_shape(opened.file);
  ASSERT_FALSE(shape.ok());
  EXPECT_EQ(shape.error().code, ErrorCode::unsupported);
  EXPECT_EQ(shape.error().message,
            "'test.gguf' has the architecture 'mamba', which this version cannot run; it can run: "
            "llama, qwen2, qwen3, gemma3, phi3, granite, smollm3");
  EXPECT_EQ(load_model(opened.file).error().message, shape.error().message);
}

struct BadShape {
  const char* key;
  std::uint32_t value;
  ErrorCode code;
  const char* message;
};

TEST(Architecture, ShapesThatNoKernelCanRunAreRefused) {
  constexpr BadShape cases[] = {
      {"llama.block_count", 0, ErrorCode::corrupt, "a size in its metadata is 0"},
      {"llama.attention.head_count", 0, ErrorCode::corrupt, "a size in its metadata is 0"},
      {"llama.attention.head_count_kv", 0, ErrorCode::corrupt, "a size in its metadata is 0"},
      {"llama.attention.key_length", 0, ErrorCode::corrupt, "a size in its metadata is 0"},
      {"llama.context_length", 0, ErrorCode::corrupt, "a size in its metadata is 0"},
      {"llama.block_count", 5000, ErrorCode::corrupt, "beyond reason"},
      {"llama.attention.head_count", 70000, ErrorCode::corrupt, "beyond reason"},
      {"llama.attention.key_length", 4112, ErrorCode::corrupt, "beyond reason"},
      {"llama.attention.head_count_kv", 3, ErrorCode::unsupported,
       "4 query heads cannot share 3 kv heads evenly"},
      {"llama.attention.head_count_kv", 8, ErrorCode::unsupported,
       "4 query heads cannot share 8 kv heads evenly"},
      {"llama.attention.key_length", 24, ErrorCode::unsupported,
       "heads of 24 are not a multiple of 16"},
      {"llama.embedding_length", 40, ErrorCode::unsupported,
       "widths of 40 and 96 are not multiples of 16"},
      {"llama.feed_forward_length", 100, ErrorCode::unsupported,
       "widths of 64 and 100 are not multiples of 16"},
  };
  for (const BadShape& bad : cases) {
    SCOPED_TRACE(std::string(bad.key) + " = " + std::to_string(bad.value));
    TestGguf gguf = test_llama();
    gguf.set_number(bad.key, bad.value);
    const OpenedGguf opened(gguf);
    const auto shape = read_model_shape(opened.file);
    ASSERT_FALSE(shape.ok());
    EXPECT_EQ(shape.error().code, bad.code);
    EXPECT_TRUE(contains(shape.error().message, bad.message));
    EXPECT_TRUE(contains(shape.error().message, "test.gguf"));
    EXPECT_FALSE(load_model(opened.file).ok());
  }
}

TEST(Architecture, DescribesAModelForPeople) {
  TestGguf gguf = test_llama({.layers = 1, .weights = GGML_TYPE_Q8_0});
  const OpenedGguf opened(gguf);
  const ModelInfo info = describe_model(opened.file, read_model_shape(opened.file).value());
  EXPECT_EQ(info.name, "Tiny");
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_EQ(info.file_bytes, opened.bytes.size());
  EXPECT_EQ(info.layers, 1U);
  EXPECT_EQ(info.head_dim, 32U);
  EXPECT_EQ(info.vocabulary, 50U);
  EXPECT_FALSE(info.has_chat_template);
  EXPECT_EQ(info.window_layers, 0U);
  // Three norms of 64; embedding, q, k, v, o, gate, up and down.
  constexpr std::uint64_t norms = 3 * 64;
  constexpr std::uint64_t matrices = 64 * (50 + 128 + 64 + 64 + 128 + 3 * 96);
  EXPECT_EQ(info.parameters, norms + matrices);
  ASSERT_EQ(info.tensor_bytes_by_type.size(), 2U);
  EXPECT_EQ(info.tensor_bytes_by_type[0].first, "q8_0");
  EXPECT_EQ(info.tensor_bytes_by_type[0].second, matrices / 32 * 34);
  EXPECT_EQ(info.tensor_bytes_by_type[1].first, "f32");
  EXPECT_EQ(info.tensor_bytes_by_type[1].second, norms * 4);
}

TEST(Architecture, SaysHowManyLayersHaveAWindow) {
  TestGguf gguf = test_llama({.architecture = "gemma3", .layers = 7});
  gguf.set_number("gemma3.attention.sliding_window", 24);
  const OpenedGguf opened(gguf);
  const ModelInfo info = describe_model(opened.file, read_model_shape(opened.file).value());
  EXPECT_EQ(info.window, 24U);
  EXPECT_EQ(info.window_layers, 6U);
}

}  // namespace
}  // namespace headrace
