#include "env/thread_pool.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <vector>

namespace headrace {
namespace {

constexpr std::chrono::nanoseconds kNoSpin(0);
constexpr std::chrono::nanoseconds kSomeSpin = std::chrono::microseconds(20);

// Tasks write plain memory, so that ThreadSanitizer would see a join that does not order them
// before the caller.
void run_many_small_runs(ThreadPool& pool, int runs) {
  const unsigned seed = std::random_device()();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  std::vector<int> tasks(64);
  std::vector<int> by_worker(pool.workers());
  for (int run = 0; run < runs; ++run) {
    const std::size_t count = random() % 2 == 0 ? random() % 4 : random() % tasks.size();
    std::fill(tasks.begin(), tasks.end(), 0);
    std::fill(by_worker.begin(), by_worker.end(), 0);
    pool.run(count, [&](std::size_t task, std::size_t worker) {
      ++tasks[task];
      ++by_worker[worker];
    });
    int sum = 0;
    for (const int tasks_of_worker : by_worker) sum += tasks_of_worker;
    ASSERT_EQ(sum, static_cast<int>(count));
    for (std::size_t i = 0; i < tasks.size(); ++i) ASSERT_EQ(tasks[i], i < count ? 1 : 0) << i;
  }
}

TEST(ThreadPool, RunsEachTaskOnceInTenThousandSmallRuns) {
  ThreadPool pool(4);
  run_many_small_runs(pool, 10'000);
}

TEST(ThreadPool, LosesNoWakeUpWhenThreadsSleepAtOnce) {
  ThreadPool pool(3, kNoSpin);
  run_many_small_runs(pool, 5'000);
}

TEST(ThreadPool, LosesNoWakeUpWhenThreadsSpinAndSleep) {
  ThreadPool pool(3, kSomeSpin);
  run_many_small_runs(pool, 3'000);
}

TEST(ThreadPool, RunsInOrderOnTheCallerWhenItIsAlone) {
  ThreadPool pool(1);
  const auto caller = std::this_thread::get_id();
  std::vector<std::size_t> tasks;
  pool.run(3, [&](std::size_t task, std::size_t worker) {
    EXPECT_EQ(worker, 0U);
    EXPECT_EQ(std::this_thread::get_id(), caller);
    tasks.push_back(task);
  });
  EXPECT_EQ(tasks, (std::vector<std::size_t>{0, 1, 2}));
}

TEST(ThreadPool, BringsAllWorkersTogether) {
  for (const auto spin : {kNoSpin, kSomeSpin}) {
    ThreadPool pool(5, spin);
    for (int run = 0; run < 50; ++run) {
      // Each task waits for all others: it ends only if every worker takes one.
      std::atomic<std::size_t> arrived = 0;
      pool.run(5, [&](std::size_t, std::size_t) {
        ++arrived;
        while (arrived.load() < 5) std::this_thread::yield();
      });
      EXPECT_EQ(arrived, 5U);
    }
  }
}

TEST(ThreadPool, StartsAndEndsWithoutARun) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(3, i % 2 == 0 ? kNoSpin : kSomeSpin);
    if (i % 3 == 0) pool.run(0, [](std::size_t, std::size_t) { FAIL(); });
  }
}

TEST(ThreadPool, AcceptsCallersOneAfterTheOther) {
  ThreadPool pool(2);
  int sum = 0;
  for (int i = 0; i < 20; ++i) {
    std::thread caller([&] {
      std::vector<int> values(10, 0);
      pool.run(10, [&](std::size_t task, std::size_t) { values[task] = 1; });
      for (const int value : values) sum += value;
    });
    caller.join();
  }
  EXPECT_EQ(sum, 200);
}

TEST(ThreadPoolDeathTest, ARunInsideATaskIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto nested = [] {
    ThreadPool pool(2);
    pool.run(2, [&](std::size_t, std::size_t) { pool.run(1, [](std::size_t, std::size_t) {}); });
  };
  EXPECT_DEATH(nested(), "a pool runs one set of tasks at a time");
}

}  // namespace
}  // namespace headrace
