#include "base/byte_stream.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

ByteWriter sample() {
  ByteWriter writer;
  writer.number(std::uint8_t{1}).number(std::uint32_t{0x0403'0201}).digest({.low = 5, .high = 6});
  writer.text("seven").number(std::uint64_t{8});
  return writer;
}

TEST(ByteStream, GivesBackWhatWasWritten) {
  const ByteWriter writer = sample();
  ByteReader reader(writer.bytes());
  EXPECT_EQ(reader.number<std::uint8_t>(), 1);
  EXPECT_EQ(reader.number<std::uint32_t>(), 0x0403'0201U);
  EXPECT_EQ(reader.digest(), (Digest128{.low = 5, .high = 6}));
  EXPECT_EQ(reader.text(), "seven");
  EXPECT_FALSE(reader.at_end());
  EXPECT_EQ(reader.number<std::uint64_t>(), 8U);
  EXPECT_TRUE(reader.at_end());
}

TEST(ByteStream, IsLittleEndian) {
  ByteWriter writer;
  writer.number(std::uint16_t{0x0201});
  EXPECT_EQ(writer.bytes()[0], std::byte{1});
  EXPECT_EQ(writer.bytes()[1], std::byte{2});
}

TEST(ByteStream, ACutIsNoticedAndNothingIsReadBeyondIt) {
  const ByteWriter writer = sample();
  for (std::size_t size = 0; size < writer.bytes().size(); ++size) {
    ByteReader reader(writer.bytes().first(size));
    reader.number<std::uint8_t>();
    reader.number<std::uint32_t>();
    reader.digest();
    reader.text();
    EXPECT_EQ(reader.number<std::uint64_t>(), 0U);
    EXPECT_FALSE(reader.ok()) << size;
  }
}

TEST(ByteStream, ACountLargerThanWhatFollowsIsNoCount) {
  ByteWriter writer;
  writer.number(std::uint32_t{0xFFFF'FFFF}).number(std::uint32_t{1});
  ByteReader reader(writer.bytes());
  EXPECT_EQ(reader.count(4), 0U);
  EXPECT_FALSE(reader.ok());
}

}  // namespace
}  // namespace headrace
