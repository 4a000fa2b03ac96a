#include "base/aligned_buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace headrace {
namespace {

TEST(AlignedBuffer, StartsOnAPageBoundaryAndIsZero) {
  AlignedBuffer buffer = AlignedBuffer::allocate(10'001).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 4096, 0U);
  EXPECT_EQ(buffer.size(), 10'001U);
  EXPECT_TRUE(std::ranges::all_of(buffer.span(), [](std::byte b) { return b == std::byte{0}; }));
  std::ranges::fill(buffer.span(), std::byte{7});
  EXPECT_EQ(std::as_const(buffer).span().back(), std::byte{7});
}

TEST(AlignedBuffer, IsEmptyByDefaultAndForZeroBytes) {
  EXPECT_EQ(AlignedBuffer().size(), 0U);
  EXPECT_TRUE(AlignedBuffer::allocate(0).value().span().empty());
}

TEST(AlignedBuffer, MovesItsMemory) {
  AlignedBuffer first = AlignedBuffer::allocate(4096).value();
  first.data()[5] = std::byte{1};
  const std::byte* memory = first.data();
  AlignedBuffer second = std::move(first);
  EXPECT_EQ(second.data(), memory);
  second = AlignedBuffer::allocate(8192).value();
  EXPECT_EQ(second.size(), 8192U);
  EXPECT_EQ(second.data()[5], std::byte{0});
}

TEST(AlignedBuffer, CostsOnlyWhatIsTouched) {
  constexpr std::size_t kPage = 4096;
  AlignedBuffer buffer = AlignedBuffer::allocate(std::size_t{256} << 20).value();
  buffer.span().back() = std::byte{1};
  std::vector<unsigned char> resident(buffer.size() / kPage);
  ASSERT_EQ(::mincore(buffer.data(), buffer.size(), resident.data()), 0);
  // One page, or one huge page where the system gives those unasked.
  EXPECT_LE(std::ranges::count_if(resident, [](auto page) { return (page & 1) != 0; }), 512);
}

TEST(AlignedBuffer, RefusesWhatTheSystemDoesNotHave) {
  const auto result = AlignedBuffer::allocate(std::size_t{1} << 60);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::out_of_budget);
  EXPECT_EQ(result.error().message, "cannot allocate 1024 PiB: Cannot allocate memory");
}

TEST(AlignedBuffer, IsDividedIntoPartsThatDoNotOverlap) {
  float* floats = nullptr;
  std::byte* bytes = nullptr;
  const auto buffer = allocate_parts([&](Carver& carver) {
    carver.take(floats, 17);
    carver.take(bytes, 3);
  });
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->size(), 128U + 64U);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(floats), buffer->data());
  EXPECT_EQ(bytes, buffer->data() + 128);
}

}  // namespace
}  // namespace headrace
