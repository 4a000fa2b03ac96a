// Block: `tokens_per_block` consecutive tokens of a text, all layers: the unit of identity and of
// sharing. Sealed blocks hang in a tree (index/block_index.h) and any number of sequences may use
// one; an open block belongs to the sequence that writes it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/hash.h"
#include "headrace/types.h"
#include "page/pool.h"

namespace headrace {

/// One layer of a block.
struct PageEntry {
  std::optional<SlotIndex> slot;  ///< where it is resident
  std::uint8_t stored = 0;        ///< bit i: tier i has it
  bool writing = false;           ///< on its way to a tier: the slot must stay
  bool loading = false;           ///< on its way into a slot that is not its own yet
  bool leaving = false;           ///< when written, the slot is given back
  /// Sequences that may still read it. Counted only in models with windows, whose layers let go of
  /// what is behind.
  std::uint32_t readers = 0;
  Digest128 checksum;        ///< of the bytes; set when sealed
  bool is_sketched = false;  ///< its part of the block's sketch holds what it should

  /// Its bytes can be had without computing them.
  bool exists() const { return slot || stored != 0; }
};

struct Block {
  std::uint64_t id = 0;  ///< never used twice
  Digest128 key;         ///< set when sealed
  Block* parent = nullptr;
  std::vector<Block*> children;  ///< those that are sealed
  std::uint32_t first_position = 0;
  std::vector<TokenId> tokens;   ///< set when sealed; fewer than a full block has: a tail
  std::vector<PageEntry> pages;  ///< [layer]
  bool sealed = false;
  /// Its keys and values are those of steps that read a part of the tokens: no other text may have
  /// them, and tokens alone do not give the same bits again.
  bool is_private = false;
  std::optional<std::uint32_t> sketch;  ///< place of its key sketches
  bool recorded = false;                ///< the disk tier has its description
  bool in_pool = false;                 ///< the policy of the pool knows it
  std::uint32_t users = 0;              ///< sequences that have it in their table
  std::uint32_t sessions = 0;           ///< saved ones that it belongs to
  std::uint32_t pins = 0;               ///< steps under way that need its pages
  // For loading ahead.
  std::uint64_t visits = 0;     ///< texts that came by
  std::uint64_t continued = 0;  ///< and went on into a block behind it
  bool loaded_ahead = false;    ///< and not used since
  std::uint32_t priority = 0;   ///< of the sequence that wrote it
  /// Until when it may serve others; 0: nobody has left it yet.
  std::chrono::nanoseconds expires = {};
  static constexpr std::chrono::nanoseconds never = std::chrono::nanoseconds::max();

  bool all_pages_exist() const {
    for (const PageEntry& page : pages) {
      if (!page.exists()) return false;
    }
    return true;
  }
  /// Some are resident, and not about to leave.
  bool any_page_resident() const {
    for (const PageEntry& page : pages) {
      if (page.slot && !page.leaving) return true;
    }
    return false;
  }
};

}  // namespace headrace
