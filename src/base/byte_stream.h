// Fields of a record, one after the other, little-endian: for what is stored and read back by
// whatever version comes next.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/little_endian.h"

namespace headrace {

class ByteWriter {
 public:
  template <std::unsigned_integral T>
  ByteWriter& number(T value) {
    const std::size_t end = bytes_.size();
    bytes_.resize(end + sizeof(T));
    store(bytes_, end, value);
    return *this;
  }
  ByteWriter& digest(const Digest128& value) { return number(value.low).number(value.high); }
  /// Its length first.
  ByteWriter& text(std::string_view text) {
    number(static_cast<std::uint32_t>(text.size()));
    const Bytes bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Bytes bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads what a ByteWriter wrote. Whatever the bytes are, it never reads beyond them: a field that
/// is not there is 0 or empty, and ok() is false from then on.
class ByteReader {
 public:
  explicit ByteReader(Bytes bytes) : bytes_(bytes) {}

  template <std::unsigned_integral T>
  T number() {
    const Bytes field = take(sizeof(T));
    return field.empty() ? T{0} : load<T>(field, 0);
  }
  Digest128 digest() {
    const auto low = number<std::uint64_t>();
    return {.low = low, .high = number<std::uint64_t>()};
  }
  std::string text() {
    const Bytes field = take(number<std::uint32_t>());
    return {reinterpret_cast<const char*>(field.data()), field.size()};
  }
  /// The number of elements that follow, each of `element_bytes`.
  std::uint32_t count(std::size_t element_bytes) {
    const auto count = number<std::uint32_t>();
    if (count > bytes_.size() / element_bytes) ok_ = false;
    return ok_ ? count : 0;
  }

  bool ok() const { return ok_; }
  /// Everything was read, and nothing was missing.
  bool at_end() const { return ok_ && bytes_.empty(); }

 private:
  Bytes take(std::size_t size) {
    if (size > bytes_.size()) ok_ = false;
    if (!ok_) return {};
    const Bytes field = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return field;
  }

  Bytes bytes_;
  bool ok_ = true;
};

}  // namespace headrace
