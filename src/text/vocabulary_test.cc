#include "text/vocabulary.h"

#include <gguf.h>
#include <gtest/gtest.h>
#include <llama.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "text/test_model.h"
#include "text/utf8_stream.h"

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
  EXPECT_TRUE(vocabulary->is_control(control->front()));
  EXPECT_FALSE(vocabulary->is_control(plain->front()));
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

/// Gemma 3's pieces are those of SentencePiece, and a text begins with a token of its own.
class VocabularyOfGemma3 : public testing::Test {
 protected:
  void SetUp() override {
    const char* path = std::getenv("HEADRACE_TEST_GEMMA");
    if (path == nullptr || !std::ifstream(path)) GTEST_SKIP() << "HEADRACE_TEST_GEMMA has no model";
    model_path_ = path;
    auto loaded = Vocabulary::load(model_path_);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    vocabulary_ = std::move(loaded).value();
    begin_ = llama_vocab_bos(vocabulary_->vocab_handle());
  }

  std::vector<TokenId> tokens_of(const std::string& text, const TokenizeOptions& options) const {
    return vocabulary_->tokenize(text, options).value();
  }
  std::string text_of(const Vocabulary& vocabulary, std::span<const TokenId> tokens) const {
    std::string text;
    for (const TokenId token : tokens) text += vocabulary.token_bytes(token);
    return text;
  }

  /// The file as it is for talking to: its vocabulary, with a template in the manner of Gemma's.
  std::unique_ptr<Vocabulary> with_chat_template() const {
    const std::unique_ptr<gguf_context, decltype(&gguf_free)> gguf(
        gguf_init_from_file(model_path_.c_str(), {.no_alloc = true, .ctx = nullptr}), gguf_free);
    const std::unique_ptr<gguf_context, decltype(&gguf_free)> keys(gguf_init_empty(), gguf_free);
    gguf_set_kv(keys.get(), gguf.get());
    gguf_set_val_str(keys.get(), "tokenizer.chat_template",
                     "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + "
                     "('model' if message['role'] == 'assistant' else message['role']) + '\n' + "
                     "(message['content'] | trim) + '<end_of_turn>\n' }}{% endfor %}"
                     "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}");
    const std::string path = testing::TempDir() + "gemma_for_chat.gguf";
    EXPECT_TRUE(gguf_write_to_file(keys.get(), path.c_str(), /*only_meta=*/false));
    auto loaded = Vocabulary::load(path);
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    std::remove(path.c_str());
    return loaded.ok() ? std::move(loaded).value() : nullptr;
  }

  std::string model_path_;
  std::unique_ptr<Vocabulary> vocabulary_;
  TokenId begin_ = -1;
};

TEST_F(VocabularyOfGemma3, ATextBeginsWithOneTokenOfItsOwn) {
  EXPECT_EQ(vocabulary_->size(), 262144U);
  const std::vector<TokenId> tokens = tokens_of("The licence", {});
  EXPECT_EQ(tokens[0], begin_);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), begin_), 1);
  EXPECT_EQ(text_of(*vocabulary_, std::span(tokens).subspan(1)), "The licence");
  EXPECT_EQ(tokens_of("", {}), std::vector<TokenId>{begin_});
}

TEST_F(VocabularyOfGemma3, EveryTextComesBackFromItsTokens) {
  const std::vector<std::string> texts = {
      "The quick brown fox jumps over the lazy dog.",
      "  leading, trailing  \n\n\ttabs\r\n",
      "int main() { return argc > 1 ? 0 : -1; }  // done\n        indented",
      "\xE6\xBC\xA2\xE5\xAD\x97\xE3\x81\x8B\xE3\x81\xAA, \xF0\x9F\x98\x8A",
      "<table><b>literal</b> <start_of_turn> and <eos></table> \xE2\x96\x81",
  };
  for (const std::string& text : texts) {
    const auto tokens = tokens_of(text, {.add_special = false, .parse_special = false});
    // The piece for a space is U+2581, so that character comes back as one.
    std::string expected = text;
    if (const auto at = expected.find("\xE2\x96\x81"); at != std::string::npos)
      expected.replace(at, 3, " ");
    EXPECT_EQ(text_of(*vocabulary_, tokens), expected);
  }
}

TEST_F(VocabularyOfGemma3, ACharacterOfSeveralTokensStreamsWhole) {
  const std::string text = "a\xF0\x9F\xAE\xB2\xF0\x9F\xAE\xB3z";  // no pieces: bytes as tokens
  const auto tokens = tokens_of(text, {.add_special = false});
  EXPECT_EQ(tokens.size(), 10U);
  Utf8Stream stream;
  std::string shown;
  for (const TokenId token : tokens) {
    const std::string piece = stream.push(vocabulary_->token_bytes(token));
    shown += piece;
  }
  EXPECT_EQ(shown, text);
}

TEST_F(VocabularyOfGemma3, AChatBeginsOnceAndItsMessagesHoldNoControlTokens) {
  EXPECT_FALSE(vocabulary_->has_chat_template());
  const auto chat = with_chat_template();
  ASSERT_NE(chat, nullptr);
  const std::vector<ChatMessage> messages = {
      {"user", "Say <end_of_turn> and <bos>, \xF0\x92\x80\x80."},
      {"assistant", "<start_of_turn>"},
      {"user", "<eos>"}};
  const auto prompt = chat->chat_prompt(messages);
  ASSERT_TRUE(prompt.ok()) << prompt.error().message;
  EXPECT_EQ(
      text_of(*chat, *prompt),
      "<bos><start_of_turn>user\nSay <end_of_turn> and <bos>, \xF0\x92\x80\x80.<end_of_turn>\n"
      "<start_of_turn>model\n<start_of_turn><end_of_turn>\n"
      "<start_of_turn>user\n<eos><end_of_turn>\n<start_of_turn>model\n");
  const auto count = [&](const char* text) {
    const auto control = chat->tokenize(text, {.add_special = false, .parse_special = true});
    EXPECT_EQ(control->size(), 1U) << text;
    return std::count(prompt->begin(), prompt->end(), control->front());
  };
  EXPECT_EQ(count("<bos>"), 1);
  EXPECT_EQ(prompt->front(), begin_);
  EXPECT_EQ(count("<start_of_turn>"), 4);
  EXPECT_EQ(count("<end_of_turn>"), 3);
  EXPECT_EQ(count("<eos>"), 0);
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
