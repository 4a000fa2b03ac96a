// ShuffledParallel: the Parallel that shows up code that depends on who runs a task, and when.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "base/parallel.h"

namespace headrace {

/// Runs tasks on the calling thread, in random order, as random workers.
class ShuffledParallel final : public Parallel {
 public:
  ShuffledParallel(std::size_t workers, unsigned seed) : workers_(workers), random_(seed) {}
  std::size_t workers() const override { return workers_; }
  void run(std::size_t count, TaskRef task) override {
    std::vector<std::size_t> tasks(count);
    std::iota(tasks.begin(), tasks.end(), std::size_t{0});
    std::shuffle(tasks.begin(), tasks.end(), random_);
    for (const std::size_t i : tasks) task(i, random_() % workers_);
  }

 private:
  std::size_t workers_;
  std::mt19937 random_;
};

}  // namespace headrace
