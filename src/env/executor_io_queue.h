// ExecutorIoQueue: an IoQueue whose operations are those of File, run as jobs.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "base/ring.h"
#include "env/env.h"

namespace headrace {

class ExecutorIoQueue final : public IoQueue {
 public:
  explicit ExecutorIoQueue(std::unique_ptr<Executor> executor) : executor_(std::move(executor)) {}

  void submit(IoRequest request) override;
  void wait_idle() override { executor_->wait_idle(); }

 private:
  void carry_out_next();

  std::mutex mutex_;
  Ring<IoRequest> requests_{64};              // guarded by mutex_
  const std::unique_ptr<Executor> executor_;  // last: its end waits for the jobs
};

}  // namespace headrace
