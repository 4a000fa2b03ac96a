// Blocks that sequences share: while both live, after one has ended, and when room is short.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "cache/cache_test_env.h"
#include "cache/cache_test_run.h"
#include "codec/map_codec.h"
#include "env/fault_env.h"
#include "env/memory_env.h"

namespace headrace {
namespace {

PageStoreOptions sharing_store() {
  PageStoreOptions options = small_store();
  options.reuse = true;
  return options;
}

std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Reads a text after taking over what is there, and returns how many tokens that was.
std::uint32_t read_with_cache(Reader& reader) {
  const std::uint32_t taken = reader.take_cached();
  const auto outcome = reader.read_all(23);
  EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  return taken;
}

TEST(Sharing, ATextThatHasEndedIsFoundByOneThatBeginsAlike) {
  ImmediateEnv env;
  const auto store = open_store(env, sharing_store());
  const std::vector<TokenId> text = random_text(70, 1);
  {
    Reader first(*store, text);
    EXPECT_EQ(read_with_cache(first), 0U);
  }
  Auditor auditor(*store);
  Reader same(*store, text);
  EXPECT_EQ(read_with_cache(same), 69U) << "all but the token whose logits are wanted";
  Reader longer(*store, joined(text, random_text(40, 2)));
  EXPECT_EQ(read_with_cache(longer), 70U);
  Reader other_end(*store, joined({text.begin(), text.begin() + 39}, random_text(9, 3)));
  EXPECT_EQ(read_with_cache(other_end), 39U) << "two blocks, and 7 tokens of the third";
  Reader other(*store, random_text(70, 4));
  EXPECT_EQ(read_with_cache(other), 0U);
  auditor.expect_in_order(
      {&same.sequence(), &longer.sequence(), &other_end.sequence(), &other.sequence()});
}

TEST(Sharing, LiveSequencesHoldOneCopyOfWhatTheyShare) {
  ImmediateEnv env;
  PageStoreOptions options = sharing_store();
  options.sequences = 32;
  options.context = 160;
  const auto store = open_store(env, options);
  const std::vector<TokenId> prefix = random_text(64, 1);
  std::vector<std::unique_ptr<Reader>> readers;
  for (std::uint64_t i = 0; i < 32; ++i) {
    readers.push_back(std::make_unique<Reader>(*store, joined(prefix, random_text(5, 100 + i))));
    EXPECT_EQ(read_with_cache(*readers.back()), i == 0 ? 0U : 64U);
  }
  const std::uint32_t taken = store->pool().slots() - store->pool().free_slots();
  EXPECT_EQ(taken, (4 + 32) * options.layers) << "the prefix once, and 32 open blocks";
}

TEST(Sharing, SequencesThatReadTheSameAtTheSameTimeEndUpWithOneCopy) {
  ImmediateEnv env;
  const auto store = open_store(env, sharing_store());
  Auditor auditor(*store);
  const std::vector<TokenId> text = random_text(90, 1);
  Reader first(*store, text);
  Reader second(*store, text);
  while (!first.done()) {
    ASSERT_TRUE(first.read(20).ok());
    ASSERT_TRUE(second.read(20).ok());
    auditor.expect_in_order({&first.sequence(), &second.sequence()});
  }
  for (std::uint32_t block = 0; block < 5; ++block) {
    EXPECT_EQ(&first.sequence().table().block(block), &second.sequence().table().block(block));
  }
  EXPECT_NE(&first.sequence().table().block(5), &second.sequence().table().block(5)) << "open";
}

TEST(Sharing, TenantsDoNotShare) {
  ImmediateEnv env;
  const auto store = open_store(env, sharing_store());
  const std::vector<TokenId> text = random_text(70, 1);
  Reader anna(*store, text, "anna");
  EXPECT_EQ(read_with_cache(anna), 0U);
  Reader ben(*store, text, "ben");
  EXPECT_EQ(read_with_cache(ben), 0U);
  Reader anna_again(*store, text, "anna");
  EXPECT_EQ(read_with_cache(anna_again), 64U) << "her first text goes on, so its end is its own";
}

TEST(Sharing, StoresWithTwoPrecisionMapsDoNotShareADirectorysPages) {
  ImmediateEnv env;
  PageStoreOptions options = sharing_store();
  options.keep_disk = true;
  options.write_through = true;
  options.memory_bytes = 2 * least_memory_bytes(options);
  PrecisionMap map = {std::string(32, '0'), options.shape.kv_heads, {}};
  map.heads.resize(options.layers, {Precision::q8, Precision::q8});
  PrecisionMap other_map = map;
  other_map.heads.back().value = Precision::q4;
  const std::vector<TokenId> text = random_text(70, 1);
  const auto taken_with = [&](const PrecisionMap& precision) {
    const auto codec = new_map_codec(precision);
    options.codec = options.disk_codec = codec.get();
    const auto store = open_store(env, options);
    const auto sequence = SequenceCache::create(*store, {}).value();
    FakeModel model(options.layers, {});
    const std::uint32_t taken = sequence->take_cached(std::span(text).first(text.size() - 1));
    // Not a Reader: it expects the values that were written.
    while (sequence->tokens().size() < text.size()) {
      const auto rest = std::span(text).subspan(sequence->tokens().size());
      const auto rows = sequence->rows_possible(static_cast<std::uint32_t>(rest.size()));
      const auto outputs = run_step(*sequence, model, rest.first(rows));
      EXPECT_TRUE(outputs.ok()) << outputs.error().message;
      if (!outputs.ok()) break;
    }
    return taken;
  };
  EXPECT_EQ(taken_with(map), 0U);
  EXPECT_EQ(taken_with(other_map), 0U);
  EXPECT_GE(taken_with(map), 64U) << "four full blocks";
  EXPECT_GE(taken_with(other_map), 64U);
}

TEST(Sharing, WhatNobodyUsesMakesRoomAndChildrenGoFirst) {
  ImmediateEnv env;
  PageStoreOptions options = sharing_store();
  options.sequences = 1;
  options.context = 96;  // 6 blocks in memory
  const auto store = open_store(env, options);
  ASSERT_TRUE(store->holds_everything());
  const std::vector<TokenId> text = random_text(90, 1);
  {
    EXPECT_EQ(read_with_cache(*std::make_unique<Reader>(*store, text)), 0U);
  }
  Auditor auditor(*store);
  {
    Reader other(*store, random_text(40, 2));  // needs three blocks
    EXPECT_EQ(read_with_cache(other), 0U);
    auditor.expect_in_order({&other.sequence()});
  }
  Reader again(*store, text);
  EXPECT_EQ(again.take_cached(), 48U) << "the end of the text went, its beginning stayed";
}

TEST(Sharing, WhatLeftThePoolComesBackFromTheTierAndStaysIfThereIsRoom) {
  ImmediateEnv env;
  const auto store = open_store(env, with_slots(sharing_store(), 20));
  const std::vector<TokenId> text = random_text(100, 1);
  {
    read_with_cache(*std::make_unique<Reader>(*store, text));
  }
  {
    read_with_cache(*std::make_unique<Reader>(*store, random_text(100, 2)));
  }
  Auditor auditor(*store);
  Reader again(*store, text);
  EXPECT_EQ(read_with_cache(again), 99U);
  EXPECT_GT(store->stats().pages_filled_from_disk, 0U);
  auditor.expect_in_order({&again.sequence()});
  std::uint32_t resident = 0;
  for (std::uint32_t block = 0; block < 6; ++block) {
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      resident += again.sequence().table().page(layer, block).slot ? 1 : 0;
    }
  }
  EXPECT_GT(resident, 6U) << "what was streamed stayed";
}

TEST(Sharing, ABlockThatWasLostIsReadAgainAndWholeAfterThat) {
  ImmediateEnv memory;
  FaultEnv env(memory);
  const auto store = open_store(env, with_slots(sharing_store(), 9));
  const std::vector<TokenId> text = random_text(100, 1);
  {
    read_with_cache(*std::make_unique<Reader>(*store, text));
  }
  {
    read_with_cache(*std::make_unique<Reader>(*store, random_text(100, 2)));
  }
  env.set_plan({{.operation = EnvOperation::read, .at = 3, .kind = FaultKind::flip_bit}});
  {
    Reader again(*store, text);
    read_with_cache(again);
    EXPECT_EQ(store->stats().pages_damaged, 1U);
  }
  Reader once_more(*store, text);
  EXPECT_EQ(once_more.take_cached(), 99U);
  ASSERT_TRUE(once_more.read_all(1).ok());
}

TEST(Sharing, WhatATextLeavesExpires) {
  ImmediateEnv env;
  const auto store = open_store(env, sharing_store());
  const std::vector<TokenId> text = random_text(70, 1);
  {
    read_with_cache(*std::make_unique<Reader>(*store, text, "", 10));
  }
  {
    Reader soon(*store, text, "", 10);
    EXPECT_EQ(soon.take_cached(), 69U);
  }
  env.advance(std::chrono::seconds(11));
  Reader late(*store, text);
  EXPECT_EQ(late.take_cached(), 0U);
  ASSERT_TRUE(late.read_all(9).ok());
}

// The queue is full of pages that are written ahead of time when the first must leave.
TEST(Sharing, MakesRoomThoughTheQueueOfTheTierIsFull) {
  MemoryEnv env;
  PageStoreOptions options = sharing_store();
  options.layers = 40;  // more than a queue takes
  options.step_rows = 16;
  options = with_slots(options, 40 + 3 + 30);
  const auto store = open_store(env, options);
  Reader reader(*store, random_text(160, 1));
  const auto outcome = reader.read_all(16);
  EXPECT_TRUE(outcome.ok()) << outcome.error().message;
}

TEST(Sharing, WritesThroughWhenAskedTo) {
  ImmediateEnv env;
  PageStoreOptions options = with_slots(sharing_store(), 40);
  options.write_through = true;
  const auto store = open_store(env, options);
  Reader reader(*store, random_text(64, 1));
  ASSERT_TRUE(reader.read_all(16).ok());
  ASSERT_TRUE(reader.sequence().begin(1).ok());
  reader.sequence().abort();
  store->reap();
  EXPECT_EQ(store->stats().pages_written, 12U) << "though all are in the pool";
}

// A slow tier: the beginning of what is missing is read again, and the rest comes meanwhile.
TEST(Sharing, LoadsAndComputesAtOnceWhenThatIsSooner) {
  ImmediateEnv env;
  PageStoreOptions options = with_slots(sharing_store(), 45);
  options.step_rows = 16;
  const auto store = open_store(env, options);
  const std::vector<TokenId> text = random_text(160, 1);
  {
    read_with_cache(*std::make_unique<Reader>(*store, text));
  }
  {
    read_with_cache(*std::make_unique<Reader>(*store, random_text(160, 2)));
  }
  {
    read_with_cache(*std::make_unique<Reader>(*store, random_text(160, 3)));
  }
  Auditor auditor(*store);
  const std::uint64_t page_bytes = store->options().shape.bytes();
  for (int i = 0; i < 99; ++i) {
    store->costs().measure_load(0, page_bytes, 1.0);  // 3 s a block
    store->costs().measure_compute(0, 16, 3.0);
  }
  Reader again(*store, text);
  const std::uint32_t resident = again.take_cached();
  EXPECT_LT(resident, 96U) << "the first of the others are to be computed";
  std::uint32_t taken = 0;
  while (!again.done()) {
    ASSERT_TRUE(again.read(16).ok());
    taken += again.take_cached();
    store->reap();
    auditor.expect_in_order({&again.sequence()});
  }
  EXPECT_GE(taken, 31U) << "the last ones were loaded meanwhile";
  EXPECT_LT(resident + taken, 144U) << "and not all of them";

  for (int i = 0; i < 99; ++i) store->costs().measure_load(0, page_bytes, 1000.0);
  {
    read_with_cache(*std::make_unique<Reader>(*store, random_text(160, 4)));
  }
  {
    read_with_cache(*std::make_unique<Reader>(*store, random_text(160, 5)));
  }
  {
    read_with_cache(*std::make_unique<Reader>(*store, random_text(160, 6)));
  }
  Reader slow(*store, text);
  const std::uint64_t loads = store->stats().pages_filled_from_disk;
  slow.take_cached();
  EXPECT_EQ(store->stats().pages_filled_from_disk, loads) << "a hit is never slower than none";
}

TEST(Sharing, LoadsAheadWhatMayFollow) {
  ImmediateEnv env;
  PageStoreOptions options = with_slots(sharing_store(), 60);
  options.step_rows = 16;
  options.prefetch = PrefetchKind::aggressive;
  const auto store = open_store(env, options);
  const std::vector<TokenId> text = random_text(160, 1);
  {
    read_with_cache(*std::make_unique<Reader>(*store, text));
  }
  {
    read_with_cache(*std::make_unique<Reader>(*store, random_text(160, 2)));
  }
  {
    read_with_cache(*std::make_unique<Reader>(*store, random_text(160, 3)));
  }
  store->make_room_of_unused(60);
  Auditor auditor(*store);
  Reader beginning(*store, {text.begin(), text.begin() + 33});
  EXPECT_EQ(beginning.take_cached(), 32U);
  store->reap();
  const std::uint64_t loaded = store->stats().pages_filled_from_disk;
  EXPECT_GE(loaded, 12U) << "the blocks behind the second one";
  ASSERT_TRUE(beginning.read_all(1).ok());
  auditor.expect_in_order({&beginning.sequence()});
  Reader whole(*store, text);
  EXPECT_EQ(whole.take_cached(), 159U);
  ASSERT_TRUE(whole.read_all(1).ok());
}

// A step may find the tier's queue full of what was loaded ahead for later ones.
TEST(Sharing, AStepWaitsForItsPagesBehindThoseThatAreLoadedAhead) {
  ImmediateEnv env;
  PageStoreOptions options = with_slots(sharing_store(), 100);
  options.step_rows = 16;
  const auto store = open_store(env, options);
  const std::vector<TokenId> text = random_text(40, 1);
  {
    read_with_cache(*std::make_unique<Reader>(*store, text));
  }
  {
    read_with_cache(*std::make_unique<Reader>(*store, random_text(224, 2)));
  }
  store->make_room_of_unused(100);
  Auditor auditor(*store);
  Reader reader(*store, text);
  ASSERT_EQ(reader.take_cached(), 39U);
  ASSERT_FALSE(reader.sequence().table().page(0, 0).slot) << "it is streamed";

  env.hold_jobs();
  std::uint32_t loading = 0;
  store->index().for_each_sealed([&](Block& block) {
    if (block.users == 0) store->load_ahead(block);
    loading +=
        static_cast<std::uint32_t>(std::ranges::count(block.pages, true, &PageEntry::loading));
  });
  ASSERT_EQ(loading, DiskTierOptions().queue_depth) << "the queue is full";
  const auto outcome = reader.read_all(1);
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  env.run_held_jobs();
  store->reap();
  auditor.expect_in_order({&reader.sequence()});
}

// With everything that happens to a cache: random texts that begin alike, random room, windows.
TEST(Sharing, NoMixOfTextsGivesWrongBytes) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    PageStoreOptions options = sharing_store();
    options.step_rows = 64;
    if (random() % 2 == 0) {
      for (std::uint32_t layer = 0; layer < options.layers; ++layer) {
        options.windows.push_back(
            static_cast<std::uint32_t>(random() % 3 == 0 ? 0 : 1 + random() % 50));
      }
    }
    const bool in_memory = random() % 4 == 0;
    if (in_memory) {
      options.context = 160;
    } else {
      const std::uint32_t open = 3 * options.layers * (options.has_windows() ? 2 : 1);
      options = with_slots(options, open + 3 + static_cast<std::uint32_t>(random() % 9));
      if (random() % 2 == 0) {
        options.disk_bytes = disk_tier_limit_bytes(options.shape, 60 + random() % 60);
      }
    }
    ImmediateEnv env;
    const auto store = open_store(env, options);
    Auditor auditor(*store);
    std::vector<std::unique_ptr<Reader>> readers;
    for (int step = 0; step < 60; ++step) {
      if (readers.size() < 3 && random() % 3 == 0) {
        std::vector<TokenId> text;
        for (int part = 0; part < 4; ++part) {
          const std::vector<TokenId> more = random_text(1 + random() % 40, random() % 2);
          text = joined(text, more);
          if (random() % 3 == 0) break;
        }
        text.resize(std::min<std::size_t>(text.size(), 120));
        readers.push_back(std::make_unique<Reader>(*store, text));
      } else if (!readers.empty()) {
        const std::size_t turn = random() % readers.size();
        if (random() % 8 != 0 && !readers[turn]->done()) {
          if (random() % 2 == 0) readers[turn]->take_cached();
          const auto outcome = readers[turn]->read(1 + random() % 40);
          ASSERT_TRUE(outcome.ok()) << outcome.error().message;
        } else {
          readers.erase(readers.begin() + static_cast<std::ptrdiff_t>(turn));
        }
      }
      std::vector<SequenceCache*> caches;
      for (const auto& reader : readers) caches.push_back(&reader->sequence());
      auditor.expect_in_order(caches);
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace headrace
