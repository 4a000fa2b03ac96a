// Tier: keeps sealed pages outside the pool. Submissions never block; completions are polled by the
// engine loop. A tier may lose any page at any time (the cache replays it), but never hands out a
// page that does not verify.
//
// Adding a tier: implement this interface, run tier_conformance_test.cc over it, wire it in cache/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "codec/sealed_page.h"
#include "headrace/result.h"

namespace headrace {

/// Names a submission until its completion has been polled.
using TierTicket = std::uint64_t;

struct TierCompletion {
  TierTicket ticket = 0;
  /// Of a put: ok = stored; out_of_budget (limit or device full), io. Of a get: ok = verified bytes
  /// are in place; corrupt = the stored page is damaged or is another one; not_found; io (also when
  /// a thread of the tier ran out of memory). A page
  /// whose get failed has been dropped, and the bytes of the target mean nothing.
  Result<void> result;
};

struct TierStats {
  std::uint64_t pages = 0;  ///< stored now
  std::uint64_t bytes = 0;  ///< in files or memory, everything counted
  std::uint64_t bytes_peak = 0;
  std::uint64_t puts = 0;     ///< pages written (a put of a stored one writes none)
  std::uint64_t gets = 0;     ///< pages handed out
  std::uint64_t damaged = 0;  ///< records that failed verification
  // Of a tier on disk. (bytes_written + bytes_compacted) / (puts * bytes of a page) is what a byte
  // that is put costs the device.
  std::uint64_t bytes_live = 0;       ///< in records that can be asked for
  std::uint64_t bytes_written = 0;    ///< of records
  std::uint64_t bytes_compacted = 0;  ///< written again to make room
  std::uint64_t syncs = 0;
  std::uint64_t segments = 0;
  std::uint64_t foreign_bytes = 0;    ///< of files and records that are not ours
  std::uint64_t pages_recovered = 0;  ///< found when it was opened
};

/// Used by one thread (the engine loop). Work may run elsewhere.
class Tier {
 public:
  /// Waits for the IO in flight. Its memory must be alive until then.
  virtual ~Tier() = default;

  /// Stores a page. `payload` is the whole pool page, with zeros behind identity.tokens_held, and
  /// must stay unchanged and alive until the completion; `checksum` is its hash_bytes(). A key that
  /// is already stored is completed without writing (unless an earlier process wrote it, and nobody
  /// has read it since). Errors now: out_of_budget (queue full: poll,
  /// then retry).
  virtual Result<TierTicket> submit_put(const PageIdentity& identity, const Digest128& checksum,
                                        Bytes payload) = 0;

  /// The same for a page that the tier's codec has encoded already; `checksum` is still that of the
  /// decoded pool page. `encoded` must stay unchanged and alive until the completion.
  virtual Result<TierTicket> submit_put_encoded(const PageIdentity& identity,
                                                const Digest128& checksum, Bytes encoded) = 0;

  /// Loads a page into `payload` (exactly identity.shape.bytes()), which must stay alive until the
  /// completion. Errors now: not_found, out_of_budget (queue full).
  virtual Result<TierTicket> submit_get(const PageIdentity& identity, const Digest128& checksum,
                                        MutableBytes payload) = 0;

  /// Drops a page and frees its room. Unknown keys are ignored. A get in flight still ends well; a
  /// put in flight ends well and stores nothing.
  virtual void erase(const PageKey& key) = 0;

  /// Whether the page is stored or being stored.
  virtual bool has(const PageKey& key) const = 0;

  /// Moves finished submissions into `out`, oldest first, and returns how many. Never waits.
  virtual std::size_t poll(std::span<TierCompletion> out) = 0;

  /// Waits until poll() would return something. Must not be called with nothing in flight.
  virtual void wait() = 0;

  /// Bytes of memory that this tier holds for queues and buffers; fixed when it was opened.
  virtual std::uint64_t memory_bytes() const = 0;

  /// Asks the system to forget its cached copies of stored pages (for measuring and tests).
  virtual void drop_cache() = 0;

  virtual TierStats stats() const = 0;
};

}  // namespace headrace
