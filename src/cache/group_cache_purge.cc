// The part of GroupCache that takes groups out of memory for good, not for others.
#include <algorithm>

#include "cache/group_cache.h"

namespace headrace {

std::vector<GroupCache::Held> GroupCache::held() const {
  std::vector<Held> all;
  for (const Layer& layer : layers_) {
    for (const Place& place : layer.places) {
      if (!place.is_empty())
        all.push_back({number_of(layer), place.group, double{worth(layer, place.group)}});
    }
  }
  return all;
}

double GroupCache::mass(std::uint32_t layer, std::uint32_t block) const {
  double sum = 0;
  for (std::uint32_t i = 0; i < groups_of_block_; ++i)
    sum += double{worth(layers_[layer], block * groups_of_block_ + i)};
  return sum;
}

void GroupCache::drop(std::span<const Held> groups, const char* reason) {
  for (const Held& gone : groups) {
    Layer& layer = layers_[gone.layer];
    evict(layer, layer.places[layer.place[gone.group] - 1], reason);
  }
  for (Layer& layer : layers_) {
    auto empty = static_cast<std::size_t>(std::ranges::count_if(layer.places, &Place::is_empty));
    for (; empty >= groups_of_block_ && !layer.slots.empty(); empty -= groups_of_block_)
      give_back(remove_last_slot(layer));
  }
}

}  // namespace headrace
