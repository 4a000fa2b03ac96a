// What attention reads (PageStream) and where a layer writes its new rows (SequenceKv): the only
// view that the model has of the cache. Where a page comes from and when it arrives changes nothing
// (invariant 1).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "headrace/options.h"
#include "headrace/result.h"
#include "page/shape.h"

namespace headrace {

/// A page ready to be read by kernels. The bytes are stable while the view is valid.
struct PageView {
  std::uint32_t first_position = 0;  ///< position of the page's first token
  std::uint32_t tokens = 0;          ///< positions that hold data, 1 to shape.tokens
  const std::byte* data = nullptr;   ///< in the layout of shape.h; null: see copy_groups()
};

/// Tokens that a TokenChoice names together.
inline constexpr std::uint32_t choice_tokens = 8;

/// What a step that reads a part of the tokens reads of a layer.
struct TokenChoice {
  std::span<const std::uint8_t> blocks;  ///< [block]: not 0 where something is read
  std::span<const std::uint8_t> groups;  ///< [block][token / choice_tokens]: likewise
  /// Likewise: the share of the attention that is there, read or not.
  std::span<const float> mass;
};

/// The pages of one layer of one sequence for one step, in page order.
class PageStream {
 public:
  virtual ~PageStream() = default;

  /// The next pages, as many as are ready, at least one unless all have been yielded (empty then).
  /// The views stay valid until the following call. Waits only when nothing is ready. Errors:
  /// page_lost (replay brings it back; the step can then be repeated), io.
  virtual Result<std::span<const PageView>> next() = 0;
};

/// Rows of this step that go into one page.
struct RowSlice {
  std::byte* page = nullptr;    ///< in the layout of shape.h
  std::uint32_t first_row = 0;  ///< of the step
  std::uint32_t rows = 0;
  std::uint32_t first_token = 0;  ///< place of `first_row` inside the page
};

/// Whether steps note how much they gave to which tokens.
inline bool notes_mass(const AttentionOptions& options) {
  return options.mode == AttentionMode::sparse && options.sparse_heavy > 0;
}

/// What a layer's choice of tokens is made from, where a step reads a part of them.
struct RecallView {
  const AttentionOptions* options = nullptr;
  /// [block]: key sketches of its kv heads (kernel/sketch-inl.h), one after the other. Null: the
  /// block has none, and recall reads it whole.
  std::span<const std::byte* const> sketches;
  PageView newest;  ///< the page of the step's row
  /// Whether choose() wants to know groups and their mass, and not blocks alone.
  bool is_partial = false;
  /// In sparse attention: what steps before this one gave to each group of 4 tokens
  /// (model/window_choice.h), and where this step's sums go. [kv_head][group of the context]
  std::span<const float> mass = {};
  std::span<float> next_mass = {};
  bool is_mass_known = false;  ///< false: `mass` lacks tokens, and this step reads all
  /// [token / choice_tokens]: not 0 where the tokens are in a permanent zone, which every step
  /// reads. Empty: the text has none.
  std::span<const std::uint8_t> zones = {};
  /// Whether one of these tokens is in a zone. They are a part of choice_tokens, or all of several.
  bool has_zone(std::uint32_t first_token, std::uint32_t tokens) const {
    if (zones.empty()) return false;
    const std::uint32_t end = (first_token + tokens - 1) / choice_tokens + 1;
    for (std::uint32_t group = first_token / choice_tokens; group < end; ++group)
      if (zones[group] != 0) return true;
    return false;
  }
};

/// One sequence's keys and values as the forward pass sees them during one step. Per layer, in
/// order: write the rows that rows() names, then read attend() to its end; where recall() gives a
/// view, choose(), load_group() and attend_chosen() take its place.
class SequenceKv {
 public:
  virtual ~SequenceKv() = default;
  virtual const PageShape& shape() const = 0;
  /// Where the K and V rows of this step go. Valid until the next layer's rows().
  virtual std::span<const RowSlice> rows(std::uint32_t layer) = 0;
  /// Where the hidden states of this step's rows go that are the input of `layer`, one after the
  /// other as they are kept (model/hidden_rows.h); null: they are not kept.
  virtual std::byte* hidden_rows(std::uint32_t /*layer*/) { return nullptr; }
  /// All pages up to and including the rows of this step. Valid until the next layer's attend().
  virtual PageStream& attend(std::uint32_t layer) = 0;
  /// Set where the step reads a part of the tokens only: then choose() comes next. Errors: those of
  /// PageStream::next().
  virtual Result<std::optional<RecallView>> recall(std::uint32_t /*layer*/) {
    return std::optional<RecallView>();
  }
  /// Begins a layer of recall. Returns how many groups are not in memory: each must be loaded
  /// before the layer's attend(). `choice` must stay until the layer has been read.
  virtual std::size_t choose(std::uint32_t /*layer*/, const TokenChoice& /*choice*/) { return 0; }
  /// Loads one of them. Any thread. What cannot be loaded makes attend() fail.
  virtual void load_group(std::size_t /*index*/) {}
  /// The pages of the blocks that were chosen from.
  virtual PageStream& attend_chosen(std::uint32_t layer) { return attend(layer); }
  /// Whether some groups that were chosen are not to be had in this step.
  virtual bool defers_groups() const { return false; }
  /// Whether this one of a page whose view has no data is.
  virtual bool is_deferred(const PageView& /*view*/, std::uint32_t /*group*/) const {
    return false;
  }
  /// Of a page whose view has no data the chosen groups are in memory, and nothing else. Puts what
  /// a kv head has in those `groups` [of choice_tokens] into its place in `page`. Any thread.
  virtual void copy_groups(const PageView& /*view*/, std::uint32_t /*kv_head*/,
                           std::span<const std::uint16_t> /*groups*/, std::byte* /*page*/) const {}
};

}  // namespace headrace
