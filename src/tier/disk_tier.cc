#include "tier/disk_tier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "codec/group_layout.h"
#include "tier/log_tier.h"

namespace headrace {

std::uint32_t disk_tier_group_tokens(const PageShape& shape) {
  return checked_groups(shape) * group_tokens;
}

std::uint64_t disk_tier_record_bytes(const PageShape& shape) {
  return segment_unit_bytes + round_up(shape.bytes(), segment_unit_bytes);
}

std::uint64_t disk_tier_limit_bytes(const PageShape& shape, std::uint64_t pages) {
  // Two pages or more share a segment's header; then the reserve of one segment, which is the 16th
  // part of the limit or three units and two pages.
  const std::uint64_t record = disk_tier_record_bytes(shape);
  const std::uint64_t stored = pages * record + (pages / 2 + 2) * segment_unit_bytes;
  return round_up(stored * 16 / 15 + 2 * record + 2 * segment_unit_bytes + list_reserve_bytes,
                  segment_unit_bytes);
}

std::uint64_t disk_tier_memory_bytes(const DiskTierOptions& options) {
  const std::uint64_t bodies = options.max_records > 0 ? record_body_bytes_max : 0;
  return SegmentStore::memory_bytes(LogTier::store_options(options)) + bodies +
         options.queue_depth * LogTier::operation_bytes() +
         LogTier::buffer_count(options) * LogTier::buffer_bytes(options);
}

Result<std::unique_ptr<DiskTier>> open_disk_tier(Env& env, const DiskTierOptions& options) {
  HEADRACE_CHECK(options.io_threads > 0, "a tier needs a worker");
  HEADRACE_CHECK(options.queue_depth > 0, "a tier needs a queue");
  HEADRACE_CHECK(options.shape.bytes() > 0, "a page has bytes");
  const SegmentStoreOptions store_options = LogTier::store_options(options);
  const std::uint64_t least_bytes = store_options.segment_bytes + segment_unit_bytes +
                                    LogTier::buffer_bytes(options) +
                                    (options.keep ? list_reserve_bytes : 0);
  if (options.limit_bytes > 0 && options.limit_bytes < least_bytes) {
    return Error{ErrorCode::invalid_argument,
                 "--kv-disk: a limit of " + format_byte_count(options.limit_bytes) +
                     " has no room for one page; give at least " + format_byte_count(least_bytes)};
  }
  HEADRACE_TRY_ASSIGN(
      AlignedBuffer buffers,
      AlignedBuffer::allocate(LogTier::buffer_count(options) * LogTier::buffer_bytes(options)));
  HEADRACE_TRY_ASSIGN(auto directory, TierDirectory::open(env, options.directory));
  auto store = SegmentStore::open(env, *directory, store_options);
  if (!store.ok()) {
    const Error& error = store.error();
    return Error{error.code, "--kv-disk: cannot read '" + options.directory +
                                 "': " + error.message + "; choose another directory"};
  }
  return std::unique_ptr<DiskTier>(std::make_unique<LogTier>(
      env, options, std::move(directory), std::move(store).value(), std::move(buffers)));
}

}  // namespace headrace
