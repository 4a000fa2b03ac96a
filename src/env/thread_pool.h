// ThreadPool: the Parallel that compute code runs on. A forward pass calls run() several hundred
// times per token, with short serial work in between, so handing out tasks costs a few atomic
// operations and no allocation.
//
// Life of a run:
//   1. the caller stores task and count, and last `unclaimed_`: from then on tasks can be claimed;
//   2. everyone, the caller too, lowers `unclaimed_` to claim a task and `unfinished_` when done;
//   3. with nothing left to claim, the caller waits until `unfinished_` is 0.
// Only then may task and count change.
//
// Whoever claimed a task keeps the run open until it is done, so a thread that wakes up late either
// claims a task of the run that is then current, or finds nothing. No thread has to be waited for
// unless it has claimed something.
//
// Waiting spins for a moment and then sleeps, so an idle pool costs nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/parallel.h"

namespace headrace {

class ThreadPool final : public Parallel {
 public:
  /// `workers` >= 1 includes the thread that calls run(). Spins unless there are more workers than
  /// processors: then a spinning thread would only keep a working one from running.
  explicit ThreadPool(std::size_t workers);
  ThreadPool(std::size_t workers, std::chrono::nanoseconds spin);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() override;

  std::size_t workers() const override { return threads_.size() + 1; }

  /// Called by one thread at a time and never from inside a task: a second run at the same time
  /// ends the process.
  void run(std::size_t count, TaskRef task) override;

 private:
  void work(std::size_t worker);
  void stop();
  void run_shared(std::size_t count, TaskRef task);
  void run_claimed_tasks(std::size_t worker);
  bool claim(std::uint32_t& left);
  bool wait_for_tasks();
  void wait_for_finish();

  static constexpr std::size_t kCacheLine = 64;

  const std::chrono::nanoseconds spin_;

  // Written by the caller while no run is open.
  const TaskRef* task_ = nullptr;
  std::uint32_t count_ = 0;
  std::atomic<bool> running_ = false;

  // Apart from each other: one is hammered by claims, the other by completions.
  alignas(kCacheLine) std::atomic<std::uint32_t> unclaimed_ = 0;
  alignas(kCacheLine) std::atomic<std::uint32_t> unfinished_ = 0;

  // Sleeping. A sleeper first announces itself, then looks once more for what it waits for; who
  // provides that first provides it, then looks for sleepers. In a single total order (seq_cst) one
  // of the two must see the other.
  alignas(kCacheLine) std::atomic<std::uint32_t> sleepers_ = 0;
  std::atomic<bool> caller_sleeps_ = false;
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  std::condition_variable tasks_arrived_;
  std::condition_variable run_finished_;

  std::vector<std::thread> threads_;
};

}  // namespace headrace
