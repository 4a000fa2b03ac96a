#include "tier/slot_map.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>

namespace headrace {
namespace {

PageKey key(std::uint32_t number) {
  return {.block = {.low = number / 3, .high = 7}, .layer = number % 3};
}

// What a page in use looks like when its write has ended.
FileSlot insert(SlotMap& map, std::uint32_t number) {
  const auto slot = map.insert_pinned(key(number));
  EXPECT_TRUE(slot.has_value());
  map.unpin(*slot);
  return *slot;
}

TEST(SlotMap, TheLowestFreeSlotIsTaken) {
  SlotMap map(200);
  for (std::uint32_t i = 0; i < 200; ++i) EXPECT_EQ(insert(map, i), i);
  EXPECT_FALSE(map.insert_pinned(key(200)).has_value());
  for (const FileSlot slot : {150U, 3U, 64U}) map.unshare(slot);
  EXPECT_EQ(insert(map, 300), 3U);
  EXPECT_EQ(insert(map, 301), 64U);
  EXPECT_EQ(insert(map, 302), 150U);
  EXPECT_EQ(map.slots_touched(), 200U);
}

TEST(SlotMap, APageIsGoneWithItsLastShare) {
  SlotMap map(4);
  const FileSlot slot = insert(map, 1);
  map.share(slot);
  map.unshare(slot);
  EXPECT_EQ(map.find(key(1)), slot);
  map.unshare(slot);
  EXPECT_FALSE(map.find(key(1)).has_value());
  EXPECT_EQ(map.pages(), 0U);
}

TEST(SlotMap, AnUnlistedSlotIsFreeOnlyAfterItsLastPin) {
  SlotMap map(2);
  const FileSlot slot = insert(map, 1);
  map.pin(slot);
  map.pin(slot);
  map.drop(slot);
  map.drop(slot);  // as a second reader of a damaged page does
  EXPECT_FALSE(map.find(key(1)).has_value());
  map.unpin(slot);
  EXPECT_EQ(insert(map, 1), 1U);  // the key is free at once, its slot is not
  EXPECT_FALSE(map.insert_pinned(key(2)).has_value());
  map.unpin(slot);
  EXPECT_EQ(map.insert_pinned(key(2)), slot);
  EXPECT_EQ(map.find(key(1)), 1U);
}

TEST(SlotMap, ZeroSlotsAreAlwaysFull) {
  SlotMap map(0);
  EXPECT_FALSE(map.insert_pinned(key(1)).has_value());
  EXPECT_FALSE(map.find(key(1)).has_value());
}

TEST(SlotMap, ItsMemoryIsAboutFiftyBytesASlot) {
  EXPECT_LE(SlotMap::memory_bytes(1'000'000), 50'000'000U);
}

// The model: a map of listed keys and a map of pinned slots, in the plainest containers.
TEST(SlotMap, RandomUseAgreesWithAPlainModel) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  constexpr std::uint32_t slots = 70;
  SlotMap map(slots);
  std::map<PageKey, std::pair<FileSlot, int>> listed;  // slot, shares
  std::map<FileSlot, int> pins;
  for (int step = 0; step < 20'000; ++step) {
    const PageKey chosen = key(static_cast<std::uint32_t>(random() % 90));
    const auto entry = listed.find(chosen);
    ASSERT_EQ(map.find(chosen),
              entry == listed.end() ? std::nullopt : std::optional(entry->second.first));
    const auto action = random() % 6;
    if (entry == listed.end() && action < 3) {
      std::set<FileSlot> used;
      for (const auto& [other, page] : listed) used.insert(page.first);
      for (const auto& [slot, count] : pins) used.insert(slot);
      FileSlot lowest = 0;
      while (used.contains(lowest)) ++lowest;
      const auto slot = map.insert_pinned(chosen);
      ASSERT_EQ(slot, lowest < slots ? std::optional(lowest) : std::nullopt);
      if (!slot) continue;
      listed[chosen] = {*slot, 1};
      ++pins[*slot];
    } else if (entry != listed.end() && action == 3) {
      map.share(entry->second.first);
      ++entry->second.second;
    } else if (entry != listed.end() && action == 4) {
      map.pin(entry->second.first);
      ++pins[entry->second.first];
    } else if (entry != listed.end() && action == 5) {
      const bool drop = random() % 4 == 0;
      drop ? map.drop(entry->second.first) : map.unshare(entry->second.first);
      if (drop || --entry->second.second == 0) listed.erase(entry);
    } else if (!pins.empty()) {
      const auto pinned = std::next(pins.begin(), static_cast<long>(random() % pins.size()));
      map.unpin(pinned->first);
      if (--pinned->second == 0) pins.erase(pinned);
    }
    ASSERT_EQ(map.pages(), listed.size());
  }
}

}  // namespace
}  // namespace headrace
