#include "env/executor_io_queue.h"

namespace headrace {
namespace {

Result<void> carry_out(const IoRequest& request) {
  if (request.kind == IoRequest::Kind::read) {
    return request.file->read_at(request.offset, std::span(&request.bytes, 1));
  }
  const Bytes bytes = request.bytes;
  return request.file->write_at(request.offset, std::span(&bytes, 1));
}

}  // namespace

void ExecutorIoQueue::submit(IoRequest request) {
  executor_->submit([request = std::move(request)] { request.done(carry_out(request)); });
}

}  // namespace headrace
