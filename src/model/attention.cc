#include "model/attention.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace headrace {
namespace {

/// Tasks of a single row's fold for each worker: two, so that they end together.
constexpr std::size_t tasks_per_worker = 2;
constexpr std::size_t recall_tasks_per_worker = 8;
/// Vectors of a many-row task: the task's pages of a batch are read once per this many.
constexpr std::uint32_t task_vectors = 4 * kernel::fold_vectors_max;

/// Tokens of a page that a row reads: [begin, end) of the page.
struct ReadRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  bool empty() const { return begin >= end; }
};

ReadRange read_range(const PageView& view, std::uint32_t position, std::uint32_t window) {
  if (position < view.first_position) return {};
  ReadRange range;
  range.end = std::min(view.tokens, position - view.first_position + 1);
  if (window != 0 && position - view.first_position >= window)
    range.begin = position - view.first_position - window + 1;
  return range;
}

std::size_t scratch_floats(std::uint32_t page_tokens, std::uint32_t head_dim) {
  return kernel::fold_scratch_floats(page_tokens) +
         kernel::fold_vectors_max * kernel::fold_state_floats(head_dim);
}

}  // namespace

kernel::PageHead page_head(const PageShape& shape, std::byte* page, std::uint32_t kv_head) {
  return {page + shape.k_offset(kv_head), page + shape.v_offset(kv_head), shape.type, shape.tokens,
          shape.head_dim};
}

