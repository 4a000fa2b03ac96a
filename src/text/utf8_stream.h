// Utf8Stream: turns token bytes into whole characters. Holds back the bytes of a character until it
// is complete, so that streamed text joined together equals the whole, and no half character is
// ever shown.
#pragma once

#include <string>
#include <string_view>

namespace headrace {

class Utf8Stream {
 public:
  /// Adds bytes and returns the complete characters so far. Bytes that cannot be UTF-8 become
  /// U+FFFD.
  std::string push(std::string_view bytes);
  /// What is left at the end: an incomplete character is dropped (the model never finished it).
  void finish() { pending_.clear(); }

 private:
  std::string pending_;
};

}  // namespace headrace
