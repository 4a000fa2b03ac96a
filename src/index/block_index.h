// BlockIndex: every block that is alive, and the tree of those that are sealed: text -> blocks.
//
// The key of a block is a keyed hash over its parent's key and its tokens; the key of a root is one
// over the tenant and all that the bytes of pages depend on. Tokens are compared on every hit as
// well, so not even equal keys could give a text the pages of another.
//
// Used by the engine loop alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "index/keyed_hash.h"
#include "page/block.h"

namespace headrace {

struct BlockIndexOptions {
  std::uint32_t layers = 0;
  std::uint32_t tokens_per_block = 0;
  std::uint32_t blocks_max = 0;  ///< alive at once, sealed or not
  HashSecret secret = {};
  Digest128 settings;  ///< of all that the bytes of pages depend on besides tokens
};

/// The key of what the first blocks of a tenant's texts hang under.
Digest128 root_key(const HashSecret& secret, const Digest128& settings, std::string_view tenant);
/// The key of a block with these tokens behind the one with the key `parent`.
Digest128 block_key(const HashSecret& secret, const Digest128& parent,
                    std::span<const TokenId> tokens);

class BlockIndex {
 public:
  explicit BlockIndex(const BlockIndexOptions& options) : options_(options) {}
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  /// Bytes that one block takes at most.
  static std::uint64_t block_bytes(std::uint32_t layers, std::uint32_t tokens_per_block);

  const Digest128& settings() const { return options_.settings; }
  std::uint32_t blocks() const { return static_cast<std::uint32_t>(blocks_.size()); }
  bool full() const { return blocks() >= options_.blocks_max; }

  /// What the first blocks of a tenant's texts hang under. Lives as long as the index.
  Block& root(std::string_view tenant);
  /// The same, by its key: of a block that was found on disk.
  Block& root_with_key(const Digest128& key);
  bool is_root(const Block& block) const { return block.pages.empty(); }

  /// An open block behind `parent`. The index must not be full.
  Block& add(Block& parent, std::uint32_t first_position);
  /// Ends a block that nobody uses: an open one, or a sealed one without children.
  void remove(Block& block);

  /// The key that a block with these tokens behind `parent` has.
  Digest128 key_of(const Block& parent, std::span<const TokenId> tokens) const;
  /// Hangs a block into the tree: it holds `tokens` from now on and for ever. There must be none
  /// with this key.
  void seal(Block& block, const Digest128& key, std::span<const TokenId> tokens);

  /// The sealed block with exactly these tokens behind `parent`, or null.
  Block* find(const Block& parent, std::span<const TokenId> tokens) const;
  /// The same where key_of() both is known.
  Block* find(const Block& parent, const Digest128& key, std::span<const TokenId> tokens) const;
  Block* find(const Digest128& key) const;

  struct Match {
    Block* block = nullptr;
    std::uint32_t tokens = 0;  ///< how many of the block's first tokens match
  };
  /// The block behind `parent` that begins with most of `tokens` and whose pages all exist.
  Match longest_match(const Block& parent, std::span<const TokenId> tokens) const;

  /// Visits every sealed block, parents before children. Nothing may be added or removed meanwhile.
  void for_each_sealed(const std::function<void(Block&)>& visit) const;

 private:
  const BlockIndexOptions options_;
  std::uint64_t next_id_ = 1;
  std::unordered_map<std::uint64_t, std::unique_ptr<Block>> blocks_;  // by id
  struct KeyHash {
    std::size_t operator()(const Digest128& key) const { return key.low; }
  };
  std::unordered_map<Digest128, std::unique_ptr<Block>, KeyHash> roots_;
  std::unordered_map<Digest128, Block*, KeyHash> sealed_;
};

}  // namespace headrace
