// The part of PageStore that outlives the process: descriptions of blocks, sessions, and what a
// process before left.
#include <algorithm>
#include <memory>

#include "base/check.h"
#include "base/log.h"
#include "cache/block_record.h"
#include "cache/page_store.h"
#include "cache/session_store.h"
#include "page/shape.h"
#include "tier/disk_tier.h"

namespace headrace {

// --- What a process before left ---------------------------------------------------------------

/// Errors: io (what sessions need is not known, so that it could not be spared).
Result<void> PageStore::recover() {
  HEADRACE_TRY_ASSIGN(const std::vector<SessionRecord> sessions, read_sessions(*disk_));
  struct Found {
    Digest128 key;
    BlockRecord record;
  };
  std::vector<Found> found;
  bool all_read = disk_->is_complete();
  for (const Digest128& key : disk_->record_keys(RecordKind::block)) {
    const auto body = disk_->read_record(RecordKind::block, key);
    if (!body.ok()) {
      all_read = all_read && body.error().code != ErrorCode::io;
      continue;
    }
    Result<BlockRecord> record = decode_block_record(*body);
    // Blocks of other models and settings stay as they are.
    if (!record.ok() || record->settings != index_.settings()) continue;
    found.push_back({key, std::move(record).value()});
  }
  std::ranges::sort(found, {}, [](const Found& block) { return block.record.first_position; });
  for (const Found& block : found) {
    // What only lacks a parent that could not be read now is whole again next time.
    if (!recover(block.key, block.record) && all_read) erase_from_disk(block.key);
  }
  for (const SessionRecord& session : sessions) count_session(session, 1);
  // A session that was not given may need any of them.
  if (!disk_->is_complete()) index_.for_each_sealed([](Block& block) { ++block.sessions; });
  return {};
}

/// False: the block cannot be used.
bool PageStore::recover(const Digest128& key, const BlockRecord& record) {
  if (record.tokens.empty() || record.tokens.size() > options_.shape.tokens ||
      record.checksums.size() != options_.layers || index_.full()) {
    return false;
  }
  Block* const parent = record.first_position == 0 ? &index_.root_with_key(record.parent)
                                                   : index_.find(record.parent);
  if (parent == nullptr || index_.key_of(*parent, record.tokens) != key) return false;
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    // Layers with a window may have let theirs go.
    if (options_.window(layer) == 0 && !disk_->has({key, layer})) return false;
  }
  Block& block = index_.add(*parent, record.first_position);
  index_.seal(block, key, record.tokens);
  block.recorded = true;
  block.expires = Block::never;
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    block.pages[layer].checksum = record.checksums[layer];
    block.pages[layer].stored = disk_->has({key, layer}) ? disk_bit() : 0;
  }
  admit(block);
  return true;
}

void PageStore::erase_from_disk(const Digest128& key) {
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) disk_->erase({key, layer});
  disk_->erase_record(RecordKind::block, key);
}

// --- Making things durable --------------------------------------------------------------------

std::vector<std::byte> PageStore::description_of(const Block& block) const {
  BlockRecord record;
  record.settings = index_.settings();
  record.parent = block.parent->key;
  record.first_position = block.first_position;
  record.tokens = block.tokens;
  for (const PageEntry& page : block.pages) record.checksums.push_back(page.checksum);
  return encode(record);
}

/// Describes a block to the disk tier. False: the queue is full.
bool PageStore::start_record(Block& block) {
  const auto body = std::make_shared<std::vector<std::byte>>(description_of(block));
  Result<TierTicket> ticket = disk_->submit_put_record(RecordKind::block, block.key, *body);
  if (!ticket.ok()) return false;
  block.recorded = true;
  const BlockId id = policy_id(block);
  tiers_.back().in_flight.emplace(*ticket, [this, id, body](const Result<void>& outcome) {
    const auto described = sealed_.find(id);
    if (!outcome.ok() && described != sealed_.end()) described->second->recorded = false;
  });
  return true;
}

/// The same at once, making room for it.
Result<void> PageStore::record(Block& block) {
  if (block.recorded) return {};
  HEADRACE_TRY(put_record(RecordKind::block, block.key, description_of(block)));
  block.recorded = true;
  return {};
}

/// Writes a small record and waits. Blocks that nobody uses make room for it.
Result<void> PageStore::put_record(RecordKind kind, const Digest128& key,
                                   const std::vector<std::byte>& body) {
  return making_disk_room(
      [&] { return wait_for([&] { return disk_->submit_put_record(kind, key, body); }); });
}

