#include "base/ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>

namespace headrace {
namespace {

TEST(Ring, GivesBackInOrderHoweverItGrows) {
  std::mt19937 random(1);
  for (const std::size_t capacity : {0U, 1U, 3U, 100U}) {
    Ring<int> ring(capacity);
    std::deque<int> expected;
    for (int i = 0; i < 2'000; ++i) {
      if (random() % 5 < 3) {
        ring.push(i);
        expected.push_back(i);
      } else if (!expected.empty()) {
        ASSERT_EQ(ring.pop(), expected.front());
        expected.pop_front();
      }
      ASSERT_EQ(ring.size(), expected.size());
      ASSERT_EQ(ring.empty(), expected.empty());
    }
  }
}

TEST(Ring, KeepsNothingOfWhatItHasGivenBack) {
  const auto kept = std::make_shared<int>(1);
  Ring<std::shared_ptr<int>> owners(1);
  owners.push(kept);
  owners.pop();
  EXPECT_EQ(kept.use_count(), 1);
}

}  // namespace
}  // namespace headrace
