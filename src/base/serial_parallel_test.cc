#include "base/serial_parallel.h"

#include <gtest/gtest.h>

#include <vector>

namespace headrace {
namespace {

TEST(SerialParallel, RunsTasksInOrderAsWorkerZero) {
  std::vector<std::size_t> tasks;
  SerialParallel parallel;
  parallel.run(4, [&](std::size_t task, std::size_t worker) {
    EXPECT_EQ(worker, 0U);
    tasks.push_back(task);
  });
  EXPECT_EQ(parallel.workers(), 1U);
  EXPECT_EQ(tasks, (std::vector<std::size_t>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace headrace
