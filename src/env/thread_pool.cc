#include "env/thread_pool.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace headrace {
namespace {

// Longer than the serial work between two runs of a forward pass, shorter than what waking a thread
// costs several times.
constexpr std::chrono::nanoseconds kSpin = std::chrono::microseconds(40);

std::chrono::nanoseconds spin_for(std::size_t workers) {
  const bool has_processor_each = workers <= std::max(1U, std::thread::hardware_concurrency());
  return has_processor_each ? kSpin : std::chrono::nanoseconds(0);
}

void relax_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Polls `done` for at most `limit`. Reading the clock costs about as much as a pause, so it is read
// now and then only.
template <typename Done>
bool spin_until(std::chrono::nanoseconds limit, Done done) {
  constexpr int kPollsPerClock = 32;
  if (limit.count() == 0) return done();
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < kPollsPerClock; ++i) {
      if (done()) return true;
      relax_processor();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

}  // namespace

ThreadPool::ThreadPool(std::size_t workers) : ThreadPool(workers, spin_for(workers)) {}

ThreadPool::ThreadPool(std::size_t workers, std::chrono::nanoseconds spin) : spin_(spin) {
  HEADRACE_CHECK(workers > 0, "the calling thread is a worker");
  threads_.reserve(workers - 1);
  try {
    for (std::size_t i = 1; i < workers; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_.store(true);
  {
    // A thread that is about to sleep holds the mutex until it does, so it cannot miss the call
    // below.
    const std::lock_guard lock(mutex_);
  }
  tasks_arrived_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(std::size_t count, TaskRef task) {
  HEADRACE_CHECK(!running_.exchange(true), "a pool runs one set of tasks at a time");
  if (count <= 1 || threads_.empty()) {
    for (std::size_t i = 0; i < count; ++i) task(i, 0);
  } else {
    run_shared(count, task);
  }
  running_.store(false);
}

void ThreadPool::run_shared(std::size_t count, TaskRef task) {
  HEADRACE_CHECK(count <= std::numeric_limits<std::uint32_t>::max(),
                 "tasks are counted in 32 bits");
  task_ = &task;
  count_ = static_cast<std::uint32_t>(count);
  unfinished_.store(count_, std::memory_order_relaxed);
  unclaimed_.store(count_);
  if (sleepers_.load() > 0) {
    {
      const std::lock_guard lock(mutex_);
    }
    tasks_arrived_.notify_all();
  }
  run_claimed_tasks(0);
  wait_for_finish();
}

void ThreadPool::work(std::size_t worker) {
  while (wait_for_tasks()) run_claimed_tasks(worker);
}

bool ThreadPool::claim(std::uint32_t& left) {
  left = unclaimed_.load(std::memory_order_relaxed);
  while (left > 0) {
    if (unclaimed_.compare_exchange_weak(left, left - 1, std::memory_order_acquire,
                                         std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void ThreadPool::run_claimed_tasks(std::size_t worker) {
  std::uint32_t left = 0;
  while (claim(left)) {
    (*task_)(count_ - left, worker);
    const bool last = unfinished_.fetch_sub(1) == 1;
    if (last && caller_sleeps_.load()) {
      {
        const std::lock_guard lock(mutex_);
      }
      run_finished_.notify_one();
    }
  }
}

bool ThreadPool::wait_for_tasks() {
  const auto ready = [this] { return unclaimed_.load() > 0 || stopping_.load(); };
  if (!spin_until(spin_, ready)) {
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    tasks_arrived_.wait(lock, ready);
    sleepers_.fetch_sub(1);
  }
  return !stopping_.load();
}

void ThreadPool::wait_for_finish() {
  const auto finished = [this] { return unfinished_.load() == 0; };
  if (spin_until(spin_, finished)) return;
  std::unique_lock lock(mutex_);
  caller_sleeps_.store(true);
  run_finished_.wait(lock, finished);
  caller_sleeps_.store(false);
}

}  // namespace headrace
