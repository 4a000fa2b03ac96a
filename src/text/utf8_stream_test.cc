#include "text/utf8_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace headrace {
namespace {

std::string push_in_pieces(std::string_view text, std::size_t piece_bytes) {
  Utf8Stream stream;
  std::string joined;
  for (std::size_t at = 0; at < text.size(); at += piece_bytes) {
    joined += stream.push(text.substr(at, piece_bytes));
  }
  stream.finish();
  return joined;
}

constexpr std::string_view mixed =
    "plain, \xC3\xA9t\xC3\xA9, \xE6\xBC\xA2\xE5\xAD\x97, \xF0\x9F\x98\x8A!";

TEST(Utf8Stream, PiecesOfAnySizeJoinToTheWhole) {
  for (std::size_t piece_bytes = 1; piece_bytes <= mixed.size(); ++piece_bytes) {
    EXPECT_EQ(push_in_pieces(mixed, piece_bytes), mixed) << piece_bytes;
  }
}

TEST(Utf8Stream, HoldsBackACharacterUntilItIsComplete) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0"), "a");
  EXPECT_EQ(stream.push("\x9F"), "");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x8A"
                        "b"),
            "\xF0\x9F\x98\x8A"
            "b");
}

// Case A16: the token limit may end the text inside a character.
TEST(Utf8Stream, ATextCutInsideACharacterEndsBeforeItWithoutAMark) {
  const std::string emoji = "\xF0\x9F\x98\x8A\xF0\x9F\x98\x8A";
  for (std::size_t cut = 0; cut <= emoji.size(); ++cut) {
    const std::string shown = push_in_pieces(std::string_view(emoji).substr(0, cut), 1);
    EXPECT_EQ(shown, emoji.substr(0, cut / 4 * 4)) << cut;
  }
}

TEST(Utf8Stream, FinishForgetsTheIncompleteCharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xE6\xBC"), "");
  stream.finish();
  EXPECT_EQ(stream.push("x"), "x");
}

TEST(Utf8Stream, BytesThatCannotBeUtf8BecomeOneMarkPerBrokenCharacter) {
  struct Case {
    std::string bytes, shown;
  };
  const std::string mark = "\xEF\xBF\xBD";
  const std::vector<Case> cases = {
      {"a\x80z", "a" + mark + "z"},                            // a continuation without a start
      {"a\xFFz", "a" + mark + "z"},                            // never valid
      {"\xC0\xAFz", mark + mark + "z"},                        // overlong
      {"\xE0\x80\x80z", mark + mark + mark + "z"},             // overlong
      {"\xED\xA0\x80z", mark + mark + mark + "z"},             // surrogate
      {"\xF4\x90\x80\x80z", mark + mark + mark + mark + "z"},  // above U+10FFFF
      {"\xF0\x9F\x98z", mark + "z"},                           // cut short
      {"\xE6\xBC\xE6\xBC\xA2", mark + "\xE6\xBC\xA2"},         // cut short by the next one
  };
  for (const Case& c : cases) {
    EXPECT_EQ(push_in_pieces(c.bytes, c.bytes.size()), c.shown);
    EXPECT_EQ(push_in_pieces(c.bytes, 1), c.shown);
  }
}

TEST(Utf8Stream, RandomBytesGiveTheSameTextInAnyPieces) {
  const unsigned seed = 20240611;
  SCOPED_TRACE("seed=" + std::to_string(seed));
  std::mt19937 random(seed);  // NOLINT(bugprone-random-generator-seed): repeatable
  for (int round = 0; round < 500; ++round) {
    std::string bytes(random() % 40, '\0');
    for (char& byte : bytes)
      byte = static_cast<char>(random() % 2 ? random() % 256 : 0x80 + random() % 0x75);
    const std::string whole = push_in_pieces(bytes, bytes.size() + 1);
    for (std::size_t piece_bytes : {1U, 2U, 3U, 5U}) {
      EXPECT_EQ(push_in_pieces(bytes, piece_bytes), whole);
    }
  }
}

}  // namespace
}  // namespace headrace
