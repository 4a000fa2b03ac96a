#include "policy/purge.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace headrace {

std::vector<std::size_t> plan_purge(std::span<const PurgeItem> items, float keep_ratio) {
  std::uint64_t tokens = 0;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < items.size(); ++i) {
    tokens += items[i].tokens;
    if (!items[i].stays) order.push_back(i);
  }
  std::ranges::sort(order, {}, [&](std::size_t i) {
    return std::tuple(items[i].mass, -std::int64_t{items[i].position}, i);
  });
  const auto kept =
      static_cast<std::uint64_t>(std::llround(double{keep_ratio} * static_cast<double>(tokens)));
  std::uint64_t left = tokens - std::min(tokens, kept);  // that may leave
  const auto end = std::ranges::find_if(order, [&](std::size_t i) {
    if (items[i].tokens > left) return true;
    left -= items[i].tokens;
    return false;
  });
  order.erase(end, order.end());
  return order;
}

}  // namespace headrace
