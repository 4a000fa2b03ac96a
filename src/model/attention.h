// Attention of one segment of rows over a PageStream: the fold of kernel/fold-inl.h, spread over
// the workers.
//
// One row: a task is a run of kv heads of pages; partials are merged in page order afterwards. Many
// rows: a task is one kv head and a run of rows, which goes through the pages in order. Both do the
// same additions in the same order (invariant 2).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/parallel.h"
#include "headrace/result.h"
#include "model/model.h"
#include "model/recall.h"
#include "model/window_choice.h"
#include "page/page_stream.h"

namespace headrace {

/// One kv head of a page as kernels take it.
kernel::PageHead page_head(const PageShape& shape, std::byte* page, std::uint32_t kv_head);

/// Rows of one segment: positions first_position, first_position + 1, ...
struct AttentionRows {
  const float* queries = nullptr;  ///< [row][query_head][head_dim], rotated
  float* out = nullptr;            ///< [row][query_head][head_dim]
  std::uint32_t count = 0;
  std::uint32_t first_position = 0;
  /// Positions that a row reads, its own included: the last `window` ones. 0: all.
  std::uint32_t window = 0;
  /// The queries of the only row as the first tokens of its window see them, where positions are
  /// packed. Null: as all do.
  const float* first_queries = nullptr;
};

class Attention {
 public:
  /// Errors: out_of_budget when scratch memory cannot be had.
  static Result<Attention> create(Parallel& parallel, const ModelShape& shape,
                                  const PageShape& page, std::uint32_t rows_max);
  /// Before run_recall(). Errors: out_of_budget.
  Result<void> prepare_recall(const ModelShape& shape, const PageShape& page, std::uint32_t context,
                              const AttentionOptions& options);

  RecallCounters recall_counters() const {
    return chooser_ ? chooser_->counters() : window_ ? window_->counters() : RecallCounters();
  }

  const CertifiedCounters& certified_counters() const { return certified_counters_; }

  /// One row that reads a part of the tokens.
  Result<void> run_recall(const AttentionRows& rows, SequenceKv& kv, std::uint32_t layer,
                          const RecallView& view);
  /// Reads `pages` to the end. Errors: those of PageStream::next().
  Result<void> run(const AttentionRows& rows, const PageShape& page, PageStream& pages);

 private:
  Attention() = default;

  /// Pages whose partials are kept at once when a single row is folded.
  static constexpr std::size_t pages_per_pass = 64;

  /// Query vectors of one kv head that read one page together, with where their results go.
  struct Gathered {
    std::array<const std::byte*, kernel::fold_vectors_max> queries;
    std::array<std::uint32_t, kernel::fold_vectors_max> begin;
    std::array<std::uint32_t, kernel::fold_vectors_max> end;
    std::array<std::uint32_t, kernel::fold_vectors_max> vectors;  // of the kv head
    kernel::FoldInput in;
  };

  /// What a kv head reads of a page in recall: groups, and how often each counts.
  struct ChosenGroups {
    std::span<const std::uint16_t> groups;
    std::span<const float> factors;
  };
  struct PresentGroups {
    std::vector<std::uint16_t> groups;
    std::vector<float> factors;
  };

  /// What tokens weigh together: sum * 2^maximum.
  struct Weight {
    float maximum = -std::numeric_limits<float>::infinity();
    double sum = 0;
    void add(const Weight& other);
  };

  std::byte* query(std::uint32_t row, std::uint32_t head);
  /// State of one query vector: [kv_head][row * group + head in group].
  float* state(std::uint32_t kv_head, std::uint32_t vector);
  void prepare_queries(const AttentionRows& rows, KvType type);
  void prepare_first_queries(const AttentionRows& rows, KvType type);
  void gather(Gathered& vectors, const AttentionRows& rows, const PageShape& page,
              const PageView& view, std::uint32_t kv_head, std::uint32_t first_vector,
              std::uint32_t end_vector);
  void fold_one_row(const AttentionRows& rows, const PageShape& page,
                    std::span<const PageView> batch, SequenceKv* recalled);
  float* newest_state(std::uint32_t query_head);
  void choose(const AttentionRows& rows, const PageShape& page, std::uint32_t layer,
              const RecallView& view);
  const BlockChoice& choice_of(const PageView& view, std::uint32_t kv_head) const;
  void add_up_mass();
  void fold_newest(const AttentionRows& rows, const PageShape& page, const PageView& view,
                   std::uint32_t kv_head, std::size_t worker);
  std::span<const std::uint16_t> stored_groups(std::span<const std::uint16_t> groups,
                                               std::size_t worker);
  ChosenGroups present_groups(const ChosenGroups& chosen, const SequenceKv& kv,
                              const PageView& view, std::size_t worker);
  void fold_chosen(kernel::FoldInput& in, const SequenceKv& kv, const PageView& view,
                   std::uint32_t kv_head, std::uint32_t first, std::size_t worker, float* states);
  void ask_for_chosen(const PageShape& page, const PageView& view, std::uint32_t kv_head);
  void fold_in_window(Gathered& gathered, const PageView& view, std::uint32_t kv_head,
                      std::uint32_t first, float* scratch, float* states);
  Result<void> prepare_certify();
  void weigh_chosen(Gathered& gathered, const PageView& view, std::uint32_t kv_head, float* scratch,
                    const float* all, float* states, Weight* out);
  Result<void> certify(const AttentionRows& rows, SequenceKv& kv, std::uint32_t layer);
  void note_certified(const float* out, const float* exact);
  void reset_one_row();
  void finish(const AttentionRows& rows);
  void fold_many_rows(const AttentionRows& rows, const PageShape& page,
                      std::span<const PageView> batch, bool first_batch);

  Parallel* parallel_ = nullptr;
  std::uint32_t kv_heads_ = 0;
  std::uint32_t group_ = 0;  // query heads of a kv head
  std::uint32_t head_dim_ = 0;
  double score_scale_ = 0.0;
  std::uint32_t vectors_max_ = 0;  // per kv head
  std::size_t state_floats_ = 0;
  std::size_t scratch_floats_ = 0;  // per worker: scores, then partials
  AlignedBuffer queries_;           // [row][query_head][prepared_query_bytes]
  AlignedBuffer states_;            // [kv_head][vector][state]
  AlignedBuffer partials_;          // one row: [page of a batch][query_head][state]
  AlignedBuffer scratch_;
  // Where a step reads a part of the tokens: one of these.
  std::optional<RecallChooser> chooser_;
  std::optional<WindowChooser> window_;
  std::uint32_t page_tokens_ = 0;
  AlignedBuffer first_queries_;  // where positions are packed: [query_head][prepared_query_bytes]
  bool has_first_queries_ = false;
  const std::byte* newest_page_ = nullptr;
  AlignedBuffer newest_;  // in recall, [query_head][state]: what newest_page_ gave
  std::vector<std::vector<std::uint16_t>> stored_groups_;  // [worker]
  std::vector<PresentGroups> present_groups_;              // [worker]
  AlignedBuffer parts_;  // [worker]: a page with what is in memory of one
  // Where steps are certified.
  AlignedBuffer certified_;          // [query_head][head_dim]: what all tokens give
  std::vector<Weight> read_;         // [page of a batch][query_head]
  std::vector<Weight> read_totals_;  // [query_head]
  CertifiedCounters certified_counters_;
};

}  // namespace headrace
