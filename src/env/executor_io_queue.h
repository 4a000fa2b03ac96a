// ExecutorIoQueue: an IoQueue whose operations are those of File, run as jobs.
#pragma once

#include <memory>
#include <utility>

#include "env/env.h"

namespace headrace {

class ExecutorIoQueue final : public IoQueue {
 public:
  explicit ExecutorIoQueue(std::unique_ptr<Executor> executor) : executor_(std::move(executor)) {}

  void submit(IoRequest request) override;
  void wait_idle() override { executor_->wait_idle(); }

 private:
  const std::unique_ptr<Executor> executor_;
};

}  // namespace headrace
