#include "cache/memory_plan.h"

#include <algorithm>

#include "cache/group_cache.h"
#include "cache/page_store.h"
#include "codec/key_sketch.h"

namespace headrace {
namespace {

/// One page streams while another is read ahead, and one more is rebuilt by replay.
constexpr std::uint32_t stream_slots_min = 3;
constexpr std::uint32_t stream_slots_max = 32;

std::uint32_t blocks_of(const PageStoreOptions& options) {
  return (options.context + options.shape.tokens - 1) / options.shape.tokens;
}

/// Most pages that a sequence has in one layer, during a step.
std::uint32_t pages_of_layer(const PageStoreOptions& options, std::uint32_t layer) {
  const std::uint32_t window = options.window(layer);
  const std::uint32_t blocks = blocks_of(options);
  // From the window of the first row to the last row, with the worst alignment.
  return window == 0 ? blocks
                     : std::min(blocks, (window + options.step_rows) / options.shape.tokens + 2);
}

/// Pages of `sequences` sequences, each with a full context.
std::uint64_t all_pages(const PageStoreOptions& options, std::uint32_t sequences) {
  std::uint64_t pages = 0;
  for (std::uint32_t layer = 0; layer < options.layers; ++layer)
    pages += pages_of_layer(options, layer);
  return sequences * pages;
}

/// Those that users open, and the one of a rebuild.
std::uint32_t sequences_with_rebuild(const PageStoreOptions& options) {
  return options.sequences + (options.may_rebuild() ? 1 : 0);
}

/// Blocks of earlier texts that a disk which outlives the process may hold: what fits on it, as far
/// as a thirty-second of the memory is enough for their books.
std::uint32_t stored_blocks(const PageStoreOptions& options) {
  if (!options.keep_disk) return 0;
  constexpr std::uint64_t most = 4'096;
  constexpr std::uint64_t index_bytes_per_page = 64;
  const std::uint64_t books = BlockIndex::block_bytes(options.layers, options.shape.tokens) +
                              options.layers * index_bytes_per_page +
                              cache_policy_bytes(options.policy, 0);
  const std::uint64_t block = options.layers * options.shape.bytes();
  const std::uint64_t on_disk = options.disk_bytes == 0 ? most : options.disk_bytes / block;
  const std::uint64_t in_memory =
      options.memory_bytes == 0 ? most : options.memory_bytes / 32 / books;
  return static_cast<std::uint32_t>(std::min({most, on_disk, in_memory}));
}

/// Blocks in use, and those of one more context that nobody uses.
std::uint32_t index_blocks(const PageStoreOptions& options) {
  return (sequences_with_rebuild(options) + 1) * blocks_of(options) + stored_blocks(options);
}

/// Blocks in use, which have key sketches in recall.
std::uint32_t sketches(const PageStoreOptions& options) {
  return options.recalls() ? sequences_with_rebuild(options) * blocks_of(options) : 0;
}

std::uint64_t sketches_bytes(const PageStoreOptions& options) {
  return std::uint64_t{sketches(options)} * options.layers * key_sketch_bytes(options.shape);
}

/// What sparse attention notes: before a step and after it.
std::uint64_t mass_bytes(const PageStoreOptions& options) {
  return std::uint64_t{2} * options.sequences * options.layers * options.mass_floats() *
         sizeof(float);
}

/// Page tables, tokens and blocks of all sequences, and what the pool and the eviction policy note
/// per slot.
std::uint64_t bookkeeping_bytes(const PageStoreOptions& options, std::uint64_t slots) {
  // The policy of the pool notes blocks.
  const std::uint64_t bytes_per_slot = 256 + GroupCache::bytes_per_slot(options) +
                                       cache_policy_bytes(options.policy, 0) / options.layers + 1;
  const std::uint64_t table = PageTable::bytes(blocks_of(options)) +
                              options.context * sizeof(TokenId) + GroupCache::bytes(options) +
                              options.choice_groups();  // a byte of zones for each
  const std::uint64_t block = BlockIndex::block_bytes(options.layers, options.shape.tokens);
  const std::uint64_t sequence = table + options.hidden_block_bytes();
  return sequences_with_rebuild(options) * sequence + index_blocks(options) * block +
         cache_policy_bytes(options.policy, index_blocks(options)) +
         cache_policy_bytes(options.policy, 0) + slots * bytes_per_slot + sketches_bytes(options) +
         mass_bytes(options);
}

}  // namespace

DiskTierOptions tier_options(const PageStoreOptions& options) {
  DiskTierOptions disk;
  disk.directory = options.disk_directory;
  disk.limit_bytes = options.disk_bytes;
  disk.max_pages = static_cast<std::uint32_t>(all_pages(options, sequences_with_rebuild(options))) +
                   stored_blocks(options) * options.layers;
  disk.shape = options.shape;
  disk.layers = options.layers;
  disk.keep = options.keep_disk;
  disk.direct = options.disk_direct;
  disk.codec = options.disk_codec;
  constexpr std::uint32_t sessions_most = 256;
  disk.max_records = options.keep_disk ? index_blocks(options) + sessions_most : 0;
  return disk;
}

HostTierOptions host_options(const PageStoreOptions& options) {
  HostTierOptions host;
  host.memory_bytes = options.host_bytes;
  host.max_pages = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(all_pages(options, sequences_with_rebuild(options)),
                              8 * options.host_bytes / options.shape.bytes() + 1));
  host.shape = options.shape;
  host.layers = options.layers;
  host.codec = options.host_codec;
  return host;
}

