#include "env/io_cursor.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <vector>

#include "base/bytes.h"

namespace headrace {
namespace {

TEST(IoCursor, HasNothingToDoForEmptyParts) {
  const std::vector<Bytes> parts(3);
  IoCursor<Bytes> cursor(parts);
  EXPECT_EQ(cursor.remaining_bytes(), 0U);
  EXPECT_TRUE(cursor.next_batch().empty());
}

// A system that takes a random number of bytes each time still gets every byte once and in order.
TEST(IoCursor, GoesOnWhereTheSystemStopped) {
  const unsigned seed = std::random_device()();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::byte> source(5000);
    for (std::byte& value : source) value = static_cast<std::byte>(random());
    std::vector<Bytes> parts;
    std::size_t offset = 0;
    while (offset < source.size()) {
      const std::size_t size = std::min<std::size_t>(random() % 9, source.size() - offset);
      parts.push_back(Bytes(source).subspan(offset, size));
      offset += size;
    }

    IoCursor<Bytes> cursor(parts);
    std::vector<std::byte> arrived;
    while (cursor.remaining_bytes() > 0) {
      const auto batch = cursor.next_batch();
      ASSERT_FALSE(batch.empty());
      std::size_t take = random() % 2000;
      const std::size_t before = arrived.size();
      for (const iovec& piece : batch) {
        ASSERT_GT(piece.iov_len, 0U);
        const std::size_t size = std::min(take, piece.iov_len);
        const auto* begin = static_cast<const std::byte*>(piece.iov_base);
        arrived.insert(arrived.end(), begin, begin + size);
        take -= size;
      }
      cursor.advance(arrived.size() - before);
      ASSERT_EQ(cursor.remaining_bytes(), source.size() - arrived.size());
    }
    EXPECT_EQ(arrived, source);
  }
}

}  // namespace
}  // namespace headrace
