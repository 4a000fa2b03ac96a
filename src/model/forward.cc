#include "model/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "base/check.h"
#include "model/row_steps.h"

namespace headrace {
namespace {

/// Rows whose logits are computed together: amortises reading the output matrix, and bounds the
/// buffer.
constexpr std::uint32_t logits_rows = 32;

std::uint32_t widest_input(const ModelShape& shape) {
  return std::max({shape.embedding, shape.query_width(), shape.feed_forward});
}

void scale_row(float* row, float scale, std::uint32_t width) {
  if (scale == 1.0F) return;
  for (std::uint32_t i = 0; i < width; ++i) row[i] *= scale;
}

}  // namespace

Result<ForwardPass> ForwardPass::create(const Model& model, Parallel& parallel,
                                        const PageShape& page, std::uint32_t rows_max,
                                        std::optional<HiddenType> kept) {
  HEADRACE_TRY_ASSIGN(kernel::MatrixMultiplier multiplier,
                      kernel::MatrixMultiplier::create(parallel, widest_input(model.shape)));
  HEADRACE_TRY_ASSIGN(Attention attention,
                      Attention::create(parallel, model.shape, page, rows_max));
  ForwardPass pass(model, parallel, rows_max, kept, std::move(multiplier), std::move(attention));
  HEADRACE_TRY_ASSIGN(pass.memory_, allocate_parts([&](Carver& carver) { pass.carve(carver); }));
  return pass;
}

void ForwardPass::carve(Carver& carver) {
  const ModelShape& shape = model_->shape;
  const std::size_t rows = rows_max_;
  carver.take(hidden_, rows * shape.embedding);
  if (kept_) carver.take(kept_rows_, rows * hidden_row_bytes(*kept_, shape.embedding));
  carver.take(normed_, rows * shape.embedding);
  carver.take(query_, rows * shape.query_width());
  carver.take(key_, rows * shape.kv_width());
  carver.take(value_, rows * shape.kv_width());
  carver.take(attended_, rows * shape.query_width());
  carver.take(first_query_, shape.query_width());
  carver.take(packed_angles_.cosine, model_->rope.frequencies.size());
  carver.take(packed_angles_.sine, model_->rope.frequencies.size());
  carver.take(gate_, rows * shape.feed_forward);
  carver.take(up_, rows * shape.feed_forward);
  carver.take(angles_.cosine, rows * model_->rope.frequencies.size());
  carver.take(angles_.sine, rows * model_->rope.frequencies.size());
  carver.take(window_angles_.cosine, rows * model_->window_rope.frequencies.size());
  carver.take(window_angles_.sine, rows * model_->window_rope.frequencies.size());
  carver.take(logits_, std::size_t{logits_rows} * shape.vocabulary);
  carve_quantized(carver, rows_max_, widest_input(shape), quantized_);
}

void ForwardPass::place(std::span<const Segment> segments) {
  parts_.clear();
  std::uint32_t first = 0;
  for (const Segment& segment : segments) {
    const auto count = static_cast<std::uint32_t>(segment.tokens.size());
    HEADRACE_CHECK(count > 0 && first + count <= rows_max_, "more rows than the workspace holds");
    parts_.push_back({&segment, first, count, 0});
    first += count;
  }
  HEADRACE_CHECK(!parts_.empty(), "a forward pass without rows");
}

void ForwardPass::keep_logits_rows() {
  const ModelShape& shape = model_->shape;
  std::uint32_t first = 0;
  for (Part& part : parts_) {
    const std::uint32_t skipped = std::min(part.segment->first_logits_row, part.count);
    const std::uint32_t count = part.count - skipped;
    const auto move = [&](float* rows, std::size_t width) {
      std::memmove(rows + first * width, rows + (part.first + skipped) * width,
                   count * width * sizeof(float));
    };
    move(hidden_, shape.embedding);
    move(query_, shape.query_width());
    part = {part.segment, first, count, skipped};
    first += count;
  }
}

void ForwardPass::embed(const Part& part) {
  const kernel::WeightMatrix& table = model_->embedding;
  const std::uint32_t width = model_->shape.embedding;
  for_rows(*parallel_, part.count, [&](std::uint32_t row) {
    const auto token = static_cast<std::size_t>(part.segment->tokens[row]);
    float* hidden = hidden_ + std::size_t{part.first + row} * width;
    table.to_float(table.rows.data + token * table.rows.row_bytes, hidden, width);
    scale_row(hidden, model_->shape.embedding_scale, width);
  });
}

void ForwardPass::prepare_rope(const Part& part, const RopeSpec& rope, const Angles& angles) {
  const std::size_t pairs = rope.frequencies.size();
  for_rows(*parallel_, part.count, [&](std::uint32_t row) {
    const std::size_t at = (part.first + row) * pairs;
    fill_angles(rope, part.segment->first_position + row, angles.cosine + at, angles.sine + at);
  });
}

kernel::InputRows ForwardPass::input_rows(const float* rows, std::uint32_t width,
                                          std::uint32_t count) {
  kernel::InputRows input;
  input.floats = rows;
  input.count = count;
  input.quantized = quantized_;
  input.quantized.width = width;
  return input;
}

void ForwardPass::norm_rows(const float* weight, const float* x, std::uint32_t count) {
  const std::uint32_t width = model_->shape.embedding;
  for_rows(*parallel_, count, [&](std::uint32_t row) {
    const std::size_t at = std::size_t{row} * width;
    kernel::kernels().rms_norm(x + at, weight, model_->shape.norm_epsilon, width, normed_ + at);
  });
}

void ForwardPass::multiply(
    std::initializer_list<std::pair<const Linear*, kernel::OutputRows>> products,
    const kernel::InputRows& input) {
  multiply_rows(*parallel_, multiplier_, products, input);
}

void ForwardPass::add_product(const Linear& linear, const kernel::InputRows& input,
                              const float* post_norm) {
  const ModelShape& shape = model_->shape;
  const std::uint32_t width = shape.embedding;
  if (post_norm == nullptr && shape.residual_scale == 1.0F)
    return multiply({{&linear, {hidden_, width, true}}}, input);
  multiply({{&linear, {normed_, width, false}}}, input);
  for_rows(*parallel_, input.count, [&](std::uint32_t row) {
    float* product = normed_ + std::size_t{row} * width;
    if (post_norm != nullptr)
      kernel::kernels().rms_norm(product, post_norm, shape.norm_epsilon, width, product);
    scale_row(product, shape.residual_scale, width);
    kernel::kernels().add(hidden_ + std::size_t{row} * width, product, width);
  });
}

/// Norms and turns heads, in models that do.
void ForwardPass::finish_heads(std::uint32_t layer, std::uint32_t count) {
  const ModelShape& shape = model_->shape;
  const LayerWeights& weights = model_->layers[layer];
  const Angles& angles = shape.window(layer) == 0 ? angles_ : window_angles_;
  const std::uint32_t pairs = shape.rotated_dims / 2;
  if (weights.query_norm == nullptr && !shape.is_rotated(layer)) return;
  for_rows(*parallel_, count, [&](std::uint32_t row) {
    float* const query = query_ + std::size_t{row} * shape.query_width();
    float* const key = key_ + std::size_t{row} * shape.kv_width();
    norm_heads(shape, weights.query_norm, shape.query_heads, query);
    norm_heads(shape, weights.key_norm, shape.kv_heads, key);
    if (!shape.is_rotated(layer)) return;
    const float* const cosine = angles.cosine + std::size_t{row} * pairs;
    const float* const sine = angles.sine + std::size_t{row} * pairs;
    rotate_heads(shape, shape.query_heads, cosine, sine, query);
    rotate_heads(shape, shape.kv_heads, cosine, sine, key);
  });
}

void ForwardPass::write_kv(const Part& part, std::uint32_t layer) {
  const ModelShape& shape = model_->shape;
  SequenceKv& kv = *part.segment->kv;
  const PageShape& page = kv.shape();
  for (const RowSlice& slice : kv.rows(layer)) {
    // A task is a tile: two workers never write to the same cache lines.
    const std::uint32_t first_tile = slice.first_token / tile_tokens;
    const std::uint32_t end_token = slice.first_token + slice.rows;
    const std::uint32_t tiles = (end_token + tile_tokens - 1) / tile_tokens - first_tile;
    parallel_->run(tiles, [&](std::size_t task, std::size_t) {
      const std::uint32_t tile = (first_tile + static_cast<std::uint32_t>(task)) * tile_tokens;
      const std::uint32_t token = std::max(tile, slice.first_token);
      const std::uint32_t count = std::min(tile + tile_tokens, end_token) - token;
      const std::uint32_t row = part.first + slice.first_row + token - slice.first_token;
      const std::size_t at = std::size_t{row} * shape.kv_width();
      for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
        kernel::kernels().store_kv(key_ + at + head * shape.head_dim,
                                   value_ + at + head * shape.head_dim, shape.kv_width(), token,
                                   count, page_head(page, slice.page, head));
      }
    });
  }
}

