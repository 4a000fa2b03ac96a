#include "model/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace headrace {
namespace {

/// Pages whose partials are kept at once when a single row is folded.
constexpr std::size_t pages_per_pass = 64;
/// Vectors of a many-row task: the task's pages of a batch are read once per this many.
constexpr std::uint32_t task_vectors = 4 * kernel::fold_vectors_max;

/// Tokens of the page that a row at `position` may read.
std::uint32_t visible_tokens(const PageView& view, std::uint32_t position) {
  if (position < view.first_position) return 0;
  return std::min(view.tokens, position - view.first_position + 1);
}

std::size_t scratch_floats(std::uint32_t page_tokens, std::uint32_t head_dim) {
  return kernel::fold_scratch_floats(page_tokens) +
         kernel::fold_vectors_max * kernel::fold_state_floats(head_dim);
}

}  // namespace

Result<Attention> Attention::create(Parallel& parallel, const ModelShape& shape,
                                    const PageShape& page, std::uint32_t rows_max) {
  Attention attention;
  attention.parallel_ = &parallel;
  attention.kv_heads_ = shape.kv_heads;
  attention.group_ = shape.query_heads / shape.kv_heads;
  attention.head_dim_ = shape.head_dim;
  attention.vectors_max_ = rows_max * attention.group_;
  attention.state_floats_ = kernel::fold_state_floats(shape.head_dim);
  attention.scratch_floats_ = scratch_floats(page.tokens, shape.head_dim);
  const std::size_t vectors = std::size_t{rows_max} * shape.query_heads;
  const auto floats = [](std::size_t count) {
    return AlignedBuffer::allocate(count * sizeof(float));
  };
  HEADRACE_TRY_ASSIGN(attention.queries_, floats(vectors * shape.head_dim));
  HEADRACE_TRY_ASSIGN(attention.states_, floats(vectors * attention.state_floats_));
  HEADRACE_TRY_ASSIGN(attention.partials_,
                      floats(pages_per_pass * shape.query_heads * attention.state_floats_));
  HEADRACE_TRY_ASSIGN(attention.scratch_, floats(parallel.workers() * attention.scratch_floats_));
  return attention;
}

float* Attention::state(std::uint32_t kv_head, std::uint32_t vector) {
  return reinterpret_cast<float*>(states_.data()) +
         (std::size_t{kv_head} * vectors_max_ + vector) * state_floats_;
}

void Attention::scale_queries(const AttentionRows& rows) {
  const auto scale =
      static_cast<float>(std::numbers::log2e / std::sqrt(static_cast<double>(head_dim_)));
  const std::size_t count = std::size_t{rows.count} * kv_heads_ * group_ * head_dim_;
  for (std::size_t i = 0; i < count; ++i) scaled_queries()[i] = rows.queries[i] * scale;
}

/// Partials of vectors [first, end) of one kv head for one page, at most fold_vectors_max, merged
/// into their states.
void Attention::fold_vectors(const AttentionRows& rows, const PageShape& page, const PageView& view,
                             std::uint32_t kv_head, std::uint32_t first_vector,
                             std::uint32_t end_vector, std::size_t worker) {
  std::array<const float*, kernel::fold_vectors_max> queries;
  std::array<std::uint32_t, kernel::fold_vectors_max> visible;
  std::array<float*, kernel::fold_vectors_max> states;
  kernel::FoldInput in;
  for (std::uint32_t vector = first_vector; vector < end_vector; ++vector) {
    const std::uint32_t row = vector / group_;
    const std::uint32_t tokens = visible_tokens(view, rows.first_position + row);
    if (tokens == 0) continue;
    queries[in.vectors] =
        scaled_queries() +
        (std::size_t{row} * kv_heads_ * group_ + kv_head * group_ + vector % group_) * head_dim_;
    visible[in.vectors] = tokens;
    states[in.vectors] = state(kv_head, vector);
    ++in.vectors;
  }
  if (in.vectors == 0) return;
  in.k = view.data + page.k_offset(kv_head);
  in.v = view.data + page.v_offset(kv_head);
  in.type = page.type;
  in.head_dim = head_dim_;
  in.queries = queries.data();
  in.visible = visible.data();
  float* scores = reinterpret_cast<float*>(scratch_.data()) + worker * scratch_floats_;
  float* partials = scores + kernel::fold_scratch_floats(page.tokens);
  kernel::kernels().fold_page(in, scores, partials);
  for (std::uint32_t i = 0; i < in.vectors; ++i) {
    kernel::kernels().fold_merge(states[i], partials + i * state_floats_, head_dim_);
  }
}

