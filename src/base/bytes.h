// Views of raw bytes, and amounts of them as people write them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "headrace/result.h"

namespace headrace {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

/// Reads "64MiB", "1.5 GiB", "4096", "512k", "2GB" (1 GB = 10^9, 1 GiB = 2^30, a bare k/M/G/T is
/// binary). Errors: invalid_argument with an example of what is accepted.
Result<std::uint64_t> parse_byte_count(std::string_view text);

/// "23.6 MiB": three significant digits and a binary unit; exact below 1 KiB ("512 B").
std::string format_byte_count(std::uint64_t bytes);

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace headrace
