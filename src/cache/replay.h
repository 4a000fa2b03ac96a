// Replay: brings a lost page back by running its block's tokens through the model again.
// Recomputation has no path of its own: the forward pass sees this as a SequenceKv like any other.
// Row invariance (invariant 2) makes the recomputed bytes equal to the lost ones, and the checksum
// that was taken at sealing proves it.
//
// Layers with a window let go of what is behind it, so a block far back cannot be run by itself any
// more. Then a Rebuild reads the text again from its start, as a sequence of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/sequence_cache.h"

namespace headrace {

/// Usage: run the block's tokens from `first_position()` through layers [0, layers_end()), then
/// finish(). One pool slot holds the block's page of the layer that is being computed.
class Replay final : public SequenceKv {
 public:
  /// `lost` names a page of a sealed block of `sequence`. No step may be open.
  Replay(SequenceCache& sequence, const PagePlace& lost);
  ~Replay() override;
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  std::span<const TokenId> tokens() const;
  std::uint32_t first_position() const;
  std::uint32_t layers_end() const { return lost_.layer + 1; }

  /// Verifies the page and stores it. Errors: internal (the recomputed page differs), io,
  /// out_of_budget.
  Result<void> finish();
  /// The page of an earlier block that made the forward pass fail with page_lost.
  std::optional<PagePlace> lost_earlier() const { return stream_.lost(); }

  // SequenceKv
  const PageShape& shape() const override { return sequence_.shape(); }
  std::span<const RowSlice> rows(std::uint32_t layer) override;
  PageStream& attend(std::uint32_t layer) override;

 private:
  SequenceCache& sequence_;
  const PagePlace lost_;
  SlotIndex scratch_;
  FillQueue fills_;
  BlockStream stream_;
  RowSlice slice_;
};

/// Usage: run the tokens behind those of sequence() through it in steps of any size, then finish().
/// If a step fails with page_lost, begin again with a new Rebuild: the copy that did not verify is
/// gone, and this time the page takes its place. One at a time.
class Rebuild {
 public:
  /// As Replay. No step may be open. The first `blocks_there` blocks of the text are taken over.
  Rebuild(SequenceCache& original, const PagePlace& lost, std::uint32_t blocks_there = 0)
      : original_(original),
        lost_(lost),
        sequence_(SequenceCache::create_for_rebuild(original.store(), original.options())),
        missing_(original.missing_blocks().value_or(SequenceCache::Missing()).pages) {
    sequence_->take_first_blocks(original, blocks_there);
  }

  std::span<const TokenId> tokens() const {
    return original_.tokens().first(original_.table().first_position(lost_.block + 1));
  }
  SequenceCache& sequence() { return *sequence_; }

  /// Whether the page is back: the blocks of both sequences are the same, so sealing has put it in
  /// its place. Errors: internal (the recomputed page differs).
  Result<void> finish();

 private:
  SequenceCache& original_;
  const PagePlace lost_;
  std::unique_ptr<SequenceCache> sequence_;
  const std::uint32_t missing_;  // pages, before
};

}  // namespace headrace