/// Keeps the normed rows, for those sequences that want it. All read what is kept.
void ForwardPass::keep_hidden(std::uint32_t layer) {
  if (!kept_) return;
  const std::uint32_t width = model_->shape.embedding;
  const std::size_t bytes = hidden_row_bytes(*kept_, width);
  // Kernels of integer weights read no more of a row than q8 has.
  const bool changes_rows =
      *kept_ == HiddenType::f16 ||
      (*kept_ == HiddenType::q8 && !reads_integers_only(model_->layers[layer]));
  for (const Part& part : parts_) {
    std::byte* const place = part.segment->kv->hidden_rows(layer);
    if (place == nullptr && !changes_rows) continue;
    for_rows(*parallel_, part.count, [&](std::uint32_t i) {
      const std::size_t row = part.first + i;
      kernel::QuantizedRows scratch = quantized_;
      scratch.width = width;
      std::byte* const out = place != nullptr ? place + i * bytes : kept_rows_ + row * bytes;
      keep_row(*kept_, normed_ + row * width, width, scratch.from_row(row), out);
      if (changes_rows) read_row(*kept_, out, width, normed_ + row * width);
    });
  }
}

void ForwardPass::run_keys_and_values(std::uint32_t layer) {
  const ModelShape& shape = model_->shape;
  const LayerWeights& weights = model_->layers[layer];
  const std::uint32_t count = row_count();
  norm_rows(weights.attention_norm, hidden_, count);
  keep_hidden(layer);
  multiply({{&weights.query, {query_, shape.query_width(), false}},
            {&weights.key, {key_, shape.kv_width(), false}},
            {&weights.value, {value_, shape.kv_width(), false}}},
           input_rows(normed_, shape.embedding, count));
  finish_heads(layer, count);
  for (const Part& part : parts_) write_kv(part, layer);
}

