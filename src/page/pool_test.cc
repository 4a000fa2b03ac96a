#include "page/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace headrace {
namespace {

// 1 KiB, so that a slot has room behind its page.
constexpr PageShape small_shape{.tokens = 16, .kv_heads = 1, .head_dim = 16, .type = KvType::f16};

PagePool make_pool(std::uint32_t slots, const PageShape& shape = small_shape) {
  auto pool = PagePool::create(shape, slots);
  EXPECT_TRUE(pool.ok());
  return std::move(pool).value();
}

TEST(PagePool, HandsOutEverySlotOnceAndThenNothing) {
  PagePool pool = make_pool(7);
  std::set<std::uint32_t> slots;
  for (int i = 0; i < 7; ++i) {
    const auto slot = pool.acquire();
    ASSERT_TRUE(slot.has_value());
    EXPECT_TRUE(slots.insert(slot->value).second) << "slot " << slot->value << " given twice";
  }
  EXPECT_EQ(*slots.rbegin(), 6U);
  EXPECT_EQ(pool.free_slots(), 0U);
  EXPECT_FALSE(pool.acquire().has_value());
}

TEST(PagePool, SlotsStartOnDeviceBlocksAndDoNotOverlap) {
  for (const std::uint32_t tokens : {16U, 48U, 128U, 144U}) {
    PageShape shape = small_shape;
    shape.tokens = tokens;
    PagePool pool = make_pool(5, shape);
    std::set<const std::byte*> starts;
    while (const auto slot = pool.acquire()) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pool.data(*slot)) % 4096, 0U);
      EXPECT_EQ(pool.bytes(*slot).data(), pool.data(*slot));
      EXPECT_EQ(pool.bytes(*slot).size(), shape.bytes());
      starts.insert(pool.data(*slot));
    }
    ASSERT_EQ(starts.size(), 5U);
    const std::byte* end = nullptr;
    for (const std::byte* start : starts) {
      EXPECT_GE(start, end);
      end = start + shape.bytes();
    }
  }
}

TEST(PagePool, WhatIsWrittenToOneSlotStaysOutOfTheOthers) {
  PagePool pool = make_pool(6);
  std::vector<SlotIndex> slots;
  while (const auto slot = pool.acquire()) slots.push_back(*slot);
  for (const SlotIndex slot : slots) {
    std::memset(pool.data(slot), static_cast<int>(slot.value + 1), small_shape.bytes());
  }
  for (const SlotIndex slot : slots) {
    for (const std::byte byte : pool.bytes(slot)) {
      ASSERT_EQ(byte, static_cast<std::byte>(slot.value + 1));
    }
  }
}

TEST(PagePool, ASlotTakesItsPageRoundedUpToADeviceBlock) {
  EXPECT_EQ(PagePool::slot_bytes(small_shape), 4096U);
  EXPECT_EQ(PagePool::slot_bytes({.tokens = 64, .kv_heads = 1, .head_dim = 16}), 4096U);
  EXPECT_EQ(PagePool::slot_bytes({.tokens = 80, .kv_heads = 1, .head_dim = 16}), 8192U);
}

TEST(PagePool, TheSlotGivenBackLastIsUsedFirst) {
  PagePool pool = make_pool(4);
  const SlotIndex one = *pool.acquire();
  const SlotIndex two = *pool.acquire();
  pool.release(two);
  pool.release(one);
  EXPECT_EQ(*pool.acquire(), one);
  EXPECT_EQ(*pool.acquire(), two);
}

TEST(PagePool, RemembersTheMostSlotsThatWereTakenAtOnce) {
  PagePool pool = make_pool(4);
  EXPECT_EQ(pool.slots_peak(), 0U);
  const SlotIndex one = *pool.acquire();
  const SlotIndex two = *pool.acquire();
  EXPECT_EQ(pool.slots_peak(), 2U);
  pool.release(one);
  pool.release(two);
  static_cast<void>(pool.acquire());
  EXPECT_EQ(pool.slots_peak(), 2U);
}

TEST(PagePool, WithoutSlotsIsEmptyAndHasNone) {
  PagePool pool = make_pool(0);
  EXPECT_EQ(pool.slots(), 0U);
  EXPECT_FALSE(pool.acquire().has_value());
}

TEST(PagePool, ThatTheSystemHasNoRoomForIsRefused) {
  PageShape shape = small_shape;
  shape.kv_heads = 1U << 20;
  const auto pool = PagePool::create(shape, 0xFFFF'FFFF);  // 4 EiB
  ASSERT_FALSE(pool.ok());
  EXPECT_EQ(pool.error().code, ErrorCode::out_of_budget);
}

TEST(PagePool, KeepsAnExactLedgerOverRandomUse) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  PagePool pool = make_pool(9);
  std::vector<SlotIndex> held;
  std::size_t peak = 0;
  for (int round = 0; round < 2'000; ++round) {
    if (random() % 2 == 0) {
      const auto slot = pool.acquire();
      ASSERT_EQ(slot.has_value(), held.size() < 9);
      if (slot) held.push_back(*slot);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      pool.release(held.back());
      held.pop_back();
    }
    peak = std::max(peak, held.size());
    ASSERT_EQ(pool.free_slots(), 9 - held.size());
    ASSERT_EQ(pool.slots_peak(), peak);
    std::set<std::uint32_t> distinct;
    for (const SlotIndex slot : held) distinct.insert(slot.value);
    ASSERT_EQ(distinct.size(), held.size());
  }
}

TEST(PagePoolDeathTest, ReleasingTwiceEndsTheProcess) {
  PagePool pool = make_pool(2);
  const SlotIndex slot = *pool.acquire();
  pool.release(slot);
  EXPECT_DEATH(pool.release(slot), "a slot is released that nobody holds");
}

TEST(PagePoolDeathTest, ReleasingASlotThatIsNotOfThePoolEndsTheProcess) {
  PagePool pool = make_pool(2);
  EXPECT_DEATH(pool.release(SlotIndex{2}), "a slot is released that nobody holds");
}

}  // namespace
}  // namespace headrace