Result<void> PageStore::wait_for(const std::function<Result<TierTicket>()>& submit) {
  return run([&](Done done) {
    const Result<TierTicket> ticket = submit();
    if (ticket.ok()) {
      tiers_.back().in_flight.emplace(*ticket, std::move(done));
      return true;
    }
    if (ticket.error().code != ErrorCode::out_of_budget || !anything_in_flight()) {
      done(ticket.error());
    }
    return false;
  });
}

/// Writes pages to the disk tier from `slots`, and waits.
Result<void> PageStore::put_on_disk(Block& block, std::span<const std::optional<SlotIndex>> slots) {
  const std::size_t disk = tiers_.size() - 1;
  std::uint32_t started = 0;
  std::uint32_t finished = 0;
  Result<void> failure;
  std::vector<std::uint32_t> without_room;
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    if (!slots[layer]) continue;
    ++started;
    const Done done = [&, layer](const Result<void>& outcome) {
      ++finished;
      block.pages[layer].writing = false;
      if (outcome.ok()) {
        block.pages[layer].stored |= disk_bit();
        ++counters_.pages_written;
      } else if (outcome.error().code == ErrorCode::out_of_budget) {
        without_room.push_back(layer);
      } else {
        failure = disk_error(outcome.error());
      }
    };
    while (!submit_put(block, layer, *slots[layer], disk, done)) wait();
    block.pages[layer].writing = true;
  }
  while (finished < started) wait();
  for (const std::uint32_t layer : without_room) {
    HEADRACE_TRY(store(block, layer, *slots[layer], disk));
  }
  return failure;
}

Result<void> PageStore::persist(Block& block) {
  use(block);  // so that making room on disk does not end it
  Result<void> outcome = persist_used(block);
  unuse(block);
  return outcome;
}

Result<void> PageStore::persist_used(Block& block) {
  std::vector<std::optional<SlotIndex>> slots(options_.layers);
  // Pages that are stored are of no use without the description, whose write may have failed.
  reap();
  HEADRACE_TRY(record(block));
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    PageEntry& page = block.pages[layer];
    while (page.writing) wait();
    if ((page.stored & disk_bit()) != 0 && disk_->has_verified({block.key, layer})) continue;
    if (page.slot) {
      slots[layer] = page.slot;
    } else if (page.stored != 0) {
      HEADRACE_TRY(copy_to_disk(block, layer));
    }
    // Layers with a window may have let theirs go.
    if (options_.window(layer) == 0 && !page.exists()) {
      return Error{ErrorCode::page_lost, "a page of the text was damaged on disk"};
    }
  }
  return put_on_disk(block, slots);
}

/// Pages of a tail that were not found whole, out of the open block that begins with the same rows.
Result<void> PageStore::write_lacking(Block& open, Block& tail) {
  std::vector<std::optional<SlotIndex>> slots(options_.layers);
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    const PageEntry& page = tail.pages[layer];
    while (page.writing || page.loading) wait();
    const bool is_stored =
        (page.stored & disk_bit()) != 0 && disk_->has_verified({tail.key, layer});
    if (page.slot || is_stored || !open.pages[layer].slot) continue;
    const MutableBytes bytes = pool_.bytes(*open.pages[layer].slot);
    clear_tokens(options_.shape, static_cast<std::uint32_t>(tail.tokens.size()), bytes);
    if (hash_bytes(bytes) == page.checksum) slots[layer] = open.pages[layer].slot;
  }
  HEADRACE_TRY(record(tail));
  return put_on_disk(tail, slots);
}

/// A page that is in a faster tier only, or that a process before has left.
Result<void> PageStore::copy_to_disk(Block& block, std::uint32_t layer) {
  const std::optional<SlotIndex> slot = pool_.acquire();
  HEADRACE_CHECK(slot.has_value(), "the slots kept free for streaming are taken");
  const Result<void> loaded =
      run([&](Done done) { return start_load(block, layer, *slot, std::move(done)); });
  // Whoever needs one that is lost looks whether it exists.
  Result<void> outcome;
  if (loaded.ok()) outcome = store(block, layer, *slot, tiers_.size() - 1);
  pool_.release(*slot);
  return outcome;
}

