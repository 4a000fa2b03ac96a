// DiskTier: sealed pages and small records in a log of segment files in one directory
// (docs/formats/segment.md).
//
// Lifecycle of the directory:
//   1. open() makes it, takes `headrace.lock` (one process at a time), finds what an earlier
//      process left if it is to be kept, and proves that files can be made in it.
//   2. The first segment is made by the first put, so that a run that never needs it writes
//   nothing.
//   3. The destructor waits for the IO in flight. Unless the files are kept it removes them and the
//      directories that open() made.
//
// Any failed read drops the page. A page that is still being written is read from the payload of
// its put. Gets of one page at the same time each read it. After a failed write the key is unknown,
// and later puts are tried as before.
//
// IO runs queue_depth deep; encoding, verifying and decoding run on io_threads threads; whatever
// waits long (syncs, compaction, small records) has a thread of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "env/env.h"
#include "tier/segment_format.h"
#include "tier/tier.h"

namespace headrace {

struct DiskTierOptions {
  std::string directory;
  /// Of everything in the directory, files of others too. 0: only the device's limit.
  std::uint64_t limit_bytes = 0;
  /// Most pages stored. Fixes the size of the index, 52 bytes a page, which is part of
  /// memory_bytes(). 0: what `limit_bytes` allows, but at most disk_tier_pages_default.
  std::uint32_t max_pages = 0;
  /// Most small records. Not 0: memory_bytes() has room for the largest one twice.
  std::uint32_t max_records = 0;
  PageShape shape;           ///< every page of a tier has the same
  std::uint32_t layers = 0;  ///< of the model
  /// At least 1; encode, verify and decode, and read what may lie in the system's cache.
  std::uint32_t io_threads = 1;
  /// Most submissions in flight, at least 1. Up to 4 of them have a buffer of one page, with direct
  /// IO up to 8.
  std::uint32_t queue_depth = 32;
  /// Whether the files stay for the next process.
  bool keep = false;
  /// Past the system's cache. Where the file system refuses, one warning and through the cache.
  bool direct = false;
  const Codec* codec = nullptr;  ///< nullptr: raw
};

inline constexpr std::uint32_t disk_tier_pages_default = 65'536;

class DiskTier : public Tier {
 public:
  /// Whether a page that it has was written by this process, or read as a whole. One that an
  /// earlier process left may be torn or damaged; a put writes it anew.
  virtual bool has_verified(const PageKey& key) const = 0;

  /// Stores a small record (1 to record_body_bytes_max bytes, kind block or session) in place of
  /// an earlier one with its kind and key. `body` is copied. Errors now: out_of_budget (queue full,
  /// or more than record_body_bytes_max in flight), invalid_argument (size).
  virtual Result<TierTicket> submit_put_record(RecordKind kind, const Digest128& key,
                                               Bytes body) = 0;
  /// Unknown ones are ignored.
  virtual void erase_record(RecordKind kind, const Digest128& key) = 0;
  /// Waits for the device; a record that is being written is read from memory. Errors: not_found,
  /// corrupt (the record is gone then), io.
  virtual Result<std::vector<std::byte>> read_record(RecordKind kind, const Digest128& key) = 0;
  virtual std::vector<Digest128> record_keys(RecordKind kind) const = 0;
  /// Whether the device gave everything when this was opened. If not, a record that is found may
  /// not be the newest of its key, and one that is not found may be there.
  virtual bool is_complete() const = 0;

  /// Completes ok when everything that was put or erased before it is durable; fails if a put in
  /// flight fails. Syncs that wait together share their work. Errors now: out_of_budget (queue
  /// full).
  virtual Result<TierTicket> submit_sync() = 0;

  /// Starts copying about this many bytes out of segments with much dead, if it is worth it, and
  /// removes segments with nothing alive. A put that needs room does so by itself.
  virtual void compact(std::uint64_t budget_bytes) = 0;

  /// A new limit_bytes, from now on. Waits until the directory is that small. Errors: out_of_budget
  /// (what is stored does not fit: erase some first), io; then the old one stays.
  virtual Result<void> set_limit_bytes(std::uint64_t bytes) = 0;

  /// Some tokens of a page: groups of disk_tier_group_tokens(), verified as they are stored, in the
  /// layout of codec/group_layout.h. Waits for the device. Any thread, while a page is neither
  /// erased nor put. `checksum` is the page's. Errors: not_found, unsupported (its codec keeps no
  /// groups), invalid_argument (groups that the page does not have), corrupt (the page is gone
  /// then), io.
  virtual Result<void> read_groups(const PageIdentity& identity, const Digest128& checksum,
                                   std::uint32_t first_group, std::uint32_t count,
                                   MutableBytes out) = 0;
};

/// Tokens that read_groups() reads at once.
std::uint32_t disk_tier_group_tokens(const PageShape& shape);

/// Bytes that one full page of `shape` takes on disk, stored raw.
std::uint64_t disk_tier_record_bytes(const PageShape& shape);

/// A limit under which `pages` raw pages surely fit.
std::uint64_t disk_tier_limit_bytes(const PageShape& shape, std::uint64_t pages);

/// What memory_bytes() of a tier opened with `options` will be, to reserve it before.
std::uint64_t disk_tier_memory_bytes(const DiskTierOptions& options);

/// Errors: io (directory cannot be made or written, or another process uses it; the message says
/// what to do), invalid_argument (no directory, a limit below one page), out_of_budget (no memory
/// for the buffers).
Result<std::unique_ptr<DiskTier>> open_disk_tier(Env& env, const DiskTierOptions& options);

}  // namespace headrace