/// A row's query, turned back by so many positions. Null where it stays as it is.
const float* ForwardPass::pack_query(const float* query, std::uint32_t layer, std::uint32_t shift) {
  const ModelShape& shape = model_->shape;
  if (shift == 0 || !shape.is_rotated(layer)) return nullptr;
  if (packed_by_ != shift) {
    RopeSpec rope = model_->rope;
    rope.magnitude = 1;  // the query has it
    fill_angles(rope, -static_cast<double>(shift), packed_angles_.cosine, packed_angles_.sine);
    packed_by_ = shift;
  }
  std::copy_n(query, shape.query_width(), first_query_);
  rotate_heads(shape, shape.query_heads, packed_angles_.cosine, packed_angles_.sine, first_query_);
  return first_query_;
}

Result<void> ForwardPass::run_attention(std::uint32_t layer) {
  const ModelShape& shape = model_->shape;
  for (const Part& part : parts_) {
    if (part.count == 0) continue;
    const std::size_t at = std::size_t{part.first} * shape.query_width();
    const std::uint32_t position = part.segment->first_position + part.skipped;
    AttentionRows rows = {query_ + at, attended_ + at, part.count, position, shape.window(layer)};
    SequenceKv& kv = *part.segment->kv;
    HEADRACE_TRY_ASSIGN(const std::optional<RecallView> recall, kv.recall(layer));
    if (recall) {
      rows.first_queries =
          pack_query(rows.queries, layer, packed_shift(*recall->options, position));
      HEADRACE_TRY(attention_.run_recall(rows, kv, layer, *recall));
    } else {
      HEADRACE_TRY(attention_.run(rows, kv.shape(), kv.attend(layer)));
    }
  }
  const LayerWeights& weights = model_->layers[layer];
  add_product(weights.attention_output, input_rows(attended_, shape.query_width(), row_count()),
              weights.attention_post_norm);
  return {};
}

