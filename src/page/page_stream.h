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
  const std::byte* data = nullptr;   ///< in the layout of shape.h
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

/// What a layer's choice of tokens is made from, in recall.
struct RecallView {
  const AttentionOptions* options = nullptr;
  /// [block]: key sketches of its kv heads (kernel/sketch-inl.h), one after the other. Null: the
  /// block has none, and is read whole.
  std::span<const std::byte* const> sketches;
  PageView newest;  ///< the page of the step's row
};

/// One sequence's keys and values as the forward pass sees them during one step. Per layer, in
/// order: write the rows that rows() names, then read attend() to its end.
class SequenceKv {
 public:
  virtual ~SequenceKv() = default;
  virtual const PageShape& shape() const = 0;
  /// Where the K and V rows of this step go. Valid until the next layer's rows().
  virtual std::span<const RowSlice> rows(std::uint32_t layer) = 0;
  /// All pages up to and including the rows of this step. Valid until the next layer's attend().
  virtual PageStream& attend(std::uint32_t layer) = 0;
  /// Set where the step reads a part of the tokens only: then attend() takes the choice. Before
  /// the layer's attend(). Errors: those of PageStream::next().
  virtual Result<std::optional<RecallView>> recall(std::uint32_t /*layer*/) {
    return std::optional<RecallView>();
  }
  /// The pages of those blocks that are wanted: [block], not 0.
  virtual PageStream& attend(std::uint32_t layer, std::span<const std::uint8_t> /*wanted*/) {
    return attend(layer);
  }
};

}  // namespace headrace