void Attention::fold_many_rows(const AttentionRows& rows, const PageShape& page,
                               std::span<const PageView> batch) {
  const std::uint32_t vectors = rows.count * group_;
  const std::uint32_t runs = (vectors + task_vectors - 1) / task_vectors;
  parallel_->run(std::size_t{runs} * kv_heads_, [&](std::size_t task, std::size_t worker) {
    const auto kv_head = static_cast<std::uint32_t>(task / runs);
    const auto run =
        static_cast<std::uint32_t>(runs - 1 - task % runs);  // the rows that see most go first
    const std::uint32_t end = std::min(vectors, (run + 1) * task_vectors);
    for (const PageView& view : batch) {
      for (std::uint32_t first = run * task_vectors; first < end;
           first += kernel::fold_vectors_max) {
        fold_vectors(rows, page, view, kv_head, first,
                     std::min(end, first + kernel::fold_vectors_max), worker);
      }
    }
  });
}

void Attention::fold_one_row(const AttentionRows& rows, const PageShape& page,
                             std::span<const PageView> batch) {
  auto* partials = reinterpret_cast<float*>(partials_.data());
  const auto partial = [&](std::size_t view, std::size_t kv_head) {
    return partials + (view * kv_heads_ + kv_head) * group_ * state_floats_;
  };
  for (; !batch.empty(); batch = batch.subspan(std::min(batch.size(), pages_per_pass))) {
    const std::size_t pages = std::min(batch.size(), pages_per_pass);
    parallel_->run(pages * kv_heads_, [&](std::size_t task, std::size_t worker) {
      const PageView& view = batch[task / kv_heads_];
      const auto kv_head = static_cast<std::uint32_t>(task % kv_heads_);
      float* scores = reinterpret_cast<float*>(scratch_.data()) + worker * scratch_floats_;
      for (std::uint32_t first = 0; first < group_; first += kernel::fold_vectors_max) {
        std::array<const float*, kernel::fold_vectors_max> queries;
        std::array<std::uint32_t, kernel::fold_vectors_max> visible;
        kernel::FoldInput in;
        in.k = view.data + page.k_offset(kv_head);
        in.v = view.data + page.v_offset(kv_head);
        in.type = page.type;
        in.head_dim = head_dim_;
        in.vectors = std::min(group_ - first, kernel::fold_vectors_max);
        for (std::uint32_t i = 0; i < in.vectors; ++i) {
          queries[i] = scaled_queries() + (std::size_t{kv_head} * group_ + first + i) * head_dim_;
          visible[i] = visible_tokens(view, rows.first_position);
        }
        in.queries = queries.data();
        in.visible = visible.data();
        kernel::kernels().fold_page(in, scores,
                                    partial(task / kv_heads_, kv_head) + first * state_floats_);
      }
    });
    for (std::size_t view = 0; view < pages; ++view) {
      for (std::uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
        for (std::uint32_t i = 0; i < group_; ++i) {
          kernel::kernels().fold_merge(state(kv_head, i),
                                       partial(view, kv_head) + i * state_floats_, head_dim_);
        }
      }
    }
  }
}

Result<void> Attention::run(const AttentionRows& rows, const PageShape& page, PageStream& pages) {
  scale_queries(rows);
  for (std::uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
    for (std::uint32_t i = 0; i < rows.count * group_; ++i)
      kernel::fold_reset(state(kv_head, i), head_dim_);
  }
  while (true) {
    HEADRACE_TRY_ASSIGN(const std::span<const PageView> batch, pages.next());
    if (batch.empty()) break;
    if (rows.count == 1) {
      fold_one_row(rows, page, batch);
    } else {
      fold_many_rows(rows, page, batch);
    }
  }
  parallel_->run(rows.count, [&](std::size_t row, std::size_t) {
    for (std::uint32_t head = 0; head < kv_heads_ * group_; ++head) {
      kernel::kernels().fold_finish(
          state(head / group_, static_cast<std::uint32_t>(row) * group_ + head % group_), head_dim_,
          rows.out + (row * kv_heads_ * group_ + head) * head_dim_);
    }
  });
  return {};
}

}  // namespace headrace
