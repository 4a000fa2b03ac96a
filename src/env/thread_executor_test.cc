#include "env/thread_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <vector>

namespace headrace {
namespace {

TEST(ThreadExecutor, RunsJobsInOrderOfSubmission) {
  std::vector<int> order;
  {
    ThreadExecutor executor(1);
    for (int i = 0; i < 1000; ++i) {
      executor.submit([&order, i] { order.push_back(i); });
    }
  }
  ASSERT_EQ(order.size(), 1000U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(ThreadExecutor, RunsOnSeveralThreadsAtOnce) {
  std::promise<void> first_runs;
  std::promise<void> second_runs;
  ThreadExecutor executor(2);
  // Each job waits for the other; one thread alone would wait for ever.
  executor.submit([&] {
    first_runs.set_value();
    second_runs.get_future().wait();
  });
  executor.submit([&] {
    second_runs.set_value();
    first_runs.get_future().wait();
  });
}

TEST(ThreadExecutor, DrainsJobsThatJobsSubmit) {
  std::atomic<int> jobs = 0;
  std::function<void(int)> chain;  // outlives the executor, whose last jobs still use it
  {
    ThreadExecutor executor(2);
    chain = [&](int left) {
      ++jobs;
      if (left > 0) executor.submit([&chain, left] { chain(left - 1); });
    };
    executor.submit([&chain] { chain(99); });
  }
  EXPECT_EQ(jobs, 100);
}

TEST(ThreadExecutor, EndsWhileItsThreadsSleep) {
  for (int i = 0; i < 100; ++i) ThreadExecutor executor(3);
}

}  // namespace
}  // namespace headrace
