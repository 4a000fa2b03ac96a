// ControlText: keeps text that looks like a control token ("<|im_end|>") from becoming one. Such
// text is replaced by a mark before a chat template sees it, and put back as plain text when the
// rendered prompt becomes tokens. The rest of the content stays as it is, so templates that look at
// it or trim it behave as always.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

class ControlText {
 public:
  /// A stretch of a rendered prompt. Control tokens are read in what is not `literal`.
  struct Part {
    std::string text;
    bool literal = false;
  };

  /// `control_texts`: the text of each control token.
  explicit ControlText(std::vector<std::string> control_texts);

  /// `content` with every control text replaced by a mark. Marks are numbered; `hidden` keeps what
  /// they stand for.
  std::string hide(std::string_view content, std::vector<std::string>& hidden) const;

  /// Cuts a rendered prompt at its marks.
  static std::vector<Part> split(std::string_view rendered, const std::vector<std::string>& hidden);

 private:
  std::string_view longest_at(std::string_view text) const;
  std::vector<std::string> control_texts_;  // longest first
};

}  // namespace headrace
