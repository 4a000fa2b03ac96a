#include "index/block_index.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace headrace {
namespace {

template <typename T>
Bytes bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

std::uint64_t BlockIndex::block_bytes(std::uint32_t layers, std::uint32_t tokens_per_block) {
  constexpr std::uint64_t maps = 160;  // nodes and buckets of the two maps, its place in a parent
  return sizeof(Block) + std::uint64_t{layers} * sizeof(PageEntry) +
         std::uint64_t{tokens_per_block} * sizeof(TokenId) + maps;
}

Digest128 root_key(const HashSecret& secret, const Digest128& settings, std::string_view tenant) {
  const std::array fields = {bytes_of(settings), std::as_bytes(std::span(tenant))};
  return keyed_hash(secret, fields);
}

Digest128 block_key(const HashSecret& secret, const Digest128& parent,
                    std::span<const TokenId> tokens) {
  const std::array fields = {bytes_of(parent), std::as_bytes(tokens)};
  return keyed_hash(secret, fields);
}

Block& BlockIndex::root(std::string_view tenant) {
  return root_with_key(root_key(options_.secret, options_.settings, tenant));
}

Block& BlockIndex::root_with_key(const Digest128& key) {
  std::unique_ptr<Block>& root = roots_[key];
  if (root == nullptr) {
    root = std::make_unique<Block>();
    root->key = key;
    root->sealed = true;
  }
  return *root;
}

Block& BlockIndex::add(Block& parent, std::uint32_t first_position) {
  HEADRACE_CHECK(!full(), "more blocks than were reserved");
  auto block = std::make_unique<Block>();
  block->id = next_id_++;
  block->parent = &parent;
  block->first_position = first_position;
  block->pages.resize(options_.layers);
  return *blocks_.emplace(block->id, std::move(block)).first->second;
}

void BlockIndex::remove(Block& block) {
  HEADRACE_CHECK(block.users == 0 && block.children.empty(), "a block that is used ends");
  if (block.sealed) {
    sealed_.erase(block.key);
    std::erase(block.parent->children, &block);
  }
  blocks_.erase(block.id);
}

Digest128 BlockIndex::key_of(const Block& parent, std::span<const TokenId> tokens) const {
  return block_key(options_.secret, parent.key, tokens);
}

void BlockIndex::seal(Block& block, const Digest128& key, std::span<const TokenId> tokens) {
  HEADRACE_CHECK(!block.sealed && tokens.size() <= options_.tokens_per_block,
                 "a block is sealed once, with no more tokens than it holds");
  HEADRACE_CHECK(sealed_.emplace(key, &block).second, "two blocks have one key");
  block.key = key;
  block.tokens.assign(tokens.begin(), tokens.end());
  block.sealed = true;
  block.parent->children.push_back(&block);
}

Block* BlockIndex::find(const Block& parent, std::span<const TokenId> tokens) const {
  // Most texts are new: then a look at the children saves the hash.
  return parent.children.empty() ? nullptr : find(parent, key_of(parent, tokens), tokens);
}

Block* BlockIndex::find(const Block& parent, const Digest128& key,
                        std::span<const TokenId> tokens) const {
  Block* block = find(key);
  if (block == nullptr || block->parent != &parent) return nullptr;
  return std::ranges::equal(block->tokens, tokens) ? block : nullptr;
}

Block* BlockIndex::find(const Digest128& key) const {
  const auto found = sealed_.find(key);
  return found == sealed_.end() ? nullptr : found->second;
}

BlockIndex::Match BlockIndex::longest_match(const Block& parent,
                                            std::span<const TokenId> tokens) const {
  Match best;
  for (Block* child : parent.children) {
    if (child->is_private) continue;
    const auto end = std::ranges::mismatch(child->tokens, tokens).in2;
    const auto matching = static_cast<std::uint32_t>(end - tokens.begin());
    if (matching > best.tokens && child->all_pages_exist()) best = {child, matching};
  }
  return best;
}

void BlockIndex::for_each_sealed(const std::function<void(Block&)>& visit) const {
  std::vector<Block*> open;
  open.reserve(roots_.size());
  for (const auto& [key, root] : roots_) open.push_back(root.get());
  while (!open.empty()) {
    Block* const block = open.back();
    open.pop_back();
    if (!is_root(*block)) visit(*block);
    open.insert(open.end(), block->children.begin(), block->children.end());
  }
}

}  // namespace headrace
