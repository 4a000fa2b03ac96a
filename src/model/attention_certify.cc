// What a step that reads a part of the tokens is away from one that reads all of them: measured
// against the keys and values themselves, not estimated from sketches. It costs more than the exact
// step that was saved, so it is for finding out, text by text, what options can be trusted with.
#include <algorithm>
#include <cmath>

#include "model/attention.h"

namespace headrace {

void CertifiedCounters::note_head(double mass_not_read) {
  ++heads;
  mass_not_read_sum += mass_not_read;
  mass_not_read_most = std::max(mass_not_read_most, mass_not_read);
}

void CertifiedCounters::note_layer(double error) {
  ++layers;
  error_sum += error;
  error_most = std::max(error_most, error);
}

void Attention::Weight::add(const Weight& other) {
  const float most = std::max(maximum, other.maximum);
  if (std::isinf(most)) return;
  sum = sum * std::exp2(double{maximum} - double{most}) +
        other.sum * std::exp2(double{other.maximum} - double{most});
  maximum = most;
}

Result<void> Attention::prepare_certify() {
  HEADRACE_TRY_ASSIGN(certified_, AlignedBuffer::allocate(std::size_t{kv_heads_} * group_ *
                                                          head_dim_ * sizeof(float)));
  read_.resize(pages_per_pass * kv_heads_ * group_);
  read_totals_.resize(std::size_t{kv_heads_} * group_);
  return {};
}

/// What the vectors of a kv head give to those tokens of a page that were chosen, each counting
/// once. `all`: what they read of the whole page; `states`: room for what they read of a part.
void Attention::weigh_chosen(Gathered& gathered, const PageView& view, std::uint32_t kv_head,
                             float* scratch, const float* all, float* states, Weight* out) {
  const std::uint32_t block = view.first_position / page_tokens_;
  const BlockChoice& choice = choice_of(view, kv_head);
  const auto note = [&](const float* read) {
    for (std::uint32_t i = 0; i < gathered.in.vectors; ++i) {
      const float* const state = read + i * state_floats_;
      out[i].add({state[0], double{state[1]}});
    }
  };
  std::fill_n(out, gathered.in.vectors, Weight());
  if (choice.is_whole) return note(all);
  if (choice.groups > 0) {
    const auto groups =
        window_ ? window_->groups(block, kv_head) : chooser_->groups(block, kv_head);
    kernel::kernels().fold_groups(gathered.in, groups.data(), choice.groups, scratch, states);
    note(states);
  }
  if (choice.whole_from == BlockChoice::none) return;
  for (std::uint32_t i = 0; i < gathered.in.vectors; ++i)
    gathered.begin[i] = std::max(gathered.begin[i], choice.whole_from);
  kernel::kernels().fold_page(gathered.in, scratch, states);
  note(states);
}

/// Behind a row that read a part of a layer, with what that gave in rows.out.
Result<void> Attention::certify(const AttentionRows& rows, SequenceKv& kv, std::uint32_t layer) {
  const PageShape& page = kv.shape();
  const std::size_t heads = std::size_t{kv_heads_} * group_;
  std::ranges::fill(read_totals_, Weight());
  reset_one_row();
  auto* const partials = reinterpret_cast<float*>(partials_.data());
  PageStream& pages = kv.attend(layer);
  while (true) {
    HEADRACE_TRY_ASSIGN(std::span<const PageView> batch, pages.next());
    if (batch.empty()) break;
    for (; !batch.empty(); batch = batch.subspan(std::min(batch.size(), pages_per_pass))) {
      const std::size_t count = std::min(batch.size(), pages_per_pass);
      parallel_->run(count * kv_heads_, [&](std::size_t task, std::size_t worker) {
        const PageView& view = batch[task / kv_heads_];
        const auto kv_head = static_cast<std::uint32_t>(task % kv_heads_);
        float* const scratch = reinterpret_cast<float*>(scratch_.data()) + worker * scratch_floats_;
        float* const chosen = scratch + kernel::fold_scratch_floats(page.tokens);
        Gathered gathered;
        for (std::uint32_t first = 0; first < group_; first += kernel::fold_vectors_max) {
          gather(gathered, rows, page, view, kv_head, first,
                 std::min(group_, first + kernel::fold_vectors_max));
          const std::size_t vector = task * group_ + first;
          float* const all = partials + vector * state_floats_;
          kernel::kernels().fold_page(gathered.in, scratch, all);
          weigh_chosen(gathered, view, kv_head, scratch, all, chosen, &read_[vector]);
        }
      });
      for (std::size_t i = 0; i < count * heads; ++i) {
        kernel::kernels().fold_merge(state(static_cast<std::uint32_t>(i % heads / group_),
                                           static_cast<std::uint32_t>(i % group_)),
                                     partials + i * state_floats_, head_dim_);
        read_totals_[i % heads].add(read_[i]);
      }
    }
  }
  AttentionRows exact = rows;
  exact.out = reinterpret_cast<float*>(certified_.data());
  finish(exact);
  note_certified(rows.out, exact.out);
  return {};
}

void Attention::note_certified(const float* out, const float* exact) {
  const std::uint32_t heads = kv_heads_ * group_;
  for (std::uint32_t head = 0; head < heads; ++head) {
    const float* const all = state(head / group_, head % group_);
    const Weight& read = read_totals_[head];
    const double share =
        read.sum * std::exp2(double{read.maximum} - double{all[0]}) / double{all[1]};
    certified_counters_.note_head(std::max(0.0, 1.0 - share));
  }
  double squares = 0;
  double distance = 0;
  for (std::size_t i = 0; i < std::size_t{heads} * head_dim_; ++i) {
    squares += double{exact[i]} * double{exact[i]};
    distance += std::pow(double{out[i]} - double{exact[i]}, 2);
  }
  certified_counters_.note_layer(squares > 0 ? std::sqrt(distance / squares) : 0);
}

}  // namespace headrace
