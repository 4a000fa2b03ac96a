#include "policy/cache_policy.h"

#include "base/check.h"
#include "policy/automatic_policy.h"
#include "policy/cost_policy.h"
#include "policy/ordered_policy.h"
#include "policy/s3fifo_policy.h"

namespace headrace {

const char* to_string(CachePolicyKind kind) {
  switch (kind) {
    case CachePolicyKind::lru:
      return "lru";
    case CachePolicyKind::fifo:
      return "fifo";
    case CachePolicyKind::s3fifo:
      return "s3fifo";
    case CachePolicyKind::lrfu:
      return "lrfu";
    case CachePolicyKind::cost:
      return "cost";
    case CachePolicyKind::automatic:
      return "auto";
  }
  return "?";
}

std::optional<CachePolicyKind> parse_cache_policy(std::string_view name) {
  for (const CachePolicyKind kind : cache_policy_kinds) {
    if (name == to_string(kind)) return kind;
  }
  return std::nullopt;
}

std::unique_ptr<CachePolicy> new_cache_policy(CachePolicyKind kind, std::size_t capacity_blocks) {
  HEADRACE_CHECK(capacity_blocks > 0, "a cache has room for a block");
  switch (kind) {
    case CachePolicyKind::lru:
      return new_lru_policy();
    case CachePolicyKind::fifo:
      return new_fifo_policy();
    case CachePolicyKind::s3fifo:
      return new_s3fifo_policy(capacity_blocks);
    case CachePolicyKind::lrfu:
      return new_lrfu_policy(capacity_blocks);
    case CachePolicyKind::cost:
      return new_cost_policy(capacity_blocks, 1);
    case CachePolicyKind::automatic:
      break;
  }
  return new_automatic_policy(capacity_blocks);
}

}  // namespace headrace
