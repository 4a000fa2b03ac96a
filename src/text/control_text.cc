#include "text/control_text.h"

#include <algorithm>
#include <charconv>
#include <cstddef>

namespace headrace {
namespace {

// Two of the code points that Unicode keeps out of text interchange for good. Where a content has
// one all the same it is hidden too, so a mark in the rendered prompt is always one of ours.
constexpr std::string_view mark_open = "\xEF\xB7\x90";   // U+FDD0
constexpr std::string_view mark_close = "\xEF\xB7\x91";  // U+FDD1

}  // namespace

ControlText::ControlText(std::vector<std::string> control_texts)
    : control_texts_(std::move(control_texts)) {
  control_texts_.emplace_back(mark_open);
  std::erase_if(control_texts_, [](const std::string& text) { return text.empty(); });
  std::sort(control_texts_.begin(), control_texts_.end(),
            [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
}

std::string_view ControlText::longest_at(std::string_view text) const {
  for (const std::string& control : control_texts_) {
    if (text.starts_with(control)) return control;
  }
  return {};
}

std::string ControlText::hide(std::string_view content, std::vector<std::string>& hidden) const {
  std::string first_bytes;
  for (const std::string& control : control_texts_) {
    if (first_bytes.find(control[0]) == std::string::npos) first_bytes += control[0];
  }
  std::string result;
  result.reserve(content.size());
  while (!content.empty()) {
    const std::size_t plain = std::min(content.find_first_of(first_bytes), content.size());
    result += content.substr(0, plain);
    content.remove_prefix(plain);
    if (content.empty()) break;
    const std::string_view control = longest_at(content);
    if (control.empty()) {
      result += content[0];
      content.remove_prefix(1);
    } else {
      result.append(mark_open).append(std::to_string(hidden.size())).append(mark_close);
      hidden.emplace_back(control);
      content.remove_prefix(control.size());
    }
  }
  return result;
}

std::vector<ControlText::Part> ControlText::split(std::string_view rendered,
                                                  const std::vector<std::string>& hidden) {
  std::vector<Part> parts;
  const auto add = [&](std::string_view text, bool literal) {
    if (!text.empty()) parts.push_back({std::string(text), literal});
  };
  std::size_t done = 0;
  for (std::size_t open = 0; (open = rendered.find(mark_open, open)) != std::string_view::npos;) {
    const std::size_t digits = open + mark_open.size();
    std::size_t index = 0;
    const auto [end, error] =
        std::from_chars(rendered.data() + digits, rendered.data() + rendered.size(), index);
    const auto close = static_cast<std::size_t>(end - rendered.data());
    if (error != std::errc() || index >= hidden.size() ||
        !rendered.substr(close).starts_with(mark_close)) {
      open = digits;  // a template that writes U+FDD0 itself
      continue;
    }
    add(rendered.substr(done, open - done), false);
    add(hidden[index], true);
    open = done = close + mark_close.size();
  }
  add(rendered.substr(done), false);
  return parts;
}

}  // namespace headrace
