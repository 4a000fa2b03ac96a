// Recall: which tokens a step reads of a layer. Every token's key has a sketch of a few bits; each
// query head scores all of them, and each kv head reads the groups of tokens to which its query
// heads together give the largest shares of their attention. The others are not left out: a sample
// of them is read, and each group of it counts for as many as it stands for
// (docs/decisions/0009-recall.md). The choice depends on tokens and options alone, never on threads
// or on where a page is.
//
// The sample is that of Duffield, Lund and Thorup, "Priority sampling for estimation of arbitrary
// subset sums" (2007): a unit of the share m has the priority m / u, u a fraction of its own; those
// of the highest priorities are read, and each counts max(1, threshold / m) times. What sums of
// weights and of weighted values come to is then what all units would give, on average over the
// fractions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/parallel.h"
#include "headrace/result.h"
#include "model/block_choice.h"
#include "model/model.h"
#include "page/page_stream.h"

namespace headrace {

/// For each row and layer: begin(), then set_newest() of all query heads and score_block() of all
/// blocks in any order and on any threads, then choose().
class RecallChooser {
 public:
  /// Errors: out_of_budget when scratch memory cannot be had.
  static Result<RecallChooser> create(Parallel& parallel, const ModelShape& shape,
                                      const PageShape& page, std::uint32_t context);

  /// For a row with these `queries` [query_head][head_dim]. `score_scale` is what scores are
  /// multiplied with, for exponents of base 2. `view` must stay until choose() has ended.
  void begin(const float* queries, double score_scale, std::uint32_t layer, const RecallView& view);
  /// What a query head reads of the newest page, which is always read: the largest score, and the
  /// sum of 2^(score - largest).
  void set_newest(std::uint32_t query_head, float maximum, float sum) {
    newest_maxima_[query_head] = maximum;
    newest_sums_[query_head] = sum;
  }
  /// Estimates how the queries weigh the tokens of a block. `worker` selects scratch memory.
  void score_block(std::uint32_t block, std::size_t worker);
  /// Chooses for the row at `position`.
  void choose(std::uint32_t position);

  /// What the last choose() came to. Groups and mass only where the view wants them.
  TokenChoice choice() const { return {wanted_, wanted_groups_, mass_}; }
  const BlockChoice& block(std::uint32_t block, std::uint32_t kv_head) const {
    return choice_of(kv_head).blocks[block];
  }
  /// The groups of a block that a kv head reads, ascending, by their numbers in the block.
  std::span<const std::uint16_t> groups(std::uint32_t block, std::uint32_t kv_head) const {
    const KvHead& head = choice_of(kv_head);
    return std::span(head.groups)
        .subspan(head.blocks[block].first_group, head.blocks[block].groups);
  }
  /// How often each of them counts, at least once.
  std::span<const float> factors(std::uint32_t block, std::uint32_t kv_head) const {
    const KvHead& head = choice_of(kv_head);
    return std::span(head.factors)
        .subspan(head.blocks[block].first_group, head.blocks[block].groups);
  }
  const RecallCounters& counters() const { return counters_; }

 private:
  RecallChooser() = default;

  /// What is read of a unit.
  enum Reading : std::uint8_t { unread, always, by_priority };

  /// Units by the size of their priority, roughly: choosing the first needs no sorting of all.
  struct Ranks {
    static constexpr std::uint32_t count = 2048;
    static std::uint32_t of(float priority);
    void add(float priority, float mass);
    void clear();

    std::array<std::uint32_t, count> units;
    std::array<double, count> mass;
  };

  /// What a kv head chooses with, and what it chose. A unit is options.recall_group tokens.
  struct KvHead {
    Ranks ranks;
    std::vector<float> unit_mass;      // [unit], all blocks
    std::vector<Reading> readings;     // [unit]
    const float* spread = nullptr;     // [unit]: times its mass, its priority
    float threshold = 0;               // units of this priority are read
    std::vector<std::uint32_t> first;  // those that may be, in the first places
    std::size_t first_units = 0;
    std::vector<std::uint32_t> last;    // the units of the rank that is read in part
    std::vector<BlockChoice> blocks;    // [block]
    std::vector<std::uint16_t> groups;  // those of a block one after the other
    std::vector<float> factors;         // of groups
    std::uint32_t query_heads = 0;      // that the choice is for
    std::uint32_t tokens_read = 0;
    double mass_left = 0;  // of all these query heads, in units that are not chosen

    float priority(std::uint32_t unit) const { return unit_mass[unit] * spread[unit]; }
  };
  const KvHead& choice_of(std::uint32_t kv_head) const { return heads_[by_layer_ ? 0 : kv_head]; }
  std::span<const KvHead> choices() const;
  void choose_for(std::uint32_t kv_head, std::uint32_t query_heads, std::uint32_t position);
  void add_masses();

  std::uint32_t blocks() const { return static_cast<std::uint32_t>(view_->sketches.size()); }
  bool has_sketch(std::uint32_t block) const { return view_->sketches[block] != nullptr; }
  std::size_t groups_of_block() const;
  float* group_weights(std::uint32_t query_head, std::uint32_t block);
  void share_out(std::uint32_t query_head);
  void weigh_units(std::uint32_t kv_head);
  void choose_units(KvHead& head, std::uint32_t position);
  void note_first(KvHead& head, std::uint32_t block);
  void choose_first(KvHead& head);
  void list_blocks(KvHead& head);
  void list_factors(KvHead& head, std::uint32_t block);
  void sum_up(const KvHead& head);

  Parallel* parallel_ = nullptr;
  PageShape page_;
  std::uint32_t layers_ = 0;
  std::uint32_t query_heads_ = 0;
  std::uint32_t group_heads_ = 0;  // query heads of a kv head
  std::uint32_t blocks_max_ = 0;
  std::size_t query_bytes_ = 0;
  std::size_t scores_floats_ = 0;  // of a worker
  const RecallView* view_ = nullptr;
  std::uint32_t layer_ = 0;
  std::vector<float> spreads_;   // of all units of all layers and kv heads, each a bit further on
  bool by_layer_ = false;        // one choice for all kv heads
  AlignedBuffer queries_;        // [query_head]
  AlignedBuffer scores_;         // [worker][query head of a kv head][token of a block]
  AlignedBuffer group_weights_;  // [query_head][block][group], relative to the block's maximum
  std::vector<float> newest_maxima_, newest_sums_;  // [query_head]
  std::vector<float> maxima_, sums_;                // [query_head][block], of weights
  std::vector<float> shares_;  // [query_head][block]: times a weight, a share of the attention
  std::vector<KvHead> heads_;
  std::vector<std::uint8_t> wanted_;         // [block]
  std::vector<std::uint8_t> wanted_groups_;  // [block][choice_tokens]
  std::vector<float> mass_;                  // likewise
  RecallCounters counters_;
};

}  // namespace headrace
