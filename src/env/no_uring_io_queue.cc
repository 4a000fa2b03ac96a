// Of builds without liburing.
#include "env/uring_io_queue.h"

namespace headrace {

Result<std::unique_ptr<IoQueue>> new_uring_io_queue(std::size_t /*depth*/,
                                                    std::unique_ptr<IoQueue> /*others*/,
                                                    RingFiles /*files*/) {
  return Error{ErrorCode::unsupported, "this build has no rings"};
}

}  // namespace headrace
