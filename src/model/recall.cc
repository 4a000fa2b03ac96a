#include "model/recall.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "kernel/kernels.h"

namespace headrace {

using kernel::group_tokens;

namespace {
/// Of the largest unit: lists are written first and then counted.
constexpr std::size_t group_room = 4;
/// Most tokens that one that is read may stand for: an estimate that is far too small is not let
/// loose. What weighs less than that part of the threshold is left out where its turn would be.
constexpr float largest_factor = 1024;

/// 1 / u of unit after unit: the multiples of the golden ratio lie evenly wherever they begin.
float spread_of(std::uint32_t unit) {
  constexpr std::uint32_t golden = 0x9E37'79B9;  // of 2^32
  const float fraction = static_cast<float>((unit + 1) * golden >> 8U) * 0x1p-24F;
  return 1 / std::max(fraction, 1 / largest_factor);
}
}  // namespace

Result<RecallChooser> RecallChooser::create(Parallel& parallel, const ModelShape& shape,
                                            const PageShape& page, std::uint32_t context) {
  RecallChooser chooser;
  chooser.parallel_ = &parallel;
  chooser.page_ = page;
  chooser.layers_ = shape.layers;
  chooser.query_heads_ = shape.query_heads;
  chooser.group_heads_ = shape.query_heads / shape.kv_heads;
  chooser.blocks_max_ = (context + page.tokens - 1) / page.tokens;
  chooser.query_bytes_ = (kernel::sketch_query_bytes(shape.head_dim) + 63) / 64 * 64;
  const std::uint32_t vectors = std::min(chooser.group_heads_, kernel::fold_vectors_max);
  chooser.scores_floats_ = std::size_t{vectors} * page.tokens;
  const std::size_t pieces = std::size_t{chooser.blocks_max_} * shape.query_heads;
  const std::size_t groups = chooser.blocks_max_ * chooser.groups_of_block();
  HEADRACE_TRY_ASSIGN(chooser.queries_,
                      AlignedBuffer::allocate(shape.query_heads * chooser.query_bytes_));
  HEADRACE_TRY_ASSIGN(
      chooser.scores_,
      AlignedBuffer::allocate(parallel.workers() * chooser.scores_floats_ * sizeof(float)));
  HEADRACE_TRY_ASSIGN(chooser.group_weights_,
                      AlignedBuffer::allocate(shape.query_heads * groups * sizeof(float)));
  chooser.newest_maxima_.resize(shape.query_heads);
  chooser.newest_sums_.resize(shape.query_heads);
  chooser.maxima_.resize(pieces);
  chooser.sums_.resize(pieces);
  chooser.shares_.resize(pieces);
  chooser.heads_.resize(shape.kv_heads);
  for (KvHead& head : chooser.heads_) {
    head.unit_mass.resize(groups);
    head.readings.resize(groups);
    head.first.resize(groups + 1);
    head.last.reserve(groups);
    head.blocks.resize(chooser.blocks_max_);
    head.groups.resize(groups + group_room);
    head.factors.resize(groups);
  }
  chooser.spreads_.resize(groups + std::size_t{shape.layers} * shape.kv_heads);
  for (std::uint32_t unit = 0; unit < chooser.spreads_.size(); ++unit)
    chooser.spreads_[unit] = spread_of(unit);
  chooser.wanted_.reserve(chooser.blocks_max_);
  return chooser;
}

/// The exponent and the first bits of the fraction: larger for what is heavier.
std::uint32_t RecallChooser::Ranks::of(float priority) {
  return std::bit_cast<std::uint32_t>(priority) >> 20;
}

void RecallChooser::Ranks::add(float priority, float added) {
  ++units[of(priority)];
  mass[of(priority)] += double{added};
}

void RecallChooser::Ranks::clear() {
  units.fill(0);
  mass.fill(0);
}

std::size_t RecallChooser::groups_of_block() const { return page_.tokens / group_tokens; }

float* RecallChooser::group_weights(std::uint32_t query_head, std::uint32_t block) {
  return reinterpret_cast<float*>(group_weights_.data()) +
         (std::size_t{query_head} * blocks_max_ + block) * groups_of_block();
}

void RecallChooser::begin(const float* queries, double score_scale, std::uint32_t layer,
                          const RecallView& view) {
  HEADRACE_CHECK(layer < layers_, "a layer that the model lacks");
  view_ = &view;
  layer_ = layer;
  by_layer_ = view.options->recall_by_layer;
  for (std::uint32_t head = 0; head < query_heads_; ++head) {
    kernel::kernels().prepare_sketch_query(queries + std::size_t{head} * page_.head_dim,
                                           static_cast<float>(score_scale), page_.head_dim,
                                           queries_.data() + head * query_bytes_);
  }
}

void RecallChooser::score_block(std::uint32_t block, std::size_t worker) {
  const std::byte* sketch = view_->sketches[block];
  if (sketch == nullptr) return;
  float* const scores = reinterpret_cast<float*>(scores_.data()) + worker * scores_floats_;
  for (std::uint32_t kv_head = 0; kv_head < page_.kv_heads; ++kv_head) {
    for (std::uint32_t first = 0; first < group_heads_; first += kernel::fold_vectors_max) {
      const std::uint32_t head = kv_head * group_heads_ + first;
      std::array<const std::byte*, kernel::fold_vectors_max> queries;
      const std::uint32_t vectors = std::min(group_heads_ - first, kernel::fold_vectors_max);
      for (std::uint32_t i = 0; i < vectors; ++i)
        queries[i] = queries_.data() + (head + i) * query_bytes_;
      kernel::kernels().sketch_scores(
          {sketch, page_.tokens, page_.head_dim, vectors, queries.data()}, scores, page_.tokens);
      for (std::uint32_t i = 0; i < vectors; ++i) {
        const std::size_t piece = std::size_t{head + i} * blocks_max_ + block;
        sums_[piece] =
            kernel::kernels().sketch_weights(scores + std::size_t{i} * page_.tokens, page_.tokens,
                                             group_weights(head + i, block), &maxima_[piece]);
      }
    }
    sketch += kernel::key_sketch_bytes(page_.tokens, page_.head_dim);
  }
}

void RecallChooser::choose(std::uint32_t position) {
  parallel_->run(page_.kv_heads, [&](std::size_t task, std::size_t) {
    const auto kv_head = static_cast<std::uint32_t>(task);
    for (std::uint32_t i = 0; i < group_heads_; ++i) share_out(kv_head * group_heads_ + i);
    weigh_units(kv_head);
    if (!by_layer_) choose_for(kv_head, group_heads_, position);
  });
  if (by_layer_) {
    add_masses();
    choose_for(0, query_heads_, position);
  }
  wanted_.assign(blocks(), 0);
  if (view_->is_partial) {
    wanted_groups_.assign(blocks() * (page_.tokens / choice_tokens), 0);
    mass_.assign(wanted_groups_.size(), 0.0F);
    for (const KvHead& head : choices()) sum_up(head);
  }
  for (const KvHead& head : choices()) {
    ++counters_.choices;
    counters_.tokens_read += head.tokens_read;
    counters_.mass_left_out += std::max(head.mass_left, 0.0) / head.query_heads;
    for (std::uint32_t block = 0; block < blocks(); ++block)
      if (!head.blocks[block].is_empty()) wanted_[block] = 1;
  }
}

/// Those that were made: one for each kv head, or one.
std::span<const RecallChooser::KvHead> RecallChooser::choices() const {
  return std::span(heads_).first(by_layer_ ? 1 : heads_.size());
}

/// What a kv head reads, whose unit masses are those of so many query heads.
void RecallChooser::choose_for(std::uint32_t kv_head, std::uint32_t query_heads,
                               std::uint32_t position) {
  heads_[kv_head].query_heads = query_heads;
  heads_[kv_head].spread = spreads_.data() + std::size_t{layer_} * page_.kv_heads + kv_head;
  choose_units(heads_[kv_head], position);
  list_blocks(heads_[kv_head]);
}

/// To the first kv head those of all others.
void RecallChooser::add_masses() {
  const std::uint32_t units = page_.tokens / view_->options->recall_group;
  std::vector<float>& sum = heads_.front().unit_mass;
  for (std::uint32_t kv_head = 1; kv_head < page_.kv_heads; ++kv_head) {
    const std::vector<float>& mass = heads_[kv_head].unit_mass;
    for (std::size_t unit = 0; unit < std::size_t{blocks()} * units; ++unit)
      sum[unit] += mass[unit];
  }
}

/// What a kv head reads, and would, of the groups that all of them read together.
void RecallChooser::sum_up(const KvHead& head) {
  constexpr std::uint32_t parts = choice_tokens / group_tokens;
  const std::uint32_t unit_tokens = view_->options->recall_group;
  for (std::uint32_t block = 0; block < blocks(); ++block) {
    if (!has_sketch(block)) continue;
    const std::uint32_t first = block * (page_.tokens / choice_tokens);
    const BlockChoice& chosen = head.blocks[block];
    for (std::uint32_t i = 0; i < chosen.groups; ++i)
      wanted_groups_[first + head.groups[chosen.first_group + i] / parts] = 1;
    const std::uint32_t first_unit = block * (page_.tokens / unit_tokens);
    for (std::uint32_t token = 0; token < page_.tokens;
         token += std::min(unit_tokens, choice_tokens)) {
      // What is in the sample stands for others, and what is nearly in it may soon be.
      const std::uint32_t unit = first_unit + token / unit_tokens;
      const float stands_for = std::min(head.priority(unit), head.threshold);
      mass_[first + token / choice_tokens] += std::max(head.unit_mass[unit], stands_for);
    }
  }
}

/// What a weight in each block counts of all the attention of a query head.
void RecallChooser::share_out(std::uint32_t query_head) {
  const std::size_t first = std::size_t{query_head} * blocks_max_;
  float maximum = newest_maxima_[query_head];
  for (std::uint32_t block = 0; block < blocks(); ++block)
    if (has_sketch(block)) maximum = std::max(maximum, maxima_[first + block]);
  double sum = std::exp2(newest_maxima_[query_head] - maximum) * newest_sums_[query_head];
  for (std::uint32_t block = 0; block < blocks(); ++block) {
    if (!has_sketch(block)) continue;
    shares_[first + block] = std::exp2(maxima_[first + block] - maximum);
    sum += double{shares_[first + block]} * double{sums_[first + block]};
  }
  const float inverse = static_cast<float>(1.0 / sum);
  for (std::uint32_t block = 0; block < blocks(); ++block) shares_[first + block] *= inverse;
}

void RecallChooser::weigh_units(std::uint32_t kv_head) {
  float* const mass = heads_[kv_head].unit_mass.data();
  const std::size_t unit_groups = view_->options->recall_group / group_tokens;
  const std::size_t units = groups_of_block() / unit_groups;
  for (std::uint32_t block = 0; block < blocks(); ++block) {
    if (!has_sketch(block)) continue;
    float* const out = mass + block * units;
    std::fill_n(out, units, 0.0F);
    for (std::uint32_t i = 0; i < group_heads_; ++i) {
      const std::uint32_t head = kv_head * group_heads_ + i;
      const float share = shares_[std::size_t{head} * blocks_max_ + block];
      const float* const weights = group_weights(head, block);
      for (std::size_t j = 0; j < unit_groups; ++j) {
        for (std::size_t unit = 0; unit < units; ++unit)
          out[unit] += share * weights[unit * unit_groups + j];
      }
    }
  }
}

/// The first and the newest tokens, those in zones, and of the rest the units that come first.
void RecallChooser::choose_units(KvHead& head, std::uint32_t position) {
  const AttentionOptions& options = *view_->options;
  const std::uint32_t unit_tokens = options.recall_group;
  const std::uint32_t units = page_.tokens / unit_tokens;  // of a block
  const std::uint32_t newest = position + 1 - std::min(position + 1, options.recall_newest);
  const std::uint32_t unit_groups = unit_tokens / group_tokens;
  head.threshold = options.recall_share * static_cast<float>(head.query_heads * unit_groups);
  head.first_units = 0;
  head.tokens_read = 0;
  head.mass_left = 0;
  for (std::uint32_t block = 0; block < blocks(); ++block) {
    if (!has_sketch(block)) {
      head.tokens_read += std::min(page_.tokens, position + 1 - block * page_.tokens);
      continue;
    }
    for (std::uint32_t unit = block * units; unit < (block + 1) * units; ++unit) {
      const std::uint32_t token = unit * unit_tokens;
      const bool is_always = token < options.recall_first || token + unit_tokens > newest ||
                             view_->has_zone(token, unit_tokens);
      head.readings[unit] = is_always ? always : unread;
      head.tokens_read += is_always ? unit_tokens : 0;
    }
    note_first(head, block);
  }
  choose_first(head);
}

/// Those of a block that are not read yet and have the priority. Without a branch for each unit:
/// few have, and nothing tells which.
void RecallChooser::note_first(KvHead& head, std::uint32_t block) {
  const std::uint32_t units = page_.tokens / view_->options->recall_group;
  const std::uint32_t begin = block * units;
  const float* const mass = head.unit_mass.data() + begin;
  const float* const spread = head.spread + begin;
  const Reading* const readings = head.readings.data() + begin;
  const float threshold = head.threshold;
  std::uint32_t* const first = head.first.data();
  std::size_t count = head.first_units;
  std::array<float, 4> left = {};  // four sums, which are added up at the same time
  const auto note = [&](std::uint32_t unit, float& sum) {
    const bool is_open = readings[unit] == unread;
    sum += is_open ? mass[unit] : 0.0F;
    first[count] = begin + unit;
    count += is_open && mass[unit] * spread[unit] >= threshold ? 1 : 0;
  };
  std::uint32_t unit = 0;
  for (; unit + 4 <= units; unit += 4)
    for (std::uint32_t i = 0; i < 4; ++i) note(unit + i, left[i]);
  for (; unit < units; ++unit) note(unit, left[0]);
  head.mass_left += (double{left[0]} + double{left[1]}) + (double{left[2]} + double{left[3]});
  head.first_units = count;
}

/// As many of these units as the options allow. What counts for the others is the highest priority
/// that is not read.
void RecallChooser::choose_first(KvHead& head) {
  const AttentionOptions& options = *view_->options;
  const std::uint32_t unit_tokens = options.recall_group;
  const std::span<const std::uint32_t> first = std::span(head.first).first(head.first_units);
  std::size_t left =
      (options.recall_tokens - std::min(options.recall_tokens, head.tokens_read)) / unit_tokens;
  const double enough = (1.0 - double{options.recall_mass}) * head.query_heads;
  const auto choose = [&](std::uint32_t unit) {
    head.readings[unit] = by_priority;
    head.mass_left -= double{head.unit_mass[unit]};
    head.tokens_read += unit_tokens;
  };
  if (enough <= 0 && first.size() <= left) {
    for (const std::uint32_t unit : first) choose(unit);
    return;
  }
  Ranks& ranks = head.ranks;
  ranks.clear();
  for (const std::uint32_t unit : first) ranks.add(head.priority(unit), head.unit_mass[unit]);
  // Whole ranks, the highest first; of the last one the units of the highest priorities.
  std::uint32_t rank = Ranks::count;
  double left_of_ranks = head.mass_left;
  while (rank > 0 && left_of_ranks > enough && ranks.units[rank - 1] <= left) {
    --rank;
    left -= ranks.units[rank];
    left_of_ranks -= ranks.mass[rank];
  }
  // The next rank that has any.
  while (rank > 0 && ranks.units[rank - 1] == 0) --rank;
  head.last.clear();
  for (const std::uint32_t unit : first) {
    const std::uint32_t own = Ranks::of(head.priority(unit));
    if (own >= rank) choose(unit);
    if (own + 1 == rank) head.last.push_back(unit);
  }
  std::ranges::sort(head.last, [&](std::uint32_t a, std::uint32_t b) {
    const float of_a = head.priority(a);
    const float of_b = head.priority(b);
    return of_a != of_b ? of_a > of_b : a < b;
  });
  for (const std::uint32_t unit : head.last) {
    if (left == 0 || head.mass_left <= enough) {
      head.threshold = head.priority(unit);
      break;
    }
    choose(unit);
    --left;
  }
}

void RecallChooser::list_blocks(KvHead& head) {
  const std::uint32_t unit_groups = view_->options->recall_group / group_tokens;
  const std::uint32_t units = page_.tokens / view_->options->recall_group;
  std::uint16_t* const groups = head.groups.data();
  std::uint32_t count = 0;
  for (std::uint32_t block = 0; block < blocks(); ++block) {
    BlockChoice& choice = head.blocks[block];
    choice = {.is_whole = !has_sketch(block), .first_group = count};
    if (choice.is_whole) continue;
    const Reading* const readings = head.readings.data() + std::size_t{block} * units;
    for (std::uint32_t unit = 0; unit < units; ++unit) {
      for (std::uint32_t i = 0; i < unit_groups; ++i)
        groups[count + i] = static_cast<std::uint16_t>(unit * unit_groups + i);
      count += readings[unit] != unread ? unit_groups : 0;
    }
    choice.groups = count - choice.first_group;
    list_factors(head, block);
  }
}

void RecallChooser::list_factors(KvHead& head, std::uint32_t block) {
  const std::uint32_t unit_groups = view_->options->recall_group / group_tokens;
  const std::uint32_t units = page_.tokens / view_->options->recall_group;
  const BlockChoice& choice = head.blocks[block];
  for (std::uint32_t i = choice.first_group; i < choice.first_group + choice.groups; ++i) {
    const std::uint32_t unit = block * units + head.groups[i] / unit_groups;
    const float mass = head.unit_mass[unit];
    const bool counts_once = head.readings[unit] == always || mass >= head.threshold;
    head.factors[i] = counts_once ? 1.0F : std::min(head.threshold / mass, largest_factor);
  }
}

}  // namespace headrace
