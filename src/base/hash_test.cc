#include "base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

namespace headrace {
namespace {

Bytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 131 + (i >> 8));
  return bytes;
}

// Digests are written to disk, so the values may never change. These are those of XXH3-128 itself.
TEST(HashBytes, IsXxh3) {
  EXPECT_EQ(to_hex(hash_bytes({})), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(to_hex(hash_bytes(bytes_of("abc"))), "06b05ab6733a618578af5f94892f3950");
}

TEST(HashBytes, SeesEveryFlippedBitOfAPage) {
  std::vector<std::byte> page = pattern(4096);
  const Digest128 before = hash_bytes(page);
  for (std::size_t i = 0; i < page.size(); ++i) {
    const std::byte bit = std::byte{1} << (i % 8);
    page[i] ^= bit;
    EXPECT_NE(hash_bytes(page), before) << i;
    page[i] ^= bit;
  }
  EXPECT_EQ(hash_bytes(page), before);
}

TEST(HashBytes, DoesNotDependOnAlignment) {
  const std::vector<std::byte> page = pattern(100'000);
  const Digest128 aligned = hash_bytes(page);
  for (std::size_t shift : {1U, 7U, 33U}) {
    std::vector<std::byte> room(shift + page.size());
    std::copy(page.begin(), page.end(), room.begin() + static_cast<std::ptrdiff_t>(shift));
    EXPECT_EQ(hash_bytes(Bytes(room).subspan(shift)), aligned);
  }
}

TEST(ToHex, Writes32Digits) {
  EXPECT_EQ(to_hex({.low = 0xab, .high = 1}), "000000000000000100000000000000ab");
}

TEST(Hasher, FramesFieldsByTheirLength) {
  const Digest128 one = Hasher().field(bytes_of("ab")).field(bytes_of("c")).finish();
  const Digest128 other = Hasher().field(bytes_of("a")).field(bytes_of("bc")).finish();
  const Digest128 with_empty =
      Hasher().field(bytes_of("ab")).field({}).field(bytes_of("c")).finish();
  EXPECT_NE(one, other);
  EXPECT_NE(one, with_empty);
  EXPECT_EQ(one, Hasher().field(bytes_of("ab")).field(bytes_of("c")).finish());
}

TEST(Hasher, IsTheHashOfLengthsAndFieldsInARow) {
  const std::vector<std::byte> field = pattern(5000);
  const std::uint64_t length = field.size();
  std::vector<std::byte> framed(sizeof(length) + field.size());
  std::memcpy(framed.data(), &length, sizeof(length));
  std::copy(field.begin(), field.end(), framed.begin() + sizeof(length));
  EXPECT_EQ(Hasher().field(field).finish(), hash_bytes(framed));
}

TEST(Hasher, TakesValuesAndGoesOnAfterFinish) {
  Hasher hasher;
  hasher.value(std::uint32_t{7});
  const Digest128 first = hasher.finish();
  EXPECT_EQ(first, hasher.finish());
  EXPECT_NE(first, hasher.value(std::uint32_t{8}).finish());
  EXPECT_NE(first, Hasher().value(std::uint64_t{7}).finish());
}

}  // namespace
}  // namespace headrace
