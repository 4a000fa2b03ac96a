// The part of GroupCache that takes groups out of memory for good, not for others.
#include <algorithm>
#include <numeric>

#include "cache/group_cache.h"

namespace headrace {

std::vector<GroupCache::Held> GroupCache::held() const {
  std::vector<Held> held;
  for (const Layer& layer : layers_) {
    for (const Place& place : layer.places) {
      if (!place.is_empty())
        held.push_back({number_of(layer), place.group, double{layer.mass[place.group]}});
    }
  }
  return held;
}

double GroupCache::mass(std::uint32_t layer, std::uint32_t block) const {
  const auto groups = std::span(layers_[layer].mass)
                          .subspan(std::size_t{block} * groups_of_block_, groups_of_block_);
  return std::accumulate(groups.begin(), groups.end(), 0.0);
}

void GroupCache::drop(std::span<const Held> groups, const char* reason) {
  for (const Held& held : groups) {
    Layer& layer = layers_[held.layer];
    evict(layer, layer.places[layer.place[held.group] - 1], reason);
  }
  for (Layer& layer : layers_) {
    std::size_t empty = std::ranges::count_if(layer.places, &Place::is_empty);
    for (; empty >= groups_of_block_ && !layer.slots.empty(); empty -= groups_of_block_) {
      store_.pool().release(remove_last_slot(layer));
      store_.note_lent(-1);
      --slots_;
    }
  }
}

}  // namespace headrace
