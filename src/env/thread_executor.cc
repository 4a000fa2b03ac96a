#include "env/thread_executor.h"

#include <utility>

#include "base/check.h"

namespace headrace {

ThreadExecutor::ThreadExecutor(std::size_t threads) {
  HEADRACE_CHECK(threads > 0, "an executor has a thread to run jobs on");
  threads_.reserve(threads);
  try {
    for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadExecutor::~ThreadExecutor() { stop(); }

void ThreadExecutor::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadExecutor::submit(std::function<void()> job) {
  // With the lock: when the job has run, its owner may end this executor at once.
  const std::lock_guard lock(mutex_);
  queue_.push(std::move(job));
  changed_.notify_one();
}

void ThreadExecutor::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    {
      const std::function<void()> job = queue_.pop();
      ++running_;
      lock.unlock();
      job();
    }
    lock.lock();
    --running_;
    if (running_ == 0 && queue_.empty()) idle_.notify_all();
  }
}

void ThreadExecutor::wait_idle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return running_ == 0 && queue_.empty(); });
}

}  // namespace headrace
