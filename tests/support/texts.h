// Real texts that need no network: what every Debian and every compiler brings along, made up where
// it is missing.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::test {

enum class TextKind {
  licence,        ///< the GNU General Public License
  other_licence,  ///< Mozilla's and Apache's
  code,           ///< C headers of the system
};

std::vector<TextKind> text_kinds();
const char* to_string(TextKind kind);

/// `bytes` bytes of text of that kind, the same at every call. English has near 4 bytes a
/// token and C code near 2.5, so `bytes` >= 6 * tokens is plenty.
std::string text_of(TextKind kind, std::size_t bytes);

/// `bytes` bytes of made-up prose and code, the same at every call.
std::string made_up_text(std::size_t bytes);

}  // namespace headrace::test
