#include "env/executor_io_queue.h"

#include "base/no_memory.h"

namespace headrace {
namespace {

Result<void> read_or_write(const IoRequest& request) {
  if (request.kind == IoRequest::Kind::read) {
    return request.file->read_at(request.offset, std::span(&request.bytes, 1));
  }
  const Bytes bytes = request.bytes;
  return request.file->write_at(request.offset, std::span(&bytes, 1));
}

Result<void> carry_out(const IoRequest& request) {
  return or_no_memory(ErrorCode::io, [&] { return read_or_write(request); });
}

}  // namespace

void ExecutorIoQueue::submit(IoRequest request) {
  {
    const std::lock_guard lock(mutex_);
    requests_.push(std::move(request));
  }
  executor_->submit([this] { carry_out_next(); });
}

void ExecutorIoQueue::carry_out_next() {
  IoRequest request;
  {
    const std::lock_guard lock(mutex_);
    request = requests_.pop();
  }
  request.done(carry_out(request));
}

}  // namespace headrace
