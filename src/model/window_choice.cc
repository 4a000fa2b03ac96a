#include "model/window_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernel/fold_scratch.h"

namespace headrace {

using kernel::group_tokens;

namespace {

std::uint32_t groups_for(std::uint32_t tokens) {
  return (tokens + group_tokens - 1) / group_tokens;
}

/// That part of the tokens, in whole groups.
std::uint32_t groups_in(std::uint32_t tokens, float part) {
  return static_cast<std::uint32_t>(static_cast<float>(tokens) * part) / group_tokens;
}

/// Weights of `tokens` tokens, a multiple of 16, that a fold has left: sums of neighbouring ones.
void sums_of_groups(KvType type, const float* left, std::uint32_t tokens, float* sums) {
  if (!kernel::fold_leaves_weights(type)) {
    float maximum;  // the fold's own
    kernel::kernels().sketch_weights(left, tokens, sums, &maximum);
    return;
  }
  for (std::uint32_t group = 0; group < tokens / group_tokens; ++group) {
    const float* const weights = left + std::size_t{group} * group_tokens;
    sums[group] = (weights[0] + weights[1]) + (weights[2] + weights[3]);
  }
}

std::uint32_t whole_tiles(std::uint32_t tokens) {
  return (tokens + kernel::lanes - 1) / kernel::lanes * kernel::lanes;
}

}  // namespace

WindowLayout layout_of(const AttentionOptions& options, std::uint32_t position) {
  WindowLayout layout;
  layout.first_groups = groups_for(options.recall_first);
  std::uint32_t newest = options.window_tokens;
  if (options.mode == AttentionMode::sparse) {
    layout.sample_groups = groups_in(options.sparse_tokens, options.sparse_sample);
    layout.heavy_groups = groups_in(options.sparse_tokens, options.sparse_heavy);
    const std::uint32_t others =
        (layout.first_groups + layout.sample_groups + layout.heavy_groups) * group_tokens;
    newest = options.sparse_tokens - std::min(options.sparse_tokens, others);
    if (position < options.sparse_tokens) newest = position + 1;
  }
  layout.newest_from = position + 1 - std::min(position + 1, newest);
  layout.end_group = layout.newest_from / group_tokens;
  if (layout.newest_from <= layout.first_groups * group_tokens) {
    layout = {};  // nothing lies between them
    return layout;
  }
  const std::uint32_t between = layout.end_group - layout.first_groups;
  layout.sample_groups = std::min(layout.sample_groups, between);
  layout.heavy_groups = std::min(layout.heavy_groups, between - layout.sample_groups);
  if (layout.sample_groups > 0) {
    const std::uint32_t distance = (between + layout.sample_groups - 1) / layout.sample_groups;
    layout.shift = position % distance;
  }
  return layout;
}

std::uint32_t packed_shift(const AttentionOptions& options, std::uint32_t position) {
  if (!packs_positions(options)) return 0;
  const WindowLayout layout = layout_of(options, position);
  return layout.first_groups == 0 ? 0 : layout.newest_from - layout.first_groups * group_tokens;
}

Result<WindowChooser> WindowChooser::create(Parallel& parallel, const ModelShape& shape,
                                            const PageShape& page, std::uint32_t context,
                                            const AttentionOptions& options) {
  WindowChooser chooser;
  chooser.parallel_ = &parallel;
  chooser.page_ = page;
  chooser.group_heads_ = shape.query_heads / shape.kv_heads;
  chooser.blocks_max_ = (context + page.tokens - 1) / page.tokens;
  const std::size_t groups = std::size_t{chooser.blocks_max_} * chooser.groups_of_block();
  chooser.heads_.resize(shape.kv_heads);
  for (KvHead& head : chooser.heads_) {
    head.chosen.reserve(groups);
    head.candidates.reserve(notes_mass(options) ? groups : 0);
    head.blocks.resize(chooser.blocks_max_);
    head.groups.reserve(groups);
  }
  chooser.wanted_.reserve(chooser.blocks_max_);
  if (!notes_mass(options)) return chooser;
  HEADRACE_TRY_ASSIGN(chooser.weights_,
                      AlignedBuffer::allocate(shape.query_heads * groups * parts * sizeof(float)));
  chooser.part_maxima_.resize(std::size_t{shape.query_heads} * chooser.blocks_max_ * parts);
  chooser.maxima_.resize(shape.query_heads);
  chooser.sums_.resize(shape.query_heads);
  return chooser;
}

float* WindowChooser::weights(std::uint32_t query_head, std::uint32_t block, Part part) {
  return reinterpret_cast<float*>(weights_.data()) +
         ((std::size_t{query_head} * blocks_max_ + block) * parts + part) * groups_of_block();
}

float& WindowChooser::part_maximum(std::uint32_t query_head, std::uint32_t block, Part part) {
  return part_maxima_[(std::size_t{query_head} * blocks_max_ + block) * parts + part];
}

void WindowChooser::choose(std::uint32_t position, const RecallView& view) {
  view_ = &view;
  position_ = position;
  WindowLayout layout = layout_of(*view.options, position);
  // What tokens were given that no step has read is found by reading them.
  is_look_ = takes_notes() && !view.is_mass_known;
  if (is_look_) layout = {};
  // A zone that ends in the group of the first of the newest tokens begins before them.
  const std::uint32_t border = layout.end_group * group_tokens;
  if (border < layout.newest_from && view.has_zone(border, group_tokens))
    layout.newest_from = border;
  parallel_->run(page_.kv_heads, [&](std::size_t task, std::size_t) {
    const auto kv_head = static_cast<std::uint32_t>(task);
    choose_groups(kv_head, layout);
    list_blocks(kv_head, layout, position);
  });
  wanted_.assign(blocks(), 0);
  for (const KvHead& head : heads_) {
    ++counters_.choices;
    counters_.tokens_read += head.tokens_read;
    for (std::uint32_t block = 0; block < blocks(); ++block)
      if (!head.blocks[block].is_empty()) wanted_[block] = 1;
  }
}

void WindowChooser::choose_groups(std::uint32_t kv_head, const WindowLayout& layout) {
  std::vector<std::uint32_t>& chosen = heads_[kv_head].chosen;
  chosen.clear();
  for (std::uint32_t group = 0; group < layout.first_groups; ++group) chosen.push_back(group);
  const std::uint64_t between = layout.end_group - layout.first_groups;
  for (std::uint64_t i = 0; i < layout.sample_groups; ++i) {
    chosen.push_back(layout.first_groups + layout.shift +
                     static_cast<std::uint32_t>(i * between / layout.sample_groups));
  }
  if (!view_->zones.empty()) add_zones(chosen, layout);
  if (layout.heavy_groups > 0) choose_heavy(kv_head, layout);
}

/// Groups in zones that are not chosen yet, each at its place.
void WindowChooser::add_zones(std::vector<std::uint32_t>& chosen,
                              const WindowLayout& layout) const {
  const auto others = static_cast<std::ptrdiff_t>(chosen.size());
  for (std::uint32_t group = layout.first_groups; group < layout.end_group; ++group) {
    if (!view_->has_zone(group * group_tokens, group_tokens)) continue;
    if (!std::ranges::binary_search(chosen.begin(), chosen.begin() + others, group))
      chosen.push_back(group);
  }
  std::ranges::inplace_merge(chosen, chosen.begin() + others);
}

/// The heaviest of the groups that the sample and the zones leave.
void WindowChooser::choose_heavy(std::uint32_t kv_head, const WindowLayout& layout) {
  const std::size_t groups = std::size_t{blocks_max_} * groups_of_block();
  const float* const mass = view_->mass.data() + kv_head * groups;
  std::vector<std::uint32_t>& chosen = heads_[kv_head].chosen;
  std::vector<std::uint64_t>& candidates = heads_[kv_head].candidates;
  candidates.clear();
  std::size_t next = layout.first_groups;  // of those chosen so far
  for (std::uint32_t group = layout.first_groups; group < layout.end_group; ++group) {
    if (next < chosen.size() && chosen[next] == group) {
      ++next;
    } else if (mass[group] > 0) {
      // Floats above 0 are ordered as their bits are. Of equals the first comes first.
      candidates.push_back(std::uint64_t{std::bit_cast<std::uint32_t>(mass[group])} << 32 |
                           static_cast<std::uint32_t>(~group));
    }
  }
  const std::size_t count = std::min<std::size_t>(layout.heavy_groups, candidates.size());
  if (count < candidates.size()) {
    std::ranges::nth_element(candidates, candidates.begin() + static_cast<std::ptrdiff_t>(count),
                             std::greater<>());
  }
  for (std::size_t i = 0; i < count; ++i)
    chosen.push_back(~static_cast<std::uint32_t>(candidates[i]));
  std::ranges::sort(chosen);
}

void WindowChooser::list_blocks(std::uint32_t kv_head, const WindowLayout& layout,
                                std::uint32_t position) {
  KvHead& head = heads_[kv_head];
  const std::vector<std::uint32_t>& chosen = heads_[kv_head].chosen;
  head.groups.clear();
  head.tokens_read =
      position + 1 - layout.newest_from + static_cast<std::uint32_t>(chosen.size()) * group_tokens;
  std::size_t next = 0;
  for (std::uint32_t block = 0; block < blocks(); ++block) {
    BlockChoice& choice = head.blocks[block];
    choice = {.first_group = static_cast<std::uint32_t>(head.groups.size())};
    const std::uint32_t first_token = block * page_.tokens;
    if (layout.newest_from < first_token + page_.tokens)
      choice.whole_from = std::max(layout.newest_from, first_token) - first_token;
    choice.is_whole = choice.whole_from == 0;
    const std::uint32_t first_group = block * groups_of_block();
    for (; next < chosen.size() && chosen[next] < first_group + groups_of_block(); ++next)
      head.groups.push_back(static_cast<std::uint16_t>(chosen[next] - first_group));
    choice.groups = static_cast<std::uint32_t>(head.groups.size()) - choice.first_group;
  }
}

void WindowChooser::note_groups(std::uint32_t query_head, std::uint32_t block, const float* left,
                                float maximum) {
  part_maximum(query_head, block, chosen_groups) = maximum;
  const BlockChoice& choice = this->block(block, query_head / group_heads_);
  sums_of_groups(page_.type, left, whole_tiles(choice.groups * group_tokens),
                 weights(query_head, block, chosen_groups));
}

void WindowChooser::note_newest(std::uint32_t query_head, std::uint32_t block, const float* left,
                                float maximum) {
  part_maximum(query_head, block, newest_tokens) = maximum;
  const BlockChoice& choice = this->block(block, query_head / group_heads_);
  const std::uint32_t first = choice.whole_from / kernel::lanes * kernel::lanes;
  sums_of_groups(page_.type, left + first, whole_tiles(end_of(block)) - first,
                 weights(query_head, block, newest_tokens) + first / group_tokens);
}

/// Tokens that a block has so far.
std::uint32_t WindowChooser::end_of(std::uint32_t block) const {
  return std::min(page_.tokens, position_ + 1 - block * page_.tokens);
}

float WindowChooser::share_of_weights(std::uint32_t query_head, std::uint32_t block, Part part) {
  return std::exp2(part_maximum(query_head, block, part) - maxima_[query_head]) / sums_[query_head];
}

void WindowChooser::add_up(std::uint32_t kv_head) {
  const std::size_t first = std::size_t{kv_head} * blocks_max_ * groups_of_block();
  const float* const before = view_->mass.data() + first;
  float* const after = view_->next_mass.data() + first;
  const std::uint32_t end = position_ / group_tokens + 1;
  // A look counts as if every step so far had found what it finds: else the groups that are read
  // step by step would soon outweigh all that only it has seen.
  const float kept = is_look_ ? 0 : fading;
  const float steps = is_look_ ? 1 / (1 - fading) : 1;
  for (std::uint32_t group = 0; group < end; ++group) after[group] = kept * before[group];
  for (std::uint32_t i = 0; i < group_heads_; ++i) {
    const std::uint32_t head = kv_head * group_heads_ + i;
    for (std::uint32_t block = 0; block < blocks(); ++block) {
      const BlockChoice& choice = this->block(block, kv_head);
      float* const out = after + std::size_t{block} * groups_of_block();
      if (choice.groups > 0) {
        const float share = steps * share_of_weights(head, block, chosen_groups);
        const float* weight = weights(head, block, chosen_groups);
        for (const std::uint16_t group : groups(block, kv_head)) out[group] += share * *weight++;
      }
      if (choice.whole_from == BlockChoice::none) continue;
      const float share = steps * share_of_weights(head, block, newest_tokens);
      const float* const weight = weights(head, block, newest_tokens);
      const std::uint32_t end_group = groups_for(end_of(block));
      for (std::uint32_t group = choice.whole_from / group_tokens; group < end_group; ++group)
        out[group] += share * weight[group];
    }
  }
}

}  // namespace headrace
