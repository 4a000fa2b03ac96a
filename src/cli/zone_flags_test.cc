#include "cli/zone_flags.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

std::vector<TokenId> tokens_of(std::string_view text) {
  return FakeEngine().tokenize(text, {}).value();
}

TEST(ZoneSpans, OfATextAreAllThatHoldAByteOfIt) {
  const FakeEngine engine;
  const std::vector<TokenId> tokens = tokens_of("xaby.ab.bya");  // "ab" is one token
  EXPECT_EQ(spans_of_text(engine, tokens, "by"), (std::vector<TokenSpan>{{1, 2}, {6, 2}}));
  EXPECT_EQ(spans_of_text(engine, tokens, "ab."), (std::vector<TokenSpan>{{4, 2}}));
  EXPECT_EQ(spans_of_text(engine, tokens, "xab"), (std::vector<TokenSpan>{{0, 2}}));
  EXPECT_TRUE(spans_of_text(engine, tokens, "xx").empty());
  EXPECT_TRUE(spans_of_text(engine, tokens, "").empty());
  EXPECT_EQ(spans_of_text(engine, tokens_of("1111"), "11"),
            (std::vector<TokenSpan>{{0, 2}, {2, 2}}));
}

TEST(ZoneSpans, OfRolesAreControlTokensWithAWordBehindThem) {
  const FakeEngine engine;
  std::vector<TokenId> tokens = {FakeEngine::start_token, 'u', '\n', 'H', 'i'};
  tokens.push_back(FakeEngine::end_token);
  tokens.push_back(FakeEngine::start_token);
  for (const char c : std::string("assistant\n")) tokens.push_back(c);
  tokens.push_back(FakeEngine::end_token);
  EXPECT_EQ(spans_of_roles(engine, tokens),
            (std::vector<TokenSpan>{{0, 3}, {5, 1}, {6, 4}, {17, 1}}));
}

using Zones = CommandTest;

std::vector<std::pair<std::uint32_t, std::uint32_t>> zones_of(const std::vector<TokenSpan>& spans) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> zones;
  for (const TokenSpan& span : spans) zones.emplace_back(span.first, span.count);
  return zones;
}

TEST_F(Zones, OfRunAreTheTextsOfKeepInThePrompt) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> zones;
  prepare = [&](FakeEngine& engine, int) {
    engine.fill_logits = [&](std::vector<float>&, std::span<const TokenId>) {
      zones = engine.zones;
    };
  };
  EXPECT_EQ(run({"run", "-m", "m", "--raw", "-p", "one two one", "--attention", "window", "--keep",
                 "one", "--keep", "two"}),
            exit_ok);
  EXPECT_EQ(zones, zones_of({{0, 3}, {8, 3}, {4, 3}}));
  EXPECT_EQ(run({"run", "-m", "m", "-p", "one", "--attention", "recall", "--keep-roles"}), exit_ok);
  EXPECT_EQ(zones, zones_of({{0, 4}, {9, 1}, {10, 4}})) << "user, its end, assistant";
  EXPECT_EQ(run({"run", "-m", "m", "-p", "one", "--attention", "sparse"}), exit_ok);
  EXPECT_TRUE(zones.empty());
}

TEST_F(Zones, OfATextThatIsNotInThePromptAreAnError) {
  for (const std::string template_use : {"--raw", "--chat"}) {
    EXPECT_EQ(run({"run", "-m", "m", template_use, "-p", "one two", "--attention", "window",
                   "--keep", "three"}),
              exit_usage);
    EXPECT_NE(err.str().find("--keep 'three' is not in the prompt"), std::string::npos);
    err.str("");
  }
}

TEST_F(Zones, ChangeNothingInExactAttention) {
  EXPECT_EQ(run({"run", "-m", "m", "-p", "one", "--keep", "one"}), exit_usage);
  EXPECT_NE(err.str().find("--keep changes nothing with --attention exact"), std::string::npos);
  EXPECT_EQ(run({"chat", "-m", "m", "--keep-roles"}), exit_usage);
}

TEST_F(Zones, OfAChatAreThoseOfEachTurn) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> zones;
  prepare = [&](FakeEngine& engine, int) {
    engine.answers = {bytes("A."), bytes("B.")};
    engine.fill_logits = [&](std::vector<float>&, std::span<const TokenId>) {
      zones = engine.zones;
    };
  };
  in.str("x\nred\n");
  EXPECT_EQ(run({"chat", "-m", "m", "--attention", "window", "--keep", "red"}), exit_ok);
  const std::vector<ChatMessage> messages = {{"user", "x"}, {"assistant", "A."}, {"user", "red"}};
  const FakeEngine engine;
  EXPECT_EQ(zones, zones_of(spans_of_text(engine, *engine.chat_prompt(messages), "red")));
  EXPECT_EQ(zones.size(), 1U);
}

}  // namespace
}  // namespace headrace