void ForwardPass::run_feed_forward(const LayerWeights& layer) {
  const ModelShape& shape = model_->shape;
  const std::uint32_t count = row_count();
  norm_rows(layer.feed_forward_norm, hidden_, count);
  multiply({{&layer.gate, {gate_, shape.feed_forward, false}},
            {&layer.up, {up_, shape.feed_forward, false}}},
           input_rows(normed_, shape.embedding, count));
  const auto activate =
      shape.activation == Activation::gelu ? kernel::kernels().geglu : kernel::kernels().swiglu;
  for_rows(*parallel_, count, [&](std::uint32_t row) {
    const std::size_t at = std::size_t{row} * shape.feed_forward;
    activate(gate_ + at, up_ + at, shape.feed_forward, gate_ + at);
  });
  add_product(layer.down, input_rows(gate_, shape.feed_forward, count),
              layer.feed_forward_post_norm);
}

void ForwardPass::finish_logits(std::uint32_t count) {
  const ModelShape& shape = model_->shape;
  if (shape.logit_scale == 1.0F && shape.logit_cap == 0.0F) return;
  for_rows(*parallel_, count, [&](std::uint32_t row) {
    float* logits = logits_ + std::size_t{row} * shape.vocabulary;
    scale_row(logits, shape.logit_scale, shape.vocabulary);
    if (shape.logit_cap == 0.0F) return;
    for (std::uint32_t i = 0; i < shape.vocabulary; ++i)
      logits[i] = shape.logit_cap * std::tanh(logits[i] / shape.logit_cap);
  });
}

bool ForwardPass::deliver(const BatchLogits& on_logits, std::uint32_t first, std::uint32_t count) {
  for (std::uint32_t row = first; row < first + count; ++row) {
    std::size_t index = 0;
    while (row >= parts_[index].first + parts_[index].count) ++index;
    const Part& part = parts_[index];
    const float* logits = logits_ + std::size_t{row - first} * model_->shape.vocabulary;
    if (!on_logits(index, part.skipped + row - part.first, logits)) return false;
  }
  return true;
}

void ForwardPass::run_output(const BatchLogits& on_logits) {
  const ModelShape& shape = model_->shape;
  const std::uint32_t count = row_count();
  for (std::uint32_t row = 0; row < count; row += logits_rows) {
    const std::uint32_t rows = std::min(logits_rows, count - row);
    norm_rows(model_->output_norm, hidden_ + std::size_t{row} * shape.embedding, rows);
    multiply({{&model_->output, {logits_, shape.vocabulary, false}}},
             input_rows(normed_, shape.embedding, rows));
    finish_logits(rows);
    if (!deliver(on_logits, row, rows)) return;
  }
}

Result<void> ForwardPass::run(const Segment& segment, const RowLogits& on_logits) {
  return run({&segment, 1}, [&](std::size_t, std::uint32_t row, const float* logits) {
    return on_logits(row, logits);
  });
}

Result<void> ForwardPass::run(std::span<const Segment> segments, const BatchLogits& on_logits) {
  place(segments);
  const auto layers = static_cast<std::uint32_t>(model_->layers.size());
  const std::uint32_t wanted = segments.front().layers_end;
  const std::uint32_t layers_end = wanted == 0 ? layers : wanted;
  for (const Part& part : parts_) {
    HEADRACE_CHECK(part.segment->layers_end == wanted, "segments that run to different layers");
    embed(part);
    prepare_rope(part, model_->rope, angles_);
    prepare_rope(part, model_->window_rope, window_angles_);
  }
  for (std::uint32_t layer = 0; layer < layers_end; ++layer) {
    run_keys_and_values(layer);
    if (layer + 1 == layers_end) {
      // Of the last layer only the rows that give logits are needed beyond keys and values.
      if (layers_end < layers) break;
      keep_logits_rows();
      if (row_count() == 0) break;
    }
    HEADRACE_TRY(run_attention(layer));
    run_feed_forward(model_->layers[layer]);
  }
  if (layers_end == layers && row_count() > 0) run_output(on_logits);
  return {};
}

}  // namespace headrace
