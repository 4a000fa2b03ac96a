// ThreadExecutor: an Executor on threads of its own.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/ring.h"
#include "env/env.h"

namespace headrace {

/// Jobs start in the order of submission. A job may submit further jobs; the destructor runs those
/// too.
class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(std::size_t threads);
  ThreadExecutor(const ThreadExecutor&) = delete;
  ThreadExecutor& operator=(const ThreadExecutor&) = delete;
  ~ThreadExecutor() override;

  void submit(std::function<void()> job) override;
  void wait_idle() override;

 private:
  void work();
  void stop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable idle_;
  // Guarded by mutex_. With room for what a tier has in flight: a job that hands over to another
  // one must not fail.
  Ring<std::function<void()>> queue_{64};
  std::size_t running_ = 0;  // guarded by mutex_
  bool stopping_ = false;    // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace headrace
