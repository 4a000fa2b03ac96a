// Which of the keys and values in memory a purge takes out of it. Pure: no IO, no clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headrace {

/// Tokens of one layer that are in memory and can only leave together.
struct PurgeItem {
  double mass = 0;  ///< of the attention, for each token on average
  std::uint32_t tokens = 0;
  std::uint32_t position = 0;  ///< of the first of them
  bool stays = false;          ///< whatever its mass
};

/// The items that leave, by their places in `items`, so that about `keep_ratio` of all tokens stay:
/// those with the least mass. Of equals the newest leave, as they do when room is needed
/// (eviction.h).
std::vector<std::size_t> plan_purge(std::span<const PurgeItem> items, float keep_ratio);

}  // namespace headrace
