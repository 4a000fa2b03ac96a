#include "policy/eviction.h"

#include <set>

#include "base/check.h"

namespace headrace {
namespace {

/// Order of age: blocks in order; within a block the last layer goes first, so that what stays is
/// read earliest in a step.
struct Older {
  bool operator()(const PageId& a, const PageId& b) const {
    if (a.block != b.block) return a.block < b.block;
    if (a.layer != b.layer) return a.layer < b.layer;
    return a.block_id < b.block_id;
  }
};

class NewestFirstPolicy final : public EvictionPolicy {
 public:
  void track(const PageId& page) override {
    HEADRACE_CHECK(pages_.insert(page).second, "a page is tracked twice");
  }
  void untrack(const PageId& page) override { pages_.erase(page); }
  std::optional<PageId> victim() const override {
    if (pages_.empty()) return std::nullopt;
    return *pages_.rbegin();
  }

 private:
  std::set<PageId, Older> pages_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> new_newest_first_policy() {
  return std::make_unique<NewestFirstPolicy>();
}

}  // namespace headrace
