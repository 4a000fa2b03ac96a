// HostTier: sealed pages in memory, encoded, under a fixed number of bytes. They lie in chunks of 4
// KiB that are chained, so room never goes to pieces, and memory is touched only as it is used.
#pragma once

#include <cstdint>
#include <memory>

#include "codec/codec.h"
#include "env/env.h"
#include "tier/tier.h"

namespace headrace {

struct HostTierOptions {
  /// All that the tier may take: chunks, index, queues and scratch.
  std::uint64_t memory_bytes = 0;
  /// Most pages at once. 0: as many as fit if each is an eighth of a pool page.
  std::uint32_t max_pages = 0;
  PageShape shape;           ///< every page of a tier has the same
  std::uint32_t layers = 0;  ///< of the model
  /// How pages are kept. A page that this codec would change comes in through submit_put_encoded(),
  /// or is kept by the lossless codec.
  const Codec* codec = &raw_codec();
  std::uint32_t threads = 1;       ///< that encode and decode, at least 1
  std::uint32_t queue_depth = 32;  ///< most submissions in flight, at least 1
};

inline constexpr std::uint64_t host_chunk_bytes = 4096;

/// Most bytes of chunks that a page of `shape` takes under `codec`.
std::uint64_t host_page_bytes_max(const PageShape& shape, const Codec& codec);

/// What memory_bytes() of a tier opened with `options` will be, to reserve it before.
std::uint64_t host_tier_memory_bytes(const HostTierOptions& options);

/// A put ends with out_of_budget when the tier is full. A get verifies a checksum of the encoded
/// bytes, and that of the decoded page. Errors: invalid_argument (less memory than one page needs),
/// out_of_budget (the system has none).
Result<std::unique_ptr<Tier>> open_host_tier(Env& env, const HostTierOptions& options);

}  // namespace headrace
