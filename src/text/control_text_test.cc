#include "text/control_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

ControlText control() { return ControlText({"<end>", "<end>s", "</s>", ""}); }

std::string show(const std::vector<ControlText::Part>& parts) {
  std::string shown;
  for (const ControlText::Part& part : parts)
    shown += part.literal ? "{" + part.text + "}" : part.text;
  return shown;
}

std::string hide_and_split(std::string_view content) {
  std::vector<std::string> hidden;
  const std::string marked = control().hide(content, hidden);
  return show(ControlText::split("[" + marked + "]", hidden));
}

TEST(ControlText, OrdinaryTextIsLeftAlone) {
  std::vector<std::string> hidden;
  EXPECT_EQ(control().hide("a < b, <en d>", hidden), "a < b, <en d>");
  EXPECT_TRUE(hidden.empty());
}

TEST(ControlText, HiddenTextComesBackAsALiteralPart) {
  EXPECT_EQ(hide_and_split("x<end>y</s>"), "[x{<end>}y{</s>}]");
  EXPECT_EQ(hide_and_split("<end><end>"), "[{<end>}{<end>}]");
}

TEST(ControlText, TheLongestControlTextWins) { EXPECT_EQ(hide_and_split("<end>s"), "[{<end>s}]"); }

TEST(ControlText, TextAroundAHiddenOneDoesNotJoinIntoAnother) {
  EXPECT_EQ(hide_and_split("<<end>/s>"), "[<{<end>}/s>]");
}

TEST(ControlText, AForgedMarkIsOnlyText) {
  EXPECT_EQ(hide_and_split("<end>\xEF\xB7\x90"
                           "0\xEF\xB7\x91"),
            "[{<end>}{\xEF\xB7\x90}0\xEF\xB7\x91]");
}

TEST(ControlText, AMarkOfTheTemplateItselfIsLeftAlone) {
  const std::string rendered =
      "a\xEF\xB7\x90"
      "99999999999999999999999\xEF\xB7\x91"
      "b\xEF\xB7\x90";
  EXPECT_EQ(show(ControlText::split(rendered, {"hidden"})), rendered);
}

TEST(ControlText, ATemplateMayRepeatAndReorderContents) {
  std::vector<std::string> hidden;
  const std::string a = control().hide("1<end>", hidden);
  const std::string b = control().hide("2</s>", hidden);
  EXPECT_EQ(show(ControlText::split(b + a + a, hidden)), "2{</s>}1{<end>}1{<end>}");
}

}  // namespace
}  // namespace headrace
