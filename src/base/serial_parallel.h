// SerialParallel: the Parallel of one worker, for tests and for work too small to share.
#pragma once

#include "base/parallel.h"

namespace headrace {

/// Runs the tasks one after the other, in order, on the calling thread.
class SerialParallel final : public Parallel {
 public:
  std::size_t workers() const override { return 1; }
  void run(std::size_t count, TaskRef task) override {
    for (std::size_t i = 0; i < count; ++i) task(i, 0);
  }
};

}  // namespace headrace
