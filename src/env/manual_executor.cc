#include "env/manual_executor.h"

#include <algorithm>

namespace headrace {

void ManualQueue::push(const Executor* owner, std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  jobs_.emplace_back(owner, std::move(job));
}

bool ManualQueue::run_next(const Executor* owner) {
  std::function<void()> job;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = std::ranges::find_if(
        jobs_, [&](const auto& waiting) { return owner == nullptr || waiting.first == owner; });
    if (entry == jobs_.end()) return false;
    job = std::move(entry->second);
    jobs_.erase(entry);
  }
  job();
  return true;
}

ManualExecutor::~ManualExecutor() { wait_idle(); }

void ManualExecutor::wait_idle() {
  while (queue_.run_next(this)) {
  }
}

}  // namespace headrace
