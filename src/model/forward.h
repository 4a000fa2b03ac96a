// The forward pass: rows of tokens in, keys and values into their pages, logits out. Rows of
// several sequences share one pass over the weights. New tokens, prompt chunks and replays are the
// same kind of row.
//
//   for each layer: norm -> q, k, v -> rotate -> write k, v rows -> fold over pages -> output
//   projection (+ residual)
//                   norm -> gate, up -> SwiGLU -> down (+ residual)
//   last: norm -> logits of the rows that are asked for
//
// What only some models have (norms of heads and of what is added, scales, windows) stands where it
// applies and is skipped without a trace by the others.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/parallel.h"
#include "headrace/result.h"
#include "headrace/types.h"
#include "kernel/matmul.h"
#include "model/attention.h"
#include "model/hidden_rows.h"
#include "model/model.h"
#include "page/page_stream.h"

namespace headrace {

/// Consecutive rows of one sequence.
struct Segment {
  SequenceKv* kv = nullptr;
  std::span<const TokenId> tokens;
  std::uint32_t first_position = 0;
  std::uint32_t first_logits_row = 0;  ///< rows from here on give logits; tokens.size() for none
  std::uint32_t layers_end = 0;        ///< layers to run; 0: all. Fewer give no logits
};

/// Receives logits [vocabulary] of one row of the segment, in row order. Return false to stop (no
/// error).
using RowLogits = std::function<bool(std::uint32_t row, const float* logits)>;
/// The same for rows of several segments, segment after segment.
using BatchLogits =
    std::function<bool(std::size_t segment, std::uint32_t row, const float* logits)>;

class ForwardPass {
 public:
  /// `model` and `parallel` must outlive this. With `kept` queries, keys and values come from
  /// hidden states as they are kept then: so the latter can be had from them again, bit for bit.
  /// Errors: out_of_budget when workspace memory cannot be had.
  static Result<ForwardPass> create(const Model& model, Parallel& parallel, const PageShape& page,
                                    std::uint32_t rows_max, std::optional<HiddenType> kept = {});

  /// Before the first step whose SequenceKv gives a RecallView. Errors: out_of_budget.
  Result<void> prepare_recall(const PageShape& page, std::uint32_t context,
                              const AttentionOptions& options) {
    return attention_.prepare_recall(model_->shape, page, context, options);
  }

  RecallCounters recall_counters() const { return attention_.recall_counters(); }
  const CertifiedCounters& certified_counters() const { return attention_.certified_counters(); }

  std::uint32_t rows_max() const { return rows_max_; }

  /// Runs one segment of 1 to rows_max() rows. Errors: those of PageStream::next(); nothing but the
  /// segment's own rows has been written then, and running it again gives the same bits.
  Result<void> run(const Segment& segment, const RowLogits& on_logits);

  /// Runs several segments, 1 to rows_max() rows in all, of different sequences, each with the bits
  /// that it has alone. They run to the same layer. Errors: as above; of the first segment that has
  /// one.
  Result<void> run(std::span<const Segment> segments, const BatchLogits& on_logits);

 private:
  ForwardPass(const Model& model, Parallel& parallel, std::uint32_t rows_max,
              std::optional<HiddenType> kept, kernel::MatrixMultiplier multiplier,
              Attention attention)
      : model_(&model),
        parallel_(&parallel),
        rows_max_(rows_max),
        kept_(kept),
        multiplier_(std::move(multiplier)),
        attention_(std::move(attention)) {}

  void carve(Carver& carver);
  /// Rows of one segment in the workspace.
  struct Part {
    const Segment* segment = nullptr;
    std::uint32_t first = 0;  ///< row of the workspace
    std::uint32_t count = 0;
    std::uint32_t skipped = 0;  ///< rows of the segment before these, which are done
  };

  void place(std::span<const Segment> segments);
  /// Keeps only the rows that give logits.
  void keep_logits_rows();
  std::uint32_t row_count() const { return parts_.back().first + parts_.back().count; }
  void embed(const Part& part);
  /// Angles of the workspace rows, [row][pair].
  struct Angles {
    float* cosine = nullptr;
    float* sine = nullptr;
  };
  void prepare_rope(const Part& part, const RopeSpec& rope, const Angles& angles);
  /// Rows as a matrix product wants them: quantised if `quantize`.
  kernel::InputRows input_rows(const float* rows, std::uint32_t width, std::uint32_t count);
  void norm_rows(const float* weight, const float* x, std::uint32_t count);
  void multiply(std::initializer_list<std::pair<const Linear*, kernel::OutputRows>> products,
                const kernel::InputRows& input);
  /// multiply() of one matrix whose product is added to the residual stream, through the norm and
  /// the scale that some models have.
  void add_product(const Linear& linear, const kernel::InputRows& input, const float* post_norm);
  void keep_hidden(std::uint32_t layer);
  void finish_heads(std::uint32_t layer, std::uint32_t count);
  void write_kv(const Part& part, std::uint32_t layer);
  void run_keys_and_values(std::uint32_t layer);
  const float* pack_query(const float* query, std::uint32_t layer, std::uint32_t shift);
  Result<void> run_attention(std::uint32_t layer);
  void run_feed_forward(const LayerWeights& layer);
  void run_output(const BatchLogits& on_logits);
  void finish_logits(std::uint32_t count);
  bool deliver(const BatchLogits& on_logits, std::uint32_t first, std::uint32_t count);

  const Model* model_;
  Parallel* parallel_;
  std::uint32_t rows_max_;
  std::optional<HiddenType> kept_;
  kernel::MatrixMultiplier multiplier_;
  Attention attention_;
  std::vector<Part> parts_;

  // Workspace, [row][width] each.
  AlignedBuffer memory_;
  float* hidden_ = nullptr;         // embedding: the residual stream
  std::byte* kept_rows_ = nullptr;  // hidden_row_bytes(), where hidden states are rounded
  float* normed_ = nullptr;         // embedding
  float* query_ = nullptr;          // query_width
  float* key_ = nullptr;            // kv_width
  float* value_ = nullptr;          // kv_width
  float* attended_ = nullptr;       // query_width
  float* first_query_ = nullptr;    // of one row: see AttentionRows::first_queries
  Angles packed_angles_;            // of one row: by which that is turned
  std::uint32_t packed_by_ = 0;     // what they are for
  float* gate_ = nullptr;           // feed_forward
  float* up_ = nullptr;             // feed_forward
  Angles angles_;
  Angles window_angles_;             // of layers with a window
  float* logits_ = nullptr;          // [logits_rows][vocabulary]
  kernel::QuantizedRows quantized_;  // of the widest input
};

}  // namespace headrace
