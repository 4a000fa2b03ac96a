// ManualExecutor: jobs that wait until a test says "now". Makes the schedule of background work
// part of the test.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "env/env.h"

namespace headrace {

/// Jobs of all ManualExecutors that share it, in order of submission. Any thread; jobs run without
/// a lock held.
class ManualQueue {
 public:
  void push(const Executor* owner, std::function<void()> job);

  /// Runs the oldest job, of `owner` if that is not null. False when there is none.
  bool run_next(const Executor* owner);

 private:
  std::mutex mutex_;
  std::deque<std::pair<const Executor*, std::function<void()>>> jobs_;  // guarded by mutex_
};

class ManualExecutor final : public Executor {
 public:
  explicit ManualExecutor(ManualQueue& queue) : queue_(queue) {}
  ManualExecutor(const ManualExecutor&) = delete;
  ManualExecutor& operator=(const ManualExecutor&) = delete;
  /// Runs what is still waiting, as an executor with threads would.
  ~ManualExecutor() override;
  void submit(std::function<void()> job) override { queue_.push(this, std::move(job)); }
  void wait_idle() override;

 private:
  ManualQueue& queue_;
};

}  // namespace headrace
