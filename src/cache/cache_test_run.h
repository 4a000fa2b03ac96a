// What the tests of the cache do with it: run tokens through a fake model as the runtime runs them
// through a real one, and look into every book after every step.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache_test_model.h"
#include "cache/memory_plan.h"
#include "cache/replay.h"
#include "cache/sequence_cache.h"

namespace headrace {

/// Pages of 1 KiB. A context is far longer than the texts of the tests, because the buffers of the
/// tier would take more than the few pages of a short one.
inline PageStoreOptions small_store() {
  PageStoreOptions options;
  options.shape = {.tokens = 16, .kv_heads = 1, .head_dim = 16, .type = KvType::f16};
  options.layers = 3;
  options.context = 1'600;
  options.disk_directory = "/tmp/kv";
  options.model = {.low = 11, .high = 12};
  options.reuse = false;  // what a sequence leaves is gone, so that tests can count
  return options;
}

/// The least memory_bytes that a store opens with.
inline std::uint64_t least_memory_bytes(PageStoreOptions options) {
  std::uint64_t refused = 0;
  std::uint64_t works = full_memory_bytes(options);
  while (works - refused > 1) {
    options.memory_bytes = refused + (works - refused) / 2;
    (plan_memory(options).ok() ? works : refused) = options.memory_bytes;
  }
  return works;
}

/// `options` with just enough memory for `slots` pages. There must be fewer than a context has.
inline PageStoreOptions with_slots(PageStoreOptions options, std::uint32_t slots) {
  options.memory_bytes = least_memory_bytes(options);
  const MemoryPlan least = plan_memory(options).value();
  EXPECT_GE(slots, least.slots);
  const std::uint64_t bytes_per_slot =
      (least.pool_bytes + least.bookkeeping_bytes) / least.slots;  // roughly
  while (plan_memory(options).value().slots < slots) {
    options.memory_bytes += bytes_per_slot / 64;
  }
  return options;
}

inline std::vector<TokenId> random_text(std::size_t tokens, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> text(tokens);
  for (TokenId& token : text) token = static_cast<TokenId>(random() % 1'000);
  return text;
}

/// What a text gives when everything is in memory.
inline FakeOutputs expected_outputs(const PageStoreOptions& options,
                                    std::span<const TokenId> text) {
  PlainKv kv(options.shape, options.layers, text.size());
  return FakeModel(options.layers, options.windows).run(kv, text, 0, options.layers).value();
}

inline std::unique_ptr<PageStore> open_store(Env& env, const PageStoreOptions& options) {
  auto store = PageStore::open(env, options);
  EXPECT_TRUE(store.ok()) << store.error().message;
  return std::move(store).value();
}

/// Reads the text again up to the lost page, as Runtime::rebuild().
inline Result<void> rebuild_lost(SequenceCache& sequence, const FakeModel& model,
                                 const PagePlace& lost) {
  Rebuild rebuild(sequence, lost);
  SequenceCache& copy = rebuild.sequence();
  for (std::size_t done = 0; done < rebuild.tokens().size();) {
    const auto left = static_cast<std::uint32_t>(rebuild.tokens().size() - done);
    const std::uint32_t rows = copy.rows_possible(std::min(left, 23U));
    const auto step = rebuild.tokens().subspan(done, rows);
    HEADRACE_TRY(copy.begin(rows));
    const auto outcome =
        model.run(copy, step, static_cast<std::uint32_t>(done), copy.table().layers());
    if (!outcome.ok()) return outcome.error();
    copy.commit(step);
    done += rows;
  }
  return rebuild.finish();
}

/// Recomputes a lost page, and before it those that it needs. As Runtime::replay(), in which
/// `rebuilds_left` is bounded too.
inline Result<void> replay_lost(SequenceCache& sequence, const FakeModel& model,
                                const PagePlace& lost, int& rebuilds_left) {
  while (rebuilds_left-- > 0) {
    if (!sequence.can_replay(lost)) {
      Result<void> outcome = rebuild_lost(sequence, model, lost);
      if (outcome.ok() || outcome.error().code != ErrorCode::page_lost) return outcome;
      continue;
    }
    std::optional<PagePlace> earlier;
    {
      Replay replay(sequence, lost);
      const auto outcome =
          model.run(replay, replay.tokens(), replay.first_position(), replay.layers_end());
      if (outcome.ok()) return replay.finish();
      if (outcome.error().code != ErrorCode::page_lost) return outcome.error();
      earlier = replay.lost_earlier();
      EXPECT_LT(earlier->block, lost.block) << "a replay reads earlier blocks only";
    }
    HEADRACE_TRY(replay_lost(sequence, model, *earlier, rebuilds_left));
  }
  return Error{ErrorCode::io, "pages are lost as fast as they are rebuilt"};
}

/// One step with its replays, as Runtime::step().
inline Result<FakeOutputs> run_step(SequenceCache& sequence, const FakeModel& model,
                                    std::span<const TokenId> tokens) {
  int rebuilds_left = 200;
  while (true) {
    HEADRACE_TRY(sequence.begin(static_cast<std::uint32_t>(tokens.size())));
    const auto position = static_cast<std::uint32_t>(sequence.tokens().size());
    auto outputs = model.run(sequence, tokens, position, model.layers());
    if (outputs.ok()) {
      sequence.commit(tokens);
      return outputs;
    }
    sequence.abort();
    if (outputs.error().code != ErrorCode::page_lost) return outputs;
    HEADRACE_TRY(replay_lost(sequence, model, *sequence.lost(), rebuilds_left));
  }
}

/// As Runtime::save_session().
inline Result<void> save_sequence(SequenceCache& sequence, const FakeModel& model,
                                  const SessionRecord& session) {
  int rebuilds_left = 200;
  while (true) {
    Result<void> saved = sequence.save(session);
    if (saved.ok() || saved.error().code != ErrorCode::page_lost) return saved;
    const std::optional<PagePlace> lost = sequence.lost_for_save();
    if (!lost) return saved;
    HEADRACE_TRY(replay_lost(sequence, model, *lost, rebuilds_left));
  }
}

/// Looks into the books of a store and its sequences between two steps, and remembers what must
/// never change.
class Auditor {
 public:
  explicit Auditor(PageStore& store) : store_(store) {}

  /// Some are, until a step needs them: the tier is damaged on purpose.
  void let_pages_be_lost() { pages_may_be_lost_ = true; }

  void expect_in_order(const std::vector<SequenceCache*>& sequences) {
    const KvStats stats = store_.stats();
    EXPECT_LE(stats.kv_bytes_peak, stats.kv_bytes_limit) << "the budget is hard";
    EXPECT_LE(store_.budget().used_bytes(), store_.budget().limit_bytes());
    slots_.clear();
    blocks_.clear();
    std::erase_if(keys_, [&](const auto& entry) {  // of those that have ended
      return std::ranges::find(sequences, entry.first.first) == sequences.end();
    });
    for (SequenceCache* sequence : sequences) expect_in_order(*sequence);
    store_.index().for_each_sealed([this](Block& block) {
      if (!blocks_.contains(&block)) {
        EXPECT_EQ(block.users, 0U) << "a block is used by a sequence that has ended";
        expect_unchanged(block);
      }
    });
    for (const auto& [block, users] : blocks_) EXPECT_EQ(block->users, users);
    EXPECT_EQ(store_.pool().free_slots() + slots_.size(), store_.pool().slots())
        << "a slot is held that no page is in";
  }

  /// After all sequences have ended, of a store that keeps nothing.
  void expect_empty() const {
    EXPECT_EQ(store_.pool().free_slots(), store_.pool().slots());
    EXPECT_EQ(store_.index().blocks(), 0U);
  }

 private:
  void expect_in_order(SequenceCache& sequence) {
    const PageTable& table = sequence.table();
    const std::size_t tokens = sequence.tokens().size();
    const std::uint32_t block_tokens = sequence.shape().tokens;
    EXPECT_EQ(table.blocks(), (tokens + block_tokens - 1) / block_tokens);
    for (std::uint32_t block = 0; block < table.blocks(); ++block) {
      const bool is_full = (block + 1) * std::size_t{block_tokens} <= tokens;
      EXPECT_EQ(table.block(block).sealed, is_full) << "block " << block;
      for (std::uint32_t layer = 0; layer < table.layers(); ++layer) {
        const PageEntry& page = table.page(layer, block);
        const bool seen_again =
            block >= store_.options().first_block(layer, static_cast<std::uint32_t>(tokens));
        if (seen_again) {
          EXPECT_TRUE(page.exists() || pages_may_be_lost_) << "a page is nowhere";
        } else if (!store_.options().reuse && table.block(block).users == 1) {
          EXPECT_FALSE(page.exists()) << "a page was not let go behind its window";
        }
      }
      if (blocks_[&table.block(block)]++ == 0) expect_unchanged(table.block(block));
      if (!is_full) continue;
      const Digest128 key = table.block(block).key;
      EXPECT_EQ(keys_.emplace(std::pair(&sequence, block), key).first->second, key)
          << "a sequence has another block now";
    }
  }

  void expect_unchanged(const Block& block) {
    for (std::uint32_t layer = 0; layer < block.pages.size(); ++layer) {
      const PageEntry& page = block.pages[layer];
      if (page.slot) {
        EXPECT_TRUE(slots_.insert(page.slot->value).second) << "two pages share a slot";
      }
      if (!block.sealed) continue;
      EXPECT_EQ(checksums_.emplace(std::pair(block.id, layer), page.checksum).first->second,
                page.checksum)
          << "a sealed page is another one now";
      if (page.slot) {
        EXPECT_EQ(hash_bytes(store_.pool().bytes(*page.slot)), page.checksum)
            << "a sealed page has changed: block at " << block.first_position << ", layer "
            << layer;
      }
    }
  }

  PageStore& store_;
  bool pages_may_be_lost_ = false;
  std::map<std::pair<SequenceCache*, std::uint32_t>, Digest128> keys_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, Digest128> checksums_;
  // Of one look into the books.
  std::set<std::uint32_t> slots_;
  std::map<const Block*, std::uint32_t> blocks_;  // and how many sequences have it
};

/// A sequence that reads a text in steps and compares every output.
class Reader {
 public:
  Reader(PageStore& store, std::vector<TokenId> text, std::string_view tenant = {},
         std::uint32_t keep_seconds = 0)
      : store_(store),
        model_(store.options().layers, store.options().windows),
        text_(std::move(text)),
        expected_(expected_outputs(store.options(), text_)) {
    auto sequence =
        SequenceCache::create(store, {.tenant = std::string(tenant), .keep_seconds = keep_seconds});
    EXPECT_TRUE(sequence.ok()) << sequence.error().message;
    sequence_ = std::move(sequence).value();
  }

  SequenceCache& sequence() { return *sequence_; }
  FakeModel& model() { return model_; }
  std::size_t position() const { return sequence_->tokens().size(); }
  bool done() const { return position() == text_.size(); }

  Result<void> save(const SessionRecord& session) {
    return save_sequence(*sequence_, model_, session);
  }

  /// Takes over what other texts have left, all but the last token.
  std::uint32_t take_cached() {
    const auto rest = std::span(text_).subspan(position());
    return rest.size() < 2 ? 0 : sequence_->take_cached(rest.first(rest.size() - 1));
  }

  /// Reads up to `rows` more tokens in one step.
  Result<void> read(std::size_t rows) {
    const std::size_t first = position();
    rows =
        sequence_->rows_possible(static_cast<std::uint32_t>(std::min(rows, text_.size() - first)));
    EXPECT_GT(rows, 0U);
    HEADRACE_TRY_ASSIGN(const FakeOutputs outputs,
                        run_step(*sequence_, model_, std::span(text_).subspan(first, rows)));
    EXPECT_TRUE(std::equal(outputs.begin(), outputs.end(),
                           expected_.begin() + static_cast<std::ptrdiff_t>(first)))
        << "wrong bytes in the step of " << rows << " rows from " << first;
    return {};
  }

  /// Reads the rest in steps of at most `rows`.
  Result<void> read_all(std::size_t rows) {
    while (!done()) HEADRACE_TRY(read(rows));
    return {};
  }

 private:
  PageStore& store_;
  FakeModel model_;
  const std::vector<TokenId> text_;
  const FakeOutputs expected_;
  std::unique_ptr<SequenceCache> sequence_;
};

}  // namespace headrace