Result<Block*> PageStore::save_tail(Block& open, std::span<const TokenId> tokens) {
  if (Block* const same = index_.find(*open.parent, tokens)) {
    use(*same);
    Result<void> outcome = write_lacking(open, *same);
    if (outcome.ok()) outcome = persist_used(*same);
    unuse(*same);
    if (!outcome.ok()) return outcome.error();
    return same;
  }
  Block& tail = add_block(*open.parent, open.first_position);  // used, so that it stays
  std::vector<std::optional<SlotIndex>> slots(options_.layers);
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    slots[layer] = open.pages[layer].slot;
    const MutableBytes bytes = pool_.bytes(*slots[layer]);
    clear_tokens(options_.shape, static_cast<std::uint32_t>(tokens.size()), bytes);
    tail.pages[layer].checksum = hash_bytes(bytes);
  }
  index_.seal(tail, index_.key_of(*open.parent, tokens), tokens);
  admit(tail);
  Result<void> outcome = record(tail);
  if (outcome.ok()) outcome = put_on_disk(tail, slots);
  tail.users = 0;
  if (!outcome.ok()) {
    drop(tail);
    return outcome.error();
  }
  return &tail;
}

Result<void> PageStore::sync() {
  return wait_for([this] { return disk_->submit_sync(); });
}

/// Layers with a window may have let theirs go.
bool PageStore::is_whole(const Block& block) const {
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    if (options_.window(layer) == 0 && !block.pages[layer].exists()) return false;
  }
  return true;
}

void PageStore::flush() {
  std::vector<BlockId> blocks;
  index_.for_each_sealed([&](Block& block) {
    if (is_whole(block)) blocks.push_back(policy_id(block));
  });
  Result<void> outcome;
  for (const BlockId id : blocks) {
    const auto block = sealed_.find(id);
    if (block == sealed_.end()) continue;  // it made room for another one
    outcome = persist(*block->second);
    // The next process finds that it is of no use.
    if (!outcome.ok() && outcome.error().code == ErrorCode::page_lost) outcome = {};
    if (!outcome.ok()) break;
  }
  // A full disk is no trouble: it keeps what it has.
  if (outcome.ok() || outcome.error().code == ErrorCode::out_of_budget) outcome = sync();
  if (!outcome.ok()) log_message(LogLevel::warn, "kv disk: " + outcome.error().message);
}

// --- Sessions ---------------------------------------------------------------------------------

Error PageStore::no_session_place() {
  return {ErrorCode::invalid_argument,
          "sessions need a place on disk: give one with --kv-disk DIR"};
}

Result<void> PageStore::put_session(SessionRecord session) {
  if (!keeps_sessions()) return no_session_place();
  HEADRACE_TRY(check_session_name(session.name));
  const Result<SessionRecord> before = read_session(session.name);
  session.saved_seconds = env_.unix_seconds();
  session.created_seconds = before.ok() ? before->created_seconds : session.saved_seconds;
  const std::vector<std::byte> body = encode(session);
  HEADRACE_TRY(put_record(RecordKind::session, session_key(session.name), body));
  HEADRACE_TRY(sync());
  HEADRACE_TRY(check_described(session));
  count_session(session, 1);
  if (!before.ok()) return {};
  count_session(*before, -1);
  // The tail of the save before is part of a longer one now.
  Block* const tail = before->blocks.empty() ? nullptr : index_.find(before->blocks.back());
  if (tail != nullptr) drop_if_within_sibling(*tail);
  return {};
}

/// A description that failed while it was on its way, before the sync began to watch.
Result<void> PageStore::check_described(const SessionRecord& session) const {
  for (const Digest128& key : session.blocks) {
    const Block* const block = index_.find(key);
    if (block != nullptr && !block->recorded) {
      return Error{ErrorCode::io, "the blocks of session '" + session.name +
                                      "' could not all be described on disk; save it again"};
    }
  }
  return {};
}

Result<SessionRecord> PageStore::read_session(const std::string& name) {
  if (!keeps_sessions()) return no_session_place();
  return headrace::read_session(*disk_, name, options_.disk_directory);
}

/// Blocks of sessions do not make room for others.
void PageStore::count_session(const SessionRecord& session, std::int32_t change) {
  for (const Digest128& key : session.blocks) {
    if (Block* const block = index_.find(key)) {
      block->sessions =
          static_cast<std::uint32_t>(static_cast<std::int32_t>(block->sessions) + change);
    }
  }
}

}  // namespace headrace
