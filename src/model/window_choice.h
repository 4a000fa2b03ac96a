// What window and sparse attention read of a layer. Both need no scores of what they leave out:
//   window: the first tokens, those in permanent zones, and the newest ones.
//   sparse: those; of what lies between them a sample at even distances; and the groups there to
//           which earlier steps gave most attention (the heavy hitters of H2O, Zhang et al. 2023).
// How much a group was given is known where it was read: the fold has its weights. A step adds the
// shares of what it has read to the sums of all steps before, which fade (docs/decisions/0011).
// The choice depends on tokens and options alone, never on threads or on where a page is.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/parallel.h"
#include "headrace/result.h"
#include "kernel/kernels.h"
#include "model/block_choice.h"
#include "model/model.h"
#include "page/page_stream.h"

namespace headrace {

/// Where the parts of a choice lie. Groups count from the start of the text.
struct WindowLayout {
  std::uint32_t first_groups = 0;   ///< groups at the beginning, which are read
  std::uint32_t newest_from = 0;    ///< the first token of the newest ones
  std::uint32_t end_group = 0;      ///< of those between the first and the newest tokens
  std::uint32_t sample_groups = 0;  ///< of these, read at even distances
  std::uint32_t heavy_groups = 0;   ///< of these, read for what earlier steps gave them
  std::uint32_t shift = 0;          ///< of the sample: it moves, and comes by all groups
};

/// For a row at `position`.
WindowLayout layout_of(const AttentionOptions& options, std::uint32_t position);

/// Whether positions count what a step reads, without gaps.
inline bool packs_positions(const AttentionOptions& options) {
  return options.mode == AttentionMode::window && options.window_packed;
}

/// What lies between the first and the newest tokens that a row at `position` reads, where
/// positions are packed: so much nearer the former seem to be. 0: nothing does.
std::uint32_t packed_shift(const AttentionOptions& options, std::uint32_t position);

/// For each row and layer: choose(); in sparse attention then note_groups() and note_newest() of
/// what every page gave to every query head, and add_up() of all kv heads.
class WindowChooser {
 public:
  /// How much of what a group was given is left a step later.
  static constexpr float fading = 0.995F;

  /// Errors: out_of_budget when scratch memory cannot be had.
  static Result<WindowChooser> create(Parallel& parallel, const ModelShape& shape,
                                      const PageShape& page, std::uint32_t context,
                                      const AttentionOptions& options);

  /// Chooses for the row at `position`. `view` must stay until add_up() has ended.
  void choose(std::uint32_t position, const RecallView& view);

  /// What the last choose() came to.
  TokenChoice choice() const { return {wanted_, {}, {}}; }
  const BlockChoice& block(std::uint32_t block, std::uint32_t kv_head) const {
    return heads_[kv_head].blocks[block];
  }
  /// The groups of a block that a kv head reads, ascending, by their numbers in the block. They lie
  /// before the block's whole_from.
  std::span<const std::uint16_t> groups(std::uint32_t block, std::uint32_t kv_head) const {
    const KvHead& head = heads_[kv_head];
    return std::span(head.groups)
        .subspan(head.blocks[block].first_group, head.blocks[block].groups);
  }
  const RecallCounters& counters() const { return counters_; }

  /// Whether what the folds give is to be noted.
  bool takes_notes() const { return !view_->next_mass.empty(); }
  /// What a fold over the chosen groups of a block, or over its newest tokens, has left in its
  /// scratch memory for a query head (kernel::fold_leaves_weights), and the largest of its scores.
  void note_groups(std::uint32_t query_head, std::uint32_t block, const float* left, float maximum);
  void note_newest(std::uint32_t query_head, std::uint32_t block, const float* left, float maximum);
  /// The folds of a query head's whole row came to this.
  void set_total(std::uint32_t query_head, float maximum, float sum) {
    maxima_[query_head] = maximum;
    sums_[query_head] = sum;
  }
  void add_up(std::uint32_t kv_head);

 private:
  /// Of what is noted of a block: groups, and newest tokens.
  enum Part : std::uint8_t { chosen_groups, newest_tokens, parts };

  /// What a kv head chose.
  struct KvHead {
    std::vector<std::uint32_t> chosen;      // groups of the text, ascending
    std::vector<std::uint64_t> candidates;  // for the heaviest, which are the largest
    std::vector<BlockChoice> blocks;        // [block]
    std::vector<std::uint16_t> groups;
    std::uint32_t tokens_read = 0;
  };

  WindowChooser() = default;

  std::uint32_t blocks() const { return static_cast<std::uint32_t>(view_->sketches.size()); }
  std::uint32_t groups_of_block() const { return page_.tokens / kernel::group_tokens; }
  std::uint32_t end_of(std::uint32_t block) const;
  float* weights(std::uint32_t query_head, std::uint32_t block, Part part);
  float& part_maximum(std::uint32_t query_head, std::uint32_t block, Part part);
  float share_of_weights(std::uint32_t query_head, std::uint32_t block, Part part);
  void choose_groups(std::uint32_t kv_head, const WindowLayout& layout);
  void add_zones(std::vector<std::uint32_t>& chosen, const WindowLayout& layout) const;
  void choose_heavy(std::uint32_t kv_head, const WindowLayout& layout);
  void list_blocks(std::uint32_t kv_head, const WindowLayout& layout, std::uint32_t position);

  Parallel* parallel_ = nullptr;
  PageShape page_;
  std::uint32_t group_heads_ = 0;  // query heads of a kv head
  std::uint32_t blocks_max_ = 0;
  std::uint32_t position_ = 0;
  bool is_look_ = false;  // all is read, to learn what matters
  const RecallView* view_ = nullptr;
  std::vector<KvHead> heads_;
  std::vector<std::uint8_t> wanted_;  // [block]
  RecallCounters counters_;
  // Of each query head, block and part: sums over its groups, one after the other, or of the newest
  // tokens by their place; relative to the largest score of the part.
  AlignedBuffer weights_;
  std::vector<float> part_maxima_;    // [query_head][block][part]
  std::vector<float> maxima_, sums_;  // [query_head]: of the whole row
};

}  // namespace headrace
