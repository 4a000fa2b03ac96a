#include "base/bytes.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <optional>

namespace headrace {
namespace {

constexpr std::array<const char*, 5> kBinaryUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::string_view take_digits(std::string_view& text) {
  std::size_t length = 0;
  while (length < text.size() && is_digit(text[length])) ++length;
  const std::string_view digits = text.substr(0, length);
  text.remove_prefix(length);
  return digits;
}

// "", "b", "k", "kb", "kib", ... in any case. 0 means that there is no such unit.
std::uint64_t unit_bytes(std::string_view unit) {
  std::string name;
  for (const char c : unit) {
    name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (name.empty() || name == "b") return 1;
  const std::size_t power = std::string_view("kmgt").find(name[0]);
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = std::string_view(name).substr(1);
  if (!rest.empty() && rest != "b" && rest != "ib") return 0;
  const std::uint64_t step = rest == "b" ? 1000 : 1024;
  std::uint64_t bytes = step;
  for (std::size_t i = 0; i < power; ++i) bytes *= step;
  return bytes;
}

// Whole bytes of `digits` units; nullopt when that does not fit 64 bits.
std::optional<std::uint64_t> whole_bytes(std::string_view digits, std::uint64_t unit) {
  std::uint64_t count = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  std::uint64_t bytes = 0;
  if (parsed.ec != std::errc() || __builtin_mul_overflow(count, unit, &bytes)) return std::nullopt;
  return bytes;
}

// Bytes of 0.`digits` units, rounded down. At most six digits, so that the product with 2^40 fits
// 64 bits.
std::uint64_t fraction_bytes(std::string_view digits, std::uint64_t unit) {
  std::uint64_t numerator = 0;
  std::uint64_t denominator = 1;
  for (const char c : digits) {
    numerator = numerator * 10 + static_cast<std::uint64_t>(c - '0');
    denominator *= 10;
  }
  return numerator * unit / denominator;
}

Error not_a_byte_count(std::string_view text) {
  return Error{ErrorCode::invalid_argument, "'" + std::string(text) +
                                                "' is not an amount of bytes; write for example "
                                                "4096, 512k, 64MiB or 1.5GiB"};
}

}  // namespace

Result<std::uint64_t> parse_byte_count(std::string_view text) {
  std::string_view rest = trim(text);
  const std::string_view whole = take_digits(rest);
  std::string_view fraction;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    fraction = take_digits(rest);
    if (fraction.empty() || fraction.size() > 6) return not_a_byte_count(text);
  }
  const std::uint64_t unit = unit_bytes(trim(rest));
  const bool fraction_of_a_byte = unit == 1 && !fraction.empty();
  if (whole.empty() || unit == 0 || fraction_of_a_byte) return not_a_byte_count(text);

  const std::optional<std::uint64_t> bytes = whole_bytes(whole, unit);
  std::uint64_t sum = 0;
  if (!bytes || __builtin_add_overflow(*bytes, fraction_bytes(fraction, unit), &sum)) {
    return Error{ErrorCode::invalid_argument,
                 "'" + std::string(text) + "' is more bytes than 64 bits can count"};
  }
  return sum;
}

std::string format_byte_count(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.5 would be shown as "1024": the next unit says it better.
  while (value >= 1023.5 && unit + 1 < kBinaryUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  std::array<char, 32> digits;
  std::snprintf(digits.data(), digits.size(), "%.*f", decimals, value);
  std::string shown = digits.data();
  if (decimals > 0) {
    shown.erase(shown.find_last_not_of('0') + 1);
    if (shown.back() == '.') shown.pop_back();
  }
  return shown + " " + kBinaryUnits[unit];
}

}  // namespace headrace
