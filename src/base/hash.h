// 128-bit content hashes (XXH3) for checksums and for naming blocks. Not cryptographic: they find
// damage and mix-ups, not an adversary who can write to our files.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "base/bytes.h"

namespace headrace {

struct Digest128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  auto operator<=>(const Digest128&) const = default;
};

/// 32 lower-case hexadecimal digits.
std::string to_hex(const Digest128& digest);

/// Hash of one contiguous range.
Digest128 hash_bytes(Bytes bytes);

/// Hash of several fields in a row. Each field is framed by its length, so ("ab","c") and
/// ("a","bc") differ.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  Hasher& field(Bytes bytes);
  template <typename T>
    requires std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>
  Hasher& value(const T& value) {
    return field(std::as_bytes(std::span(&value, 1)));
  }
  Digest128 finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace
