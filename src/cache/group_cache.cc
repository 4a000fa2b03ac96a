#include "cache/group_cache.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/check.h"
#include "codec/group_layout.h"
#include "tier/disk_tier.h"

namespace headrace {

static_assert(choice_tokens == group_tokens, "what is chosen is what is stored");

namespace {

/// What a group's mass keeps from step to step.
constexpr float decay = 0.5F;
/// Of which a layer gets room in one step, as long as there is some: pages leave for it.
constexpr std::uint32_t tokens_per_step = 512;

std::uint32_t groups_of_block(const PageStoreOptions& options) {
  return options.shape.tokens / group_tokens;
}

}  // namespace

bool GroupCache::is_possible(const PageStoreOptions& options) {
  return options.recalls() && options.codec->is_lossless() &&
         options.disk_codec->encoded_group_bytes(options.shape) > 0 &&
         disk_tier_group_tokens(options.shape) == group_tokens;
}

std::uint64_t GroupCache::bytes(const PageStoreOptions& options) {
  if (!is_possible(options)) return 0;
  const std::uint64_t groups = (options.context + group_tokens - 1) / group_tokens;
  const std::uint64_t weights = options.new_token_weight ? groups * sizeof(float) : 0;
  return weights + options.layers * (groups + groups_of_block(options)) *
                       (sizeof(std::uint32_t) + 1 + sizeof(float));
}

std::uint64_t GroupCache::bytes_per_slot(const PageStoreOptions& options) {
  return is_possible(options) ? groups_of_block(options) * sizeof(Place) : 0;
}

GroupCache::GroupCache(PageStore& store, const PageTable& table,
                       const std::vector<std::uint8_t>& zones, const std::vector<float>& weights)
    : store_(store),
      table_(table),
      zones_(zones),
      weights_(weights),
      groups_of_block_(groups_of_block(store.options())),
      group_bytes_(group_bytes(store.options().shape)),
      layers_(store.options().layers) {
  for (std::uint32_t layer = 0; layer < layers_.size(); ++layer) {
    if (store.options().window(layer) != 0) continue;
    const std::size_t groups = std::size_t{table.blocks_max()} * groups_of_block_;
    layers_[layer].place.resize(groups);
    layers_[layer].chosen.reserve(groups);
    layers_[layer].mass.resize(groups);
  }
  store_.add_borrower(*this);
}

GroupCache::~GroupCache() {
  store_.remove_borrower(*this);
  if (!store_.is_broken_off()) release("nobody uses them");
}

Result<void> GroupCache::grow(std::uint32_t slots_kept_free) {
  const std::uint32_t most = store_.slots_to_lend(slots_kept_free);
  const auto layers = static_cast<std::uint32_t>(std::ranges::count_if(layers_, &Layer::is_read));
  const std::uint32_t step = layers * std::max(1U, tokens_per_step / store_.options().shape.tokens);
  const std::uint32_t slots = std::min(step, most - std::min(most, slots_));
  if (slots == 0) {
    balance();
    return {};
  }
  if (store_.slots_available() < store_.slots_lent() + slots + slots_kept_free) return {};
  HEADRACE_TRY(store_.make_room(slots + slots_kept_free));
  for (std::uint32_t i = 0; i < slots; ++i) {
    add_slot(poorest(), *store_.pool().acquire());
    ++slots_;
    store_.note_lent(1);
  }
  return {};
}

/// What a layer wants of each place that it would have with `more` slots.
double GroupCache::need(const Layer& layer, double more) const {
  const double slots = static_cast<double>(layer.slots.size()) + more;
  return slots > 0 ? layer.wanted / slots : std::numeric_limits<double>::infinity();
}

GroupCache::Layer& GroupCache::poorest() {
  return *std::ranges::max_element(
      layers_, {}, [&](const Layer& layer) { return layer.is_read() ? need(layer, 1) : -1.0; });
}

void GroupCache::add_slot(Layer& layer, SlotIndex slot) {
  layer.slots.push_back(slot);
  layer.places.resize(layer.slots.size() * groups_of_block_);
}

/// A slot of a layer, whose groups that matter least leave.
SlotIndex GroupCache::take_slot(Layer& layer) {
  for (Place& place : layer.places) place.is_needed = false;  // the step has ended
  find_victims(layer, groups_of_block_);
  for (const std::uint32_t victim : victims_) evict(layer, layer.places[victim], "least mass");
  return remove_last_slot(layer);
}

/// The last slot of a layer. Its groups move to the others, which have room for them.
SlotIndex GroupCache::remove_last_slot(Layer& layer) {
  const std::size_t places = layer.places.size() - groups_of_block_;
  std::uint32_t free = 0;
  for (std::size_t i = places; i < layer.places.size(); ++i) {
    if (layer.places[i].is_empty()) continue;
    while (!layer.places[free].is_empty()) ++free;
    std::memcpy(data(layer, free), data(layer, static_cast<std::uint32_t>(i)), group_bytes_);
    layer.places[free] = layer.places[i];
    layer.place[layer.places[free].group] = free + 1;
  }
  layer.places.resize(places);
  const SlotIndex slot = layer.slots.back();
  layer.slots.pop_back();
  return slot;
}

/// Layers differ in how much they read, and slowly change.
void GroupCache::balance() {
  Layer& richest = *std::ranges::min_element(layers_, {}, [&](const Layer& layer) {
    return layer.slots.empty() ? std::numeric_limits<double>::infinity() : need(layer, -1);
  });
  Layer& poor = poorest();
  if (!richest.slots.empty() && need(richest, -1) < need(poor, 1))
    add_slot(poor, take_slot(richest));
}

void GroupCache::give_back() { release("lent slot is needed"); }

void GroupCache::page_leaves(const Block& block, std::uint32_t layer_number) {
  const std::uint32_t number = table_.block_of(block.first_position);
  if (number >= table_.blocks() || &table_.block(number) != &block) return;
  Layer& layer = layers_[layer_number];
  const std::uint32_t first = number * groups_of_block_;
  kept_.clear();
  for (std::uint32_t i = 0; i < groups_of_block_; ++i) {
    const bool is_chosen = first + i < layer.chosen.size() && layer.chosen[first + i] != 0;
    if (is_chosen && layer.place[first + i] == 0) kept_.push_back(i);
  }
  find_victims(layer, kept_.size());
  const Bytes page = store_.pool().bytes(*block.pages[layer_number].slot);
  for (std::size_t i = 0; i < std::min(kept_.size(), victims_.size()); ++i) {
    evict(layer, layer.places[victims_[i]], "least mass");
    put(layer, victims_[i], first + kept_[i]);
    encode_group(store_.options().shape, kept_[i], page, {data(layer, victims_[i]), group_bytes_});
  }
}

void GroupCache::release(const char* reason) {
  for (Layer& layer : layers_) {
    for (Place& place : layer.places) evict(layer, place, reason);
    for (const SlotIndex slot : layer.slots) give_back(slot);
    layer.slots.clear();
    layer.places.clear();
    std::ranges::fill(layer.place, 0);
    layer.chosen.clear();
  }
}

/// To the pool. The slot is no layer's any more.
void GroupCache::give_back(SlotIndex slot) {
  store_.pool().release(slot);
  store_.note_lent(-1);
  --slots_;
}

std::byte* GroupCache::data(const Layer& layer, std::uint32_t place) const {
  return store_.pool().data(layer.slots[place / groups_of_block_]) +
         place % groups_of_block_ * group_bytes_;
}

void GroupCache::forget(Layer& layer, Place& place) {
  if (!place.is_empty()) layer.place[place.group] = 0;
  place = {};
}

/// The same for what makes room, which others may want to hear of.
void GroupCache::evict(Layer& layer, Place& place, const char* reason) {
  if (!place.is_empty()) {
    store_.tell_eviction(table_.block(place.group / groups_of_block_), number_of(layer),
                         place.group % groups_of_block_ * group_tokens, group_tokens,
                         double{layer.mass[place.group]}, reason);
  }
  forget(layer, place);
}

void GroupCache::age(Layer& layer, const TokenChoice& choice) const {
  for (std::size_t group = 0; group < choice.mass.size(); ++group)
    layer.mass[group] = layer.mass[group] * decay + choice.mass[group];
  for (Place& place : layer.places) {
    place.is_needed = false;
    if (place.is_empty()) continue;
    place.is_retained = is_retained(place.group);  // keep() may have been called
  }
}

std::size_t GroupCache::choose(std::uint32_t layer, const TokenChoice& choice,
                               std::span<std::uint8_t> blocks) {
  layer_ = &layers_[layer];
  loads_.clear();
  defers_ = false;
  age(*layer_, choice);
  const auto for_each_chosen = [&](std::uint32_t block, const auto& visit) {
    const std::uint32_t first = block * groups_of_block_;
    for (std::uint32_t group = first; group < first + groups_of_block_; ++group)
      if (choice.groups[group] != 0) visit(group);
  };
  KvStats& counters = store_.counters();
  std::size_t wanted = 0;
  std::size_t places_left = layer_->places.size();
  for (std::uint32_t block = 0; block < blocks.size(); ++block) {
    const bool is_resident = table_.page(layer, block).slot.has_value();
    for_each_chosen(block, [&](std::uint32_t group) {
      ++counters.recall_groups_read;
      if (!is_resident) ++wanted;
      const std::uint32_t place = blocks[block] != 0 ? layer_->place[group] : 0;
      if (place == 0) {
        if (!is_resident) ++counters.recall_groups_loaded;
      } else {
        layer_->places[place - 1].is_needed = true;
        --places_left;
      }
    });
  }
  layer_->wanted += (static_cast<double>(wanted) - layer_->wanted) / 16;
  const bool may_defer = store_.options().attention.recall_load_tokens > 0 &&
                         !layer_->chosen.empty();  // not in the first step
  note_chosen(*layer_, choice);
  for (std::uint32_t block = 0; block < blocks.size(); ++block) {
    if (blocks[block] == 0) continue;
    const std::size_t loads_before = loads_.size();
    for_each_chosen(block, [&](std::uint32_t group) {
      if (layer_->place[group] == 0)
        loads_.push_back({.block = &table_.block(block), .group = group});
    });
    if (!may_defer && loads_.size() > places_left) {
      loads_.resize(loads_before);
      blocks[block] = 0;
    }
  }
  if (may_defer) defer(choice, places_left);
  make_places(*layer_);
  return loads_.size();
}

void GroupCache::note_chosen(Layer& layer, const TokenChoice& choice) const {
  layer.chosen.assign(choice.groups.begin(), choice.groups.end());
  for (std::size_t block = 0; block < choice.blocks.size(); ++block) {
    const auto groups = std::span(layer.chosen).subspan(block * groups_of_block_, groups_of_block_);
    const bool is_whole =
        choice.blocks[block] != 0 && std::ranges::count(groups, 0) == groups_of_block_;
    if (is_whole) std::ranges::fill(groups, 1);
  }
}

/// Keeps the loads that matter most, as many as a step may have and there are places for.
void GroupCache::defer(const TokenChoice& choice, std::size_t places) {
  const std::size_t possible =
      std::min<std::size_t>(places, store_.options().attention.recall_load_tokens / group_tokens);
  if (loads_.size() <= possible) return;
  defers_ = true;
  std::ranges::sort(loads_, [&](const Load& a, const Load& b) {
    const float mass_a = choice.mass[a.group];
    const float mass_b = choice.mass[b.group];
    return mass_a != mass_b ? mass_a > mass_b : a.group < b.group;
  });
  double deferred = 0;
  for (std::size_t i = possible; i < loads_.size(); ++i)
    deferred += double{choice.mass[loads_[i].group]};
  const double all = std::accumulate(choice.mass.begin(), choice.mass.end(), 0.0);
  KvStats& counters = store_.counters();
  counters.recall_groups_deferred += loads_.size() - possible;
  counters.recall_mass_deferred_most =
      std::max(counters.recall_mass_deferred_most, all > 0 ? deferred / all : 0);
  loads_.resize(possible);
}

bool GroupCache::is_retained(std::uint32_t group) const {
  return group * group_tokens < store_.options().attention.retain_first ||
         (!zones_.empty() && zones_[group] != 0);
}

/// So many places, or as many as there are: those that are free, and what matters least of what is
/// not needed.
void GroupCache::find_victims(const Layer& layer, std::size_t count) {
  victims_.clear();
  if (count == 0) return;
  for (std::uint32_t i = 0; i < layer.places.size(); ++i)
    if (!layer.places[i].is_needed) victims_.push_back(i);
  const auto order = [&](std::uint32_t i) {
    const Place& place = layer.places[i];
    return std::tuple(!place.is_empty(), place.is_retained,
                      place.is_empty() ? 0.0F : worth(layer, place.group), i);
  };
  if (count >= victims_.size()) return;
  std::ranges::nth_element(victims_, victims_.begin() + static_cast<std::ptrdiff_t>(count), {},
                           order);
  victims_.resize(count);
}

/// For all that must be loaded.
void GroupCache::make_places(Layer& layer) {
  find_victims(layer, loads_.size());
  HEADRACE_CHECK(loads_.size() <= victims_.size(), "more groups are loaded than have a place");
  for (std::size_t i = 0; i < loads_.size(); ++i) {
    evict(layer, layer.places[victims_[i]], "least mass");
    loads_[i].place = victims_[i];
    put(layer, victims_[i], loads_[i].group);
  }
}

/// Notes that a group is in a free place, and is needed there.
void GroupCache::put(Layer& layer, std::uint32_t place, std::uint32_t group) {
  layer.places[place].group = group;
  layer.places[place].is_needed = true;
  layer.places[place].is_retained = is_retained(group);
  layer.place[group] = place + 1;
}

void GroupCache::load(std::size_t index) {
  Load& load = loads_[index];
  load.has_failed = !store_
                         .read_group(*load.block, number_of(*layer_), load.group % groups_of_block_,
                                     {data(*layer_, load.place), group_bytes_})
                         .ok();
}

void GroupCache::end_loads(std::span<std::uint8_t> blocks) {
  KvStats& counters = store_.counters();
  for (const Load& load : loads_) {
    if (load.has_failed) {
      // The page as a whole may be had, and says what is wrong if not.
      forget(*layer_, layer_->places[load.place]);
      blocks[load.group / groups_of_block_] = 0;
    } else {
      counters.recall_bytes_loaded += group_bytes_;
    }
  }
  loads_.clear();
}

void GroupCache::copy(std::uint32_t block, std::uint32_t kv_head,
                      std::span<const std::uint16_t> groups, std::byte* page) const {
  for (const std::uint16_t group : groups) {
    const std::uint32_t place = layer_->place[block * groups_of_block_ + group];
    decode_group(store_.options().shape, kv_head, group, {data(*layer_, place - 1), group_bytes_},
                 page);
  }
}

}  // namespace headrace