Result<Attention> Attention::create(Parallel& parallel, const ModelShape& shape,
                                    const PageShape& page, std::uint32_t rows_max) {
  Attention attention;
  attention.parallel_ = &parallel;
  attention.kv_heads_ = shape.kv_heads;
  attention.group_ = shape.query_heads / shape.kv_heads;
  attention.head_dim_ = shape.head_dim;
  attention.score_scale_ =
      shape.attention_scale != 0.0
          ? std::numbers::log2e * shape.attention_scale
          : std::numbers::log2e / std::sqrt(static_cast<double>(shape.head_dim));
  attention.vectors_max_ = rows_max * attention.group_;
  attention.state_floats_ = kernel::fold_state_floats(shape.head_dim);
  attention.scratch_floats_ = scratch_floats(page.tokens, shape.head_dim);
  const std::size_t vectors = std::size_t{rows_max} * shape.query_heads;
  const auto floats = [](std::size_t count) {
    return AlignedBuffer::allocate(count * sizeof(float));
  };
  HEADRACE_TRY_ASSIGN(
      attention.queries_,
      AlignedBuffer::allocate(vectors * kernel::prepared_query_bytes(shape.head_dim)));
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

std::byte* Attention::query(std::uint32_t row, std::uint32_t head) {
  return queries_.data() +
         (std::size_t{row} * kv_heads_ * group_ + head) * kernel::prepared_query_bytes(head_dim_);
}

void Attention::prepare_queries(const AttentionRows& rows, KvType type) {
  const auto scale = static_cast<float>(score_scale_);
  const std::uint32_t heads = kv_heads_ * group_;
  const auto prepare = [&](std::size_t row, std::size_t) {
    for (std::uint32_t head = 0; head < heads; ++head) {
      kernel::kernels().prepare_query(rows.queries + (row * heads + head) * head_dim_, scale,
                                      head_dim_, type,
                                      query(static_cast<std::uint32_t>(row), head));
    }
  };
  if (rows.count == 1) return prepare(0, 0);
  parallel_->run(rows.count, prepare);
}

void Attention::prepare_first_queries(const AttentionRows& rows, KvType type) {
  has_first_queries_ = rows.first_queries != nullptr;
  const std::size_t bytes = kernel::prepared_query_bytes(head_dim_);
  for (std::uint32_t head = 0; has_first_queries_ && head < kv_heads_ * group_; ++head) {
    kernel::kernels().prepare_query(rows.first_queries + std::size_t{head} * head_dim_,
                                    static_cast<float>(score_scale_), head_dim_, type,
                                    first_queries_.data() + head * bytes);
  }
}

/// Those of vectors [first, end) of a kv head that read the page, at most fold_vectors_max.
void Attention::gather(Gathered& gathered, const AttentionRows& rows, const PageShape& page,
                       const PageView& view, std::uint32_t kv_head, std::uint32_t first_vector,
                       std::uint32_t end_vector) {
  std::uint32_t count = 0;
  for (std::uint32_t vector = first_vector; vector < end_vector; ++vector) {
    const std::uint32_t row = vector / group_;
    const ReadRange range = read_range(view, rows.first_position + row, rows.window);
    if (range.empty()) continue;
    gathered.queries[count] = query(row, kv_head * group_ + vector % group_);
    gathered.begin[count] = range.begin;
    gathered.end[count] = range.end;
    gathered.vectors[count++] = vector;
  }
  // The fold only reads the page; PageHead also serves writers.
  auto* data = const_cast<std::byte*>(view.data);
  gathered.in = {data == nullptr ? kernel::PageHead() : page_head(page, data, kv_head), count,
                 gathered.queries.data(), gathered.begin.data(), gathered.end.data()};
}

void Attention::fold_many_rows(const AttentionRows& rows, const PageShape& page,
                               std::span<const PageView> batch, bool first_batch) {
  const std::uint32_t vectors = rows.count * group_;
  const std::uint32_t runs = (vectors + task_vectors - 1) / task_vectors;
  parallel_->run(std::size_t{runs} * kv_heads_, [&](std::size_t task, std::size_t worker) {
    const auto kv_head = static_cast<std::uint32_t>(task / runs);
    const auto run =
        static_cast<std::uint32_t>(runs - 1 - task % runs);  // the rows that see most go first
    const std::uint32_t end = std::min(vectors, (run + 1) * task_vectors);
    if (first_batch) {
      for (std::uint32_t vector = run * task_vectors; vector < end; ++vector)
        kernel::fold_reset(state(kv_head, vector), head_dim_);
    }
    float* scores = reinterpret_cast<float*>(scratch_.data()) + worker * scratch_floats_;
    float* partials = scores + kernel::fold_scratch_floats(page.tokens);
    Gathered gathered;
    for (const PageView& view : batch) {
      for (std::uint32_t first = run * task_vectors; first < end;
           first += kernel::fold_vectors_max) {
        gather(gathered, rows, page, view, kv_head, first,
               std::min(end, first + kernel::fold_vectors_max));
        if (gathered.in.vectors == 0) continue;
        kernel::kernels().fold_page(gathered.in, scores, partials);
        for (std::uint32_t i = 0; i < gathered.in.vectors; ++i) {
          kernel::kernels().fold_merge(state(kv_head, gathered.vectors[i]),
                                       partials + i * state_floats_, head_dim_);
        }
      }
    }
  });
}

float* Attention::newest_state(std::uint32_t query_head) {
  return reinterpret_cast<float*>(newest_.data()) + query_head * state_floats_;
}

const BlockChoice& Attention::choice_of(const PageView& view, std::uint32_t kv_head) const {
  const std::uint32_t block = view.first_position / page_tokens_;
  return window_ ? window_->block(block, kv_head) : chooser_->block(block, kv_head);
}

/// Those of choice_tokens that hold these ones, ascending.
std::span<const std::uint16_t> Attention::stored_groups(std::span<const std::uint16_t> groups,
                                                        std::size_t worker) {
  constexpr std::uint32_t parts = choice_tokens / kernel::group_tokens;
  std::vector<std::uint16_t>& stored = stored_groups_[worker];
  stored.clear();
  for (const std::uint16_t group : groups) {
    const auto number = static_cast<std::uint16_t>(group / parts);
    if (stored.empty() || stored.back() != number) stored.push_back(number);
  }
  return stored;
}

/// Without those that wait for the next step.
Attention::ChosenGroups Attention::present_groups(const ChosenGroups& chosen, const SequenceKv& kv,
                                                  const PageView& view, std::size_t worker) {
  constexpr std::uint32_t parts = choice_tokens / kernel::group_tokens;
  PresentGroups& present = present_groups_[worker];
  present.groups.clear();
  present.factors.clear();
  for (std::size_t i = 0; i < chosen.groups.size(); ++i) {
    if (kv.is_deferred(view, chosen.groups[i] / parts)) continue;
    present.groups.push_back(chosen.groups[i]);
    present.factors.push_back(chosen.factors[i]);
  }
  return {present.groups, present.factors};
}

/// What the vectors of a kv head, from `first` on, read of a page in recall.
void Attention::fold_chosen(kernel::FoldInput& in, const SequenceKv& kv, const PageView& view,
                            std::uint32_t kv_head, std::uint32_t first, std::size_t worker,
                            float* states) {
  const BlockChoice& choice = choice_of(view, kv_head);
  float* const scratch = reinterpret_cast<float*>(scratch_.data()) + worker * scratch_floats_;
  if (choice.is_empty()) return;
  if (view.data == newest_page_) {
    std::copy_n(newest_state(kv_head * group_ + first), in.vectors * state_floats_, states);
  } else if (choice.is_whole) {
    kernel::kernels().fold_page(in, scratch, states);
  } else {
    const std::uint32_t block = view.first_position / page_tokens_;
    ChosenGroups chosen = {chooser_->groups(block, kv_head), chooser_->factors(block, kv_head)};
    if (view.data == nullptr) {
      if (kv.defers_groups()) chosen = present_groups(chosen, kv, view, worker);
      if (chosen.groups.empty()) {
        for (std::uint32_t i = 0; i < in.vectors; ++i)
          kernel::fold_reset(states + i * state_floats_, head_dim_);
        return;
      }
      // What is in memory goes to its place in a page: the same bits as if it were all there.
      std::byte* const part = parts_.data() + worker * kv.shape().bytes();
      if (first == 0) kv.copy_groups(view, kv_head, stored_groups(chosen.groups, worker), part);
      in.page = page_head(kv.shape(), part, kv_head);
    }
    in.group_factors = chosen.factors.data();
    kernel::kernels().fold_groups(in, chosen.groups.data(),
                                  static_cast<std::uint32_t>(chosen.groups.size()), scratch,
                                  states);
  }
}

/// Asks for the keys with which a fold of chosen groups begins: it asks for all others itself.
void Attention::ask_for_chosen(const PageShape& page, const PageView& view, std::uint32_t kv_head) {
  if (view.data == nullptr || view.data == newest_page_) return;
  const auto groups = chooser_->groups(view.first_position / page_tokens_, kv_head);
  kernel::kernels().ask_for_groups(page_head(page, const_cast<std::byte*>(view.data), kv_head),
                                   groups.data(), static_cast<std::uint32_t>(groups.size()));
}

/// The same in window and sparse attention: some groups, and all tokens from one on.
void Attention::fold_in_window(Gathered& gathered, const PageView& view, std::uint32_t kv_head,
                               std::uint32_t first, float* scratch, float* states) {
  const kernel::FoldInput& in = gathered.in;
  const std::uint32_t head = kv_head * group_ + first;
  const std::uint32_t block = view.first_position / page_tokens_;
  const BlockChoice& choice = window_->block(block, kv_head);
  const std::uint32_t noted = window_->takes_notes() ? in.vectors : 0;
  if (choice.groups > 0) {
    const auto groups = window_->groups(block, kv_head);
    const auto all_queries = gathered.queries;
    for (std::uint32_t i = 0; has_first_queries_ && i < in.vectors; ++i) {
      gathered.queries[i] =
          first_queries_.data() + (head + i) * kernel::prepared_query_bytes(head_dim_);
    }
    kernel::kernels().fold_groups(in, groups.data(), choice.groups, scratch, states);
    gathered.queries = all_queries;
    for (std::uint32_t i = 0; i < noted; ++i) {
      window_->note_groups(head + i, block, scratch + std::size_t{i} * page_tokens_,
                           states[i * state_floats_]);
    }
  }
  if (choice.whole_from == BlockChoice::none) return;
  for (std::uint32_t i = 0; i < in.vectors; ++i)
    gathered.begin[i] = std::max(gathered.begin[i], choice.whole_from);
  float* const newest =
      choice.groups == 0 ? states : scratch + kernel::fold_scratch_floats(page_tokens_);
  kernel::kernels().fold_page(in, scratch, newest);
  for (std::uint32_t i = 0; i < noted; ++i) {
    window_->note_newest(head + i, block, scratch + std::size_t{i} * page_tokens_,
                         newest[i * state_floats_]);
  }
  for (std::uint32_t i = 0; newest != states && i < in.vectors; ++i) {
    kernel::kernels().fold_merge(states + i * state_floats_, newest + i * state_floats_, head_dim_);
  }
}

void Attention::fold_one_row(const AttentionRows& rows, const PageShape& page,
                             std::span<const PageView> batch, SequenceKv* recalled) {
  // Pages before the window have nothing to say.
  while (!batch.empty() && read_range(batch[0], rows.first_position, rows.window).empty())
    batch = batch.subspan(1);
  auto* partials = reinterpret_cast<float*>(partials_.data());
  const auto partial = [&](std::size_t view, std::size_t kv_head) {
    return partials + (view * kv_heads_ + kv_head) * group_ * state_floats_;
  };
  for (; !batch.empty(); batch = batch.subspan(std::min(batch.size(), pages_per_pass))) {
    const std::size_t pages = std::min(batch.size(), pages_per_pass);
    // Heads lie one after the other in a page, and reading ahead begins anew with every task: so a
    // task is a run of heads of pages, and there are few. In recall one may have much to read and
    // the next one nothing, so there are more.
    const std::size_t heads = pages * kv_heads_;
    const std::size_t tasks =
        std::min(heads, (recalled != nullptr ? recall_tasks_per_worker : tasks_per_worker) *
                            parallel_->workers());
    parallel_->run(tasks, [&](std::size_t task, std::size_t worker) {
      float* scores = reinterpret_cast<float*>(scratch_.data()) + worker * scratch_floats_;
      Gathered gathered;
      for (std::size_t i = task * heads / tasks; i < (task + 1) * heads / tasks; ++i) {
        const auto kv_head = static_cast<std::uint32_t>(i % kv_heads_);
        for (std::uint32_t first = 0; first < group_; first += kernel::fold_vectors_max) {
          gather(gathered, rows, page, batch[i / kv_heads_], kv_head, first,
                 std::min(group_, first + kernel::fold_vectors_max));
          float* const states = partial(i / kv_heads_, kv_head) + first * state_floats_;
          if (recalled != nullptr && window_) {
            fold_in_window(gathered, batch[i / kv_heads_], kv_head, first, scores, states);
          } else if (recalled != nullptr) {
            if (const std::size_t next = i + 1; first == 0 && next < (task + 1) * heads / tasks) {
              ask_for_chosen(page, batch[next / kv_heads_],
                             static_cast<std::uint32_t>(next % kv_heads_));
            }
            fold_chosen(gathered.in, *recalled, batch[i / kv_heads_], kv_head, first, worker,
                        states);
          } else {
            kernel::kernels().fold_page(gathered.in, scores, states);
          }
        }
      }
    });
    for (std::size_t view = 0; view < pages; ++view) {
      for (std::uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
        // Also where all that was chosen waits for the next step nothing was read.
        if (recalled != nullptr &&
            (choice_of(batch[view], kv_head).is_empty() || std::isinf(*partial(view, kv_head))))
          continue;
        for (std::uint32_t i = 0; i < group_; ++i) {
          kernel::kernels().fold_merge(state(kv_head, i),
                                       partial(view, kv_head) + i * state_floats_, head_dim_);
        }
      }
    }
  }
}

void Attention::reset_one_row() {
  for (std::uint32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
    for (std::uint32_t i = 0; i < group_; ++i) kernel::fold_reset(state(kv_head, i), head_dim_);
  }
}

void Attention::finish(const AttentionRows& rows) {
  parallel_->run(rows.count, [&](std::size_t row, std::size_t) {
    for (std::uint32_t head = 0; head < kv_heads_ * group_; ++head) {
      kernel::kernels().fold_finish(
          state(head / group_, static_cast<std::uint32_t>(row) * group_ + head % group_), head_dim_,
          rows.out + (row * kv_heads_ * group_ + head) * head_dim_);
    }
  });
}

Result<void> Attention::run(const AttentionRows& rows, const PageShape& page, PageStream& pages) {
  prepare_queries(rows, page.type);
  if (rows.count == 1) reset_one_row();
  for (bool first_batch = true;; first_batch = false) {
    HEADRACE_TRY_ASSIGN(const std::span<const PageView> batch, pages.next());
    if (batch.empty()) break;
    if (rows.count == 1) {
      fold_one_row(rows, page, batch, nullptr);
    } else {
      fold_many_rows(rows, page, batch, first_batch);
    }
  }
  finish(rows);
  return {};
}

Result<void> Attention::prepare_recall(const ModelShape& shape, const PageShape& page,
                                       std::uint32_t context, const AttentionOptions& options) {
  page_tokens_ = page.tokens;
  if (options.certify) HEADRACE_TRY(prepare_certify());
  if (options.mode != AttentionMode::recall) {
    HEADRACE_TRY_ASSIGN(WindowChooser window,
                        WindowChooser::create(*parallel_, shape, page, context, options));
    if (packs_positions(options)) {
      HEADRACE_TRY_ASSIGN(first_queries_,
                          AlignedBuffer::allocate(shape.query_heads *
                                                  kernel::prepared_query_bytes(shape.head_dim)));
    }
    window_ = std::move(window);
    return {};
  }
  HEADRACE_TRY_ASSIGN(RecallChooser chooser,
                      RecallChooser::create(*parallel_, shape, page, context));
  HEADRACE_TRY_ASSIGN(newest_,
                      AlignedBuffer::allocate(shape.query_heads * state_floats_ * sizeof(float)));
  stored_groups_.resize(parallel_->workers());
  present_groups_.resize(parallel_->workers());
  for (std::vector<std::uint16_t>& groups : stored_groups_)
    groups.reserve(page.tokens / choice_tokens);
  for (PresentGroups& present : present_groups_) {
    present.groups.reserve(page.tokens / kernel::group_tokens);
    present.factors.reserve(page.tokens / kernel::group_tokens);
  }
  HEADRACE_TRY_ASSIGN(parts_, AlignedBuffer::allocate(parallel_->workers() * page.bytes()));
  chooser_ = std::move(chooser);
  return {};
}

/// Folds the newest page, which is always read: what its tokens weigh tells how much the others
/// matter.
void Attention::fold_newest(const AttentionRows& rows, const PageShape& page, const PageView& view,
                            std::uint32_t kv_head, std::size_t worker) {
  float* scores = reinterpret_cast<float*>(scratch_.data()) + worker * scratch_floats_;
  Gathered gathered;
  for (std::uint32_t first = 0; first < group_; first += kernel::fold_vectors_max) {
    gather(gathered, rows, page, view, kv_head, first,
           std::min(group_, first + kernel::fold_vectors_max));
    kernel::kernels().fold_page(gathered.in, scores, newest_state(kv_head * group_ + first));
  }
  for (std::uint32_t head = kv_head * group_; head < (kv_head + 1) * group_; ++head)
    chooser_->set_newest(head, newest_state(head)[0], newest_state(head)[1]);
}

void Attention::choose(const AttentionRows& rows, const PageShape& page, std::uint32_t layer,
                       const RecallView& view) {
  if (window_) return window_->choose(rows.first_position, view);
  newest_page_ = view.newest.data;
  chooser_->begin(rows.queries, score_scale_, layer, view);
  const std::size_t blocks = view.sketches.size();
  const std::size_t runs = std::min(blocks, recall_tasks_per_worker * parallel_->workers());
  parallel_->run(kv_heads_ + runs, [&](std::size_t task, std::size_t worker) {
    if (task < kv_heads_)
      return fold_newest(rows, page, view.newest, static_cast<std::uint32_t>(task), worker);
    const std::size_t run = task - kv_heads_;
    for (std::size_t block = run * blocks / runs; block < (run + 1) * blocks / runs; ++block)
      chooser_->score_block(static_cast<std::uint32_t>(block), worker);
  });
  chooser_->choose(rows.first_position);
}

/// Adds what this step gave to tokens to what those before it did.
void Attention::add_up_mass() {
  if (!window_ || !window_->takes_notes()) return;
  parallel_->run(kv_heads_, [&](std::size_t task, std::size_t) {
    const auto kv_head = static_cast<std::uint32_t>(task);
    for (std::uint32_t i = 0; i < group_; ++i) {
      const float* const total = state(kv_head, i);
      window_->set_total(kv_head * group_ + i, total[0], total[1]);
    }
    window_->add_up(kv_head);
  });
}

Result<void> Attention::run_recall(const AttentionRows& rows, SequenceKv& kv, std::uint32_t layer,
                                   const RecallView& view) {
  HEADRACE_CHECK((chooser_ || window_) && rows.count == 1, "a part is read one row at a time");
  const PageShape& page = kv.shape();
  prepare_queries(rows, page.type);
  prepare_first_queries(rows, page.type);
  reset_one_row();
  choose(rows, page, layer, view);
  const TokenChoice choice = window_ ? window_->choice() : chooser_->choice();
  if (const std::size_t missing = kv.choose(layer, choice); missing > 0)
    parallel_->run(missing, [&](std::size_t i, std::size_t) { kv.load_group(i); });
  PageStream& pages = kv.attend_chosen(layer);
  while (true) {
    HEADRACE_TRY_ASSIGN(const std::span<const PageView> batch, pages.next());
    if (batch.empty()) break;
    fold_one_row(rows, page, batch, &kv);
  }
  add_up_mass();
  finish(rows);
  return view.options->certify ? certify(rows, kv, layer) : Result<void>();
}

}  // namespace headrace
