#include "policy/trace_replay.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

namespace headrace {
namespace {

TraceRequest request(std::vector<std::uint64_t> blocks) { return {.blocks = std::move(blocks)}; }

/// Conversations that come back, a common beginning and texts that come once.
std::vector<TraceRequest> generated_trace(unsigned seed, std::uint64_t requests) {
  std::mt19937 random(seed);
  std::vector<TraceRequest> open;
  std::vector<TraceRequest> trace;
  std::uint64_t next = 1;
  while (trace.size() < requests) {
    TraceRequest made = request({0});
    if (open.size() > 40 && random() % 2 == 0) {
      const std::size_t chosen = random() % open.size();
      made = open[chosen];
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(chosen));
      made.blocks.pop_back();  // the tail, which is another one now
    }
    for (std::uint64_t i = 0; i < 2 + random() % 10; ++i) made.blocks.push_back(next++);
    made.ends_in_tail = true;
    trace.push_back(made);
    if (random() % 3 != 0) open.push_back(made);
  }
  return trace;
}

TEST(TraceReplay, CountsTheBlocksOfAPrefixThatIsThere) {
  const std::vector<TraceRequest> trace = {request({0, 1, 2}), request({0, 1, 3}),
                                           request({0, 1, 2})};
  const TraceHits hits = replay_infinite(trace);
  EXPECT_EQ(hits.blocks, 9U);
  EXPECT_EQ(hits.hits, 5U);
  EXPECT_DOUBLE_EQ(hits.rate(), 5.0 / 9);
  EXPECT_EQ(replay_infinite({}).rate(), 0);
}

TEST(TraceReplay, WhatIsBehindAMissingBlockIsNoHit) {
  // Another text that ends in a block of the same number.
  const std::vector<TraceRequest> trace = {request({1, 2}), request({3, 2})};
  EXPECT_EQ(replay_infinite(trace).hits, 0U);
}

TEST(TraceReplay, ARequestLongerThanTheCacheKeepsItsBeginning) {
  const std::vector<TraceRequest> trace = {request({1, 2, 3, 4, 5}), request({1, 2, 3, 4, 5})};
  for (const CachePolicyKind kind : cache_policy_kinds) {
    EXPECT_EQ(replay_trace(trace, kind, 3).hits, 3U) << to_string(kind);
  }
  EXPECT_EQ(replay_optimum(trace, 3).hits, 3U);
}

TEST(TraceReplay, LruAndTheOptimumDoWhatTheyAreKnownFor) {
  // Three texts in turn and room for two: LRU never has the one that is asked for.
  std::vector<TraceRequest> trace;
  for (int round = 0; round < 4; ++round) {
    for (const std::uint64_t text : {10U, 20U, 30U}) trace.push_back(request({text}));
  }
  EXPECT_EQ(replay_trace(trace, CachePolicyKind::lru, 2).hits, 0U);
  EXPECT_EQ(replay_optimum(trace, 2).hits, 5U) << "every other one, from the fourth request on";
  EXPECT_EQ(replay_infinite(trace).hits, 9U);
}

TEST(TraceReplay, NoPolicyBeatsTheOptimumNorTheOptimumAnInfiniteCache) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  const std::vector<TraceRequest> trace = generated_trace(seed, 1000);
  const std::uint64_t infinite = replay_infinite(trace).hits;
  for (const std::size_t capacity : {50U, 200U, 1000U, 100'000U}) {
    const std::uint64_t optimum = replay_optimum(trace, capacity).hits;
    EXPECT_LE(optimum, infinite);
    for (const CachePolicyKind kind : cache_policy_kinds) {
      const std::uint64_t hits = replay_trace(trace, kind, capacity).hits;
      EXPECT_LE(hits, optimum) << to_string(kind) << " at " << capacity;
      if (capacity == 100'000) {
        EXPECT_EQ(hits, infinite) << to_string(kind);
      }
    }
  }
}

TEST(TraceReplay, ADefaultThatLosesToAnotherPolicyLosesLittle) {
  const std::vector<TraceRequest> trace = generated_trace(1, 4000);
  for (const std::size_t capacity : {200U, 600U, 2000U}) {
    const double automatic = replay_trace(trace, CachePolicyKind::automatic, capacity).rate();
    for (const CachePolicyKind kind : cache_policy_kinds) {
      EXPECT_GE(automatic, replay_trace(trace, kind, capacity).rate() - 0.01)
          << to_string(kind) << " at " << capacity;
    }
  }
}

TEST(TraceReplay, TheGapIsAPartOfTheWay) {
  EXPECT_DOUBLE_EQ(gap_closed(0.2, 0.3, 0.6), 0.25);
  EXPECT_LT(gap_closed(0.2, 0.1, 0.6), 0);
  EXPECT_EQ(gap_closed(0.4, 0.4, 0.4), 0);
}

}  // namespace
}  // namespace headrace
