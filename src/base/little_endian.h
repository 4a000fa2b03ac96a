// Numbers in file formats: little-endian, at any offset.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/hash.h"

namespace headrace {

template <std::unsigned_integral T>
void store(MutableBytes out, std::size_t offset, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    out[offset + i] = static_cast<std::byte>(value >> (8 * i));
  }
}

inline void store(MutableBytes out, std::size_t offset, const Digest128& value) {
  store(out, offset, value.low);
  store(out, offset + 8, value.high);
}

template <std::unsigned_integral T>
T load(Bytes in, std::size_t offset) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= std::to_integer<std::uint64_t>(in[offset + i]) << (8 * i);
  }
  return static_cast<T>(value);
}

inline Digest128 load_digest(Bytes in, std::size_t offset) {
  return {.low = load<std::uint64_t>(in, offset), .high = load<std::uint64_t>(in, offset + 8)};
}

}  // namespace headrace
