#include "text/test_model.h"

#include <cstdlib>
#include <memory>

namespace headrace {

void TestWithModel::SetUp() {
  const char* path = std::getenv("HEADRACE_TEST_MODEL");
  if (path == nullptr || *path == '\0') GTEST_SKIP() << "HEADRACE_TEST_MODEL is not set";
  model_path = path;
  static std::unique_ptr<Vocabulary> loaded;
  if (loaded == nullptr) {
    auto result = Vocabulary::load(model_path);
    ASSERT_TRUE(result.ok()) << result.error().message;
    loaded = std::move(result).value();
  }
  vocabulary = loaded.get();
}

std::string TestWithModel::text_of(std::span<const TokenId> tokens) const {
  std::string text;
  for (const TokenId token : tokens) text += vocabulary->token_bytes(token);
  return text;
}

namespace {

TEST_F(TestWithModel, HasTheVocabularyThatTestsExpect) {
  EXPECT_EQ(vocabulary->size(), 49152U);
  EXPECT_TRUE(vocabulary->has_chat_template());
}

}  // namespace
}  // namespace headrace
