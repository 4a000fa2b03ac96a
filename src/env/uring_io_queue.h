// An IoQueue over a ring that is shared with the kernel: the device gets many reads and writes at a
// time without a thread for each.
#pragma once

#include <memory>

#include "env/env.h"

namespace headrace {

/// Which files' operations a ring takes, of those that have a descriptor.
enum class RingFiles {
  direct,  ///< those with direct IO
  all,
};

/// `others` carries out what the ring does not: operations on other files, and the rest of one that
/// the system ended early or refused, so that it ends as File::read_at() or write_at() does.
/// Requests of the ring are `done` on one thread. At most `depth` are in the ring at a time.
/// Errors: unsupported (an old kernel, or one that refuses rings), io.
Result<std::unique_ptr<IoQueue>> new_uring_io_queue(std::size_t depth,
                                                    std::unique_ptr<IoQueue> others,
                                                    RingFiles files);

}  // namespace headrace
