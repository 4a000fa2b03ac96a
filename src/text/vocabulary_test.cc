#include "text/vocabulary.h"

#include <gtest/gtest.h>
#include <llama.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "text/test_model.h"

namespace headrace {
namespace {

using VocabularyOfSmolLm2 = TestWithModel;

// llama.cpp writes to the process's standard error, so that is what a silence test has to look at.
std::string stderr_of(const std::function<void()>& action) {
  testing::internal::CaptureStderr();
  action();
  return testing::internal::GetCapturedStderr();
}

TEST_F(VocabularyOfSmolLm2, EveryTextComesBackFromItsTokens) {
  const std::vector<std::string> texts = {
      "",
      "The quick brown fox jumps over the lazy dog.",
      "  leading, trailing  \n\n\ttabs\r\n",
      "int main() { return argc > 1 ? 0 : -1; }  // done\n    indented",
      "\xF0\x9F\x98\x8A\xF0\x9F\x98\x8A and \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x94\xAC",
      "\xE6\xBC\xA2\xE5\xAD\x97\xE3\x81\x8B\xE3\x81\xAA, \xEA\xB0\x80, \xD8\xB9\xD8\xB1\xD8\xA8",
      "3.14159 + 2e-7 = ?",
      "literal <|im_start|> and <|endoftext|>",
  };
  for (const std::string& text : texts) {
    for (const bool parse_special : {false, true}) {
      const auto tokens =
          vocabulary->tokenize(text, {.add_special = false, .parse_special = parse_special});
      ASSERT_TRUE(tokens.ok()) << tokens.error().message;
      EXPECT_EQ(text_of(*tokens), text);
    }
  }
}

TEST_F(VocabularyOfSmolLm2, ControlTokensAreReadFromTextOnlyOnRequest) {
  const auto plain =
      vocabulary->tokenize("<|im_end|>", {.add_special = false, .parse_special = false});
  const auto control =
      vocabulary->tokenize("<|im_end|>", {.add_special = false, .parse_special = true});
  EXPECT_GT(plain->size(), 1U);
  ASSERT_EQ(control->size(), 1U);
  EXPECT_TRUE(vocabulary->is_end_of_generation(control->front()));
  EXPECT_TRUE(std::none_of(plain->begin(), plain->end(),
                           [&](TokenId token) { return vocabulary->is_end_of_generation(token); }));
}

TEST_F(VocabularyOfSmolLm2, ALongTextWithManyTokensPerByteFits) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "7\xC2\xB2";
  const auto tokens = vocabulary->tokenize(text, {.add_special = false});
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(text_of(*tokens), text);
}

TEST_F(VocabularyOfSmolLm2, LoadingWritesNothingToStandardError) {
  EXPECT_EQ(stderr_of([&] {
              const auto again = Vocabulary::load(model_path);
              EXPECT_TRUE(again.ok());
              EXPECT_EQ((*again)->size(), 49152U);
            }),
            "");
}

TEST_F(VocabularyOfSmolLm2, ACutFileIsCorruptAndSaysWhyInOneLine) {
  std::ifstream whole(model_path, std::ios::binary);
  std::string head(1 << 20, '\0');
  whole.read(head.data(), static_cast<std::streamsize>(head.size()));
  const std::string path = testing::TempDir() + "headrace_cut.gguf";
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{3}, std::size_t{97}, std::size_t{5000}, head.size()}) {
    std::ofstream(path, std::ios::binary).write(head.data(), static_cast<std::streamsize>(bytes));
    EXPECT_EQ(stderr_of([&] {
                const auto result = Vocabulary::load(path);
                ASSERT_FALSE(result.ok()) << bytes;
                EXPECT_EQ(result.error().code, ErrorCode::corrupt) << bytes;
                EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
                EXPECT_NE(result.error().message.find(path), std::string::npos);
              }),
              "");
  }
  std::remove(path.c_str());
}

TEST(Vocabulary, AMissingFileIsNotFoundWithoutNoise) {
  EXPECT_EQ(stderr_of([] {
              const auto result = Vocabulary::load("/nowhere/model.gguf");
              ASSERT_FALSE(result.ok());
              EXPECT_EQ(result.error().code, ErrorCode::not_found) << result.error().message;
            }),
            "");
}

}  // namespace
}  // namespace headrace