std::uint64_t full_memory_bytes(const PageStoreOptions& options) {
  const std::uint64_t slots = all_pages(options, options.sequences);
  return slots * PagePool::slot_bytes(options.shape) + bookkeeping_bytes(options, slots);
}

namespace {

/// What the tiers hold in memory, and what is on its way to them.
std::uint64_t io_bytes(const PageStoreOptions& options) {
  if (options.keeps_text_only) return 0;
  std::uint64_t bytes = disk_tier_memory_bytes(tier_options(options)) + options.host_bytes;
  // A block that was defined by a codec, or its hidden states, are on their way to a tier.
  if (!options.codec->is_lossless() || options.codec->hidden_row_bytes() > 0) {
    bytes += options.layers * options.codec->encoded_bytes_max(options.shape);
  }
  return bytes;
}

/// One open block, and another one for a rebuild if there may be one.
std::uint32_t open_slots(const PageStoreOptions& options) {
  return options.layers * (options.may_rebuild() ? 2 : 1);
}

std::uint32_t least_slots(const PageStoreOptions& options) {
  return open_slots(options) + (options.keeps_text_only ? 0 : stream_slots_min);
}

/// The least memory in which pages stream.
std::uint64_t streaming_bytes(const PageStoreOptions& options) {
  const std::uint64_t slots = least_slots(options);
  return io_bytes(options) + bookkeeping_bytes(options, slots) +
         slots * PagePool::slot_bytes(options.shape);
}

/// Names a size that is enough.
Error too_small(PageStoreOptions options, std::uint64_t limit_bytes) {
  std::uint64_t pages = least_slots(options);
  std::uint64_t bytes = streaming_bytes(options);
  if (const std::uint64_t full = full_memory_bytes(options); full < bytes && !options.keep_disk) {
    // Short contexts may need less with everything in memory than with a few pages streaming.
    pages = all_pages(options, options.sequences);
    bytes = full;
  } else {
    // More memory keeps the books of more stored blocks: a thirty-second of it at most.
    while (options.memory_bytes < bytes) {
      options.memory_bytes = (bytes + 1023) / 1024 * 1024;
      bytes = streaming_bytes(options);
    }
  }
  return Error{ErrorCode::out_of_budget,
               "a KV memory of " + format_byte_count(limit_bytes) +
                   " is too small for one step: " + std::to_string(pages) + " pages of " +
                   format_byte_count(PagePool::slot_bytes(options.shape)) +
                   " and their bookkeeping need " + std::to_string((bytes + 1023) / 1024) +
                   "KiB; raise --kv-memory to that, or make pages smaller with --block-tokens"};
}

}  // namespace

Result<MemoryPlan> plan_memory(const PageStoreOptions& options) {
  MemoryPlan plan;
  plan.blocks_max = blocks_of(options);
  plan.index_blocks = index_blocks(options);
  plan.slot_books_bytes = bookkeeping_bytes(options, 1) - bookkeeping_bytes(options, 0);
  plan.sketches = sketches(options);
  const std::uint64_t slot_bytes = PagePool::slot_bytes(options.shape);
  const std::uint64_t full = full_memory_bytes(options);
  plan.limit_bytes = options.memory_bytes == 0 ? full : options.memory_bytes;
  if (plan.limit_bytes >= full && !options.keep_disk) {
    plan.slots = static_cast<std::uint32_t>(all_pages(options, options.sequences));
    plan.slots_least = options.layers;
    plan.slots_most = plan.slots;
  } else {
    plan.io_bytes = io_bytes(options);
    const std::uint64_t fixed = plan.io_bytes + bookkeeping_bytes(options, 0);
    const std::uint64_t per_slot = slot_bytes + plan.slot_books_bytes;
    // Where there is no tier no page streams.
    const std::uint32_t stream_slots_most = options.keeps_text_only ? 0 : stream_slots_max;
    const std::uint64_t most =
        all_pages(options, sequences_with_rebuild(options)) + stream_slots_most;
    if (options.memory_bytes == 0) plan.limit_bytes = fixed + most * per_slot;
    if (plan.limit_bytes < streaming_bytes(options)) return too_small(options, plan.limit_bytes);
    plan.slots = static_cast<std::uint32_t>(std::min(most, (plan.limit_bytes - fixed) / per_slot));
    const std::uint32_t others = plan.slots - open_slots(options);
    plan.stream_slots =
        std::min({std::max(plan.slots / 8, stream_slots_min), others, stream_slots_most});
    plan.slots_least = open_slots(options) + plan.stream_slots;
    plan.slots_most = static_cast<std::uint32_t>(most);
  }
  plan.pool_bytes = plan.slots * slot_bytes;
  plan.bookkeeping_bytes = bookkeeping_bytes(options, plan.slots);
  return plan;
}

}  // namespace headrace
