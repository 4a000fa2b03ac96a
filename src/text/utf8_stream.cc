#include "text/utf8_stream.h"

#include <cstddef>
#include <cstdint>

namespace headrace {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";  // U+FFFD

struct Lead {
  std::size_t length;          // bytes of the whole character; 0: no character starts like this
  unsigned char second_first;  // range of the second byte: rules out overlong forms, surrogates and
                               // > U+10FFFF
  unsigned char second_last;
};

constexpr Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  pending_.append(bytes);
  std::string complete;
  complete.reserve(pending_.size());
  std::size_t position = 0;
  while (position < pending_.size()) {
    const Lead lead = lead_of(static_cast<unsigned char>(pending_[position]));
    std::size_t good = lead.length == 0 ? 0 : 1;  // bytes that fit the character so far
    while (good > 0 && good < lead.length && position + good < pending_.size()) {
      const auto byte = static_cast<unsigned char>(pending_[position + good]);
      const unsigned char first = good == 1 ? lead.second_first : 0x80;
      const unsigned char last = good == 1 ? lead.second_last : 0xBF;
      if (byte < first || byte > last) break;
      ++good;
    }
    if (good > 0 && good == lead.length) {
      complete.append(pending_, position, good);
      position += good;
    } else if (good > 0 && position + good == pending_.size()) {
      break;  // may still become a character
    } else {
      // One mark for the bytes that started a character and were cut short, as browsers do it.
      complete.append(replacement);
      position += good > 0 ? good : 1;
    }
  }
  pending_.erase(0, position);
  return complete;
}

}  // namespace headrace
