#include "cli/line_chart.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace headrace {
namespace {

LineChart example() {
  return {.title = "Speed <&>",
          .x_label = "tokens",
          .y_label = "per second",
          .series = {{"one", {{512, 2500}, {2048, 1800}}}, {"other", {{512, 450}, {8192, 300}}}}};
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

/// The number that follows `name="` from `at` on.
double attribute(const std::string& svg, const std::string& name, std::size_t at) {
  return std::stod(svg.substr(svg.find(name + "=\"", at) + name.size() + 2));
}

/// Every element that is opened is closed, in order; attributes are quoted.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (std::size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const std::size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    EXPECT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    const std::string name = tag.substr(tag[0] == '/' ? 1 : 0, tag.find(' '));
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty()) << tag;
      EXPECT_EQ(open.back(), name);
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(LineChart, IsAWellFormedDocument) {
  const std::string svg = to_svg(example());
  expect_well_formed(svg);
  EXPECT_EQ(svg.find("<svg xmlns=\"http://www.w3.org/2000/svg\""), 0U);
  EXPECT_NE(svg.find("Speed &lt;&amp;>"), std::string::npos);
}

TEST(LineChart, DrawsALineAndALegendForEachSeries) {
  const std::string svg = to_svg(example());
  EXPECT_EQ(count(svg, "<polyline"), 2U);
  EXPECT_EQ(count(svg, "<circle"), 4U);
  for (const char* text : {">one<", ">other<", ">tokens<", ">per second<", ">512<", ">2,048<",
                           ">8,192<", ">2,500<", ">0<"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
}

TEST(LineChart, PlacesPointsByPowersOfTwoAndFromZeroOn) {
  const std::string svg = to_svg(example());
  std::vector<double> x, y;
  for (std::size_t at = svg.find("<circle"); at != std::string::npos;
       at = svg.find("<circle", at + 1)) {
    x.push_back(attribute(svg, "cx", at));
    y.push_back(attribute(svg, "cy", at));
  }
  ASSERT_EQ(x.size(), 4U);
  EXPECT_EQ(x[0], x[2]);
  EXPECT_NEAR(x[1], (x[0] + x[3]) / 2, 0.1) << "2048 is half way from 512 to 8192";
  EXPECT_LT(y[0], y[1]) << "more is higher";
  EXPECT_NEAR((y[1] - y[0]) / (y[2] - y[0]), 700.0 / 2050, 0.01);
}

TEST(LineChart, HasRoomForOnePointAndForNothing) {
  LineChart chart = example();
  chart.series = {{"one", {{512, 0}}}};
  expect_well_formed(to_svg(chart));
  EXPECT_EQ(to_svg(chart).find("nan"), std::string::npos);
}

}  // namespace
}  // namespace headrace
