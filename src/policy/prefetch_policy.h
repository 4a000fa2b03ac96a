// How far ahead blocks are loaded from disk before anybody asks for them. Pure: it is told what is
// stored and what was used, and says a number of blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace headrace {

enum class PrefetchKind : std::uint8_t {
  off,           ///< nothing
  conservative,  ///< a chain that was continued before, a few blocks at a time
  aggressive,    ///< all that fits
  learned,       ///< as far as blocks loaded ahead are used often enough
};

/// "off", "conservative", "aggressive", "learned"
const char* to_string(PrefetchKind kind);
std::optional<PrefetchKind> parse_prefetch(std::string_view name);

/// A chain of blocks behind the last one that a request has used.
struct PrefetchChance {
  std::size_t stored_blocks = 0;  ///< of the chain in a row on disk, and not in memory
  std::size_t free_slots = 0;     ///< that nothing has to leave for
  std::uint64_t visits = 0;     ///< requests that came by the block before the chain, this one too
  std::uint64_t continued = 0;  ///< of those before, how many went on into the chain
};

/// Used by one thread at a time.
class PrefetchPolicy {
 public:
  virtual ~PrefetchPolicy() = default;
  /// How many blocks of the chain to load, its first ones: at most those that are stored, and at
  /// most the free slots.
  virtual std::size_t blocks_ahead(const PrefetchChance& chance) = 0;
  /// What became of a block that was loaded ahead: a request used it, or it left unused.
  virtual void report(bool was_used) = 0;
};

std::unique_ptr<PrefetchPolicy> new_prefetch_policy(PrefetchKind kind);

}  // namespace headrace
