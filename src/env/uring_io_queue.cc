#include "env/uring_io_queue.h"

#include <fcntl.h>
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/no_memory.h"
#include "base/ring.h"

namespace headrace {
namespace {

// A ring, and what the kernel's library wants of the threads that use it.
class KernelRing {
 public:
  static Result<std::unique_ptr<KernelRing>> open(unsigned entries) {
    std::unique_ptr<KernelRing> ring(new KernelRing());
    io_uring_params parameters{};
    const int status = ::io_uring_queue_init_params(entries, &ring->ring_, &parameters);
    if (status < 0) return refused(-status);
    ring->is_open_ = true;
    // Came with the same kernel, 5.6, as reads and writes of plain ranges.
    if ((parameters.features & IORING_FEAT_RW_CUR_POS) == 0) return refused(ENOSYS);
    return ring;
  }
  KernelRing(const KernelRing&) = delete;
  KernelRing& operator=(const KernelRing&) = delete;
  ~KernelRing() {
    if (is_open_) ::io_uring_queue_exit(&ring_);
  }

  // One thread at a time.
  io_uring_sqe& next_entry() {
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
    HEADRACE_CHECK(entry != nullptr, "a ring has room for what may be in flight");
    return *entry;
  }
  // The same thread.
  void submit() {
    while (::io_uring_sq_ready(&ring_) > 0) {
      const int status = ::io_uring_submit(&ring_);
      if (status > 0) continue;
      HEADRACE_CHECK(is_passing(status), "a ring takes what was prepared");
      std::this_thread::yield();
    }
  }

  struct Completion {
    std::uint64_t data = 0;
    int result = 0;  // bytes moved, or minus the reason
  };
  // One other thread.
  Completion wait() {
    io_uring_cqe* entry = nullptr;
    while (const int status = ::io_uring_wait_cqe(&ring_, &entry)) {
      HEADRACE_CHECK(is_passing(status), "a ring says what has ended");
    }
    const Completion completion{.data = ::io_uring_cqe_get_data64(entry), .result = entry->res};
    ::io_uring_cqe_seen(&ring_, entry);
    return completion;
  }

 private:
  KernelRing() = default;

  static bool is_passing(int status) {
    return status == 0 || status == -EINTR || status == -EAGAIN || status == -EBUSY;
  }
  static Error refused(int reason) {
    return {ErrorCode::unsupported,
            "the system has no ring for us: " + std::generic_category().message(reason)};
  }

  io_uring ring_{};
  bool is_open_ = false;
};

class UringIoQueue final : public IoQueue {
 public:
  UringIoQueue(std::size_t depth, std::unique_ptr<KernelRing> ring, std::unique_ptr<IoQueue> others,
               RingFiles files)
      : files_(files), others_(std::move(others)), ring_(std::move(ring)), running_(depth) {
    for (std::size_t i = depth; i > 0; --i) free_.push_back(i - 1);
    completer_ = std::thread([this] { complete(); });
  }
  UringIoQueue(const UringIoQueue&) = delete;
  UringIoQueue& operator=(const UringIoQueue&) = delete;
  ~UringIoQueue() override {
    wait_idle();
    {
      const std::lock_guard lock(mutex_);
      io_uring_sqe& entry = ring_->next_entry();
      ::io_uring_prep_nop(&entry);
      ::io_uring_sqe_set_data64(&entry, stop);
      ring_->submit();
    }
    completer_.join();
  }

  void submit(IoRequest request) override {
    if (takes(*request.file)) {
      const std::lock_guard lock(mutex_);
      waiting_.push(std::move(request));
      ++unfinished_;
      return fill_ring();
    }
    {
      const std::lock_guard lock(mutex_);
      ++unfinished_;
    }
    hand_over(std::move(request));
  }

  void wait_idle() override {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return unfinished_ == 0; });
  }

 private:
  static constexpr std::uint64_t stop = ~std::uint64_t{0};
  // The ring counts in 32 bits. Of a longer request the rest goes to the others.
  static constexpr std::size_t ring_bytes_max = std::size_t{1} << 30;

  bool takes(const File& file) const {
    const int descriptor = file.descriptor();
    if (descriptor < 0) return false;
    if (files_ == RingFiles::all) return true;
    const int flags = ::fcntl(descriptor, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0;
  }

  // With mutex_ held.
  void fill_ring() {
    while (!waiting_.empty() && !free_.empty()) {
      const std::size_t slot = free_.back();
      free_.pop_back();
      running_[slot] = waiting_.pop();
      const IoRequest& request = running_[slot];
      const auto bytes = static_cast<unsigned>(std::min(request.bytes.size(), ring_bytes_max));
      const int descriptor = request.file->descriptor();
      io_uring_sqe& entry = ring_->next_entry();
      if (request.kind == IoRequest::Kind::read) {
        ::io_uring_prep_read(&entry, descriptor, request.bytes.data(), bytes, request.offset);
      } else {
        ::io_uring_prep_write(&entry, descriptor, request.bytes.data(), bytes, request.offset);
      }
      ::io_uring_sqe_set_data64(&entry, slot);
    }
    ring_->submit();
  }

  // What completer_ does.
  void complete() {
    for (;;) {
      const KernelRing::Completion completion = ring_->wait();
      if (completion.data == stop) return;
      IoRequest request;
      {
        // Who submitted has let go of the mutex: what was written before is seen here.
        const std::lock_guard lock(mutex_);
        request = std::move(running_[completion.data]);
        free_.push_back(completion.data);
        fill_ring();
      }
      const auto moved = static_cast<std::size_t>(std::max(completion.result, 0));
      if (completion.result >= 0 && moved == request.bytes.size()) {
        request.done({});
        request = {};
        end();
        continue;
      }
      // Interrupted, at the end of the file, refused: the File finds out and has the words for it.
      request.offset += moved;
      request.bytes = request.bytes.subspan(moved);
      hand_over(std::move(request));
    }
  }

  void hand_over(IoRequest request) {
    // Behind a pointer, which a function holds without memory of its own.
    using Done = std::function<void(Result<void>)>;
    std::unique_ptr<Done> done;
    if (!has_memory_for([&] { done = std::make_unique<Done>(std::move(request.done)); })) {
      request.done(no_memory(ErrorCode::io));
      return end();
    }
    request.done = [this, held = done.release()](Result<void> result) {
      const std::unique_ptr<Done> owner(held);
      (*owner)(std::move(result));
      end();
    };
    others_->submit(std::move(request));
  }

  void end() {
    const std::lock_guard lock(mutex_);
    if (--unfinished_ == 0) idle_.notify_all();
  }

  const RingFiles files_;
  const std::unique_ptr<IoQueue> others_;
  const std::unique_ptr<KernelRing> ring_;

  std::mutex mutex_;  // also of submitting to the ring
  std::condition_variable idle_;
  Ring<IoRequest> waiting_{64};     // guarded by mutex_; for a free place in the kernel's ring
  std::vector<IoRequest> running_;  // guarded by mutex_
  std::vector<std::size_t> free_;   // guarded by mutex_; places in running_
  std::size_t unfinished_ = 0;      // guarded by mutex_; those of the others too
  std::thread completer_;
};

}  // namespace

Result<std::unique_ptr<IoQueue>> new_uring_io_queue(std::size_t depth,
                                                    std::unique_ptr<IoQueue> others,
                                                    RingFiles files) {
  HEADRACE_CHECK(depth > 0, "a queue has room for a request");
  constexpr std::size_t depth_max = 4096;  // the kernel's is 32768
  depth = std::min(depth, depth_max);
  HEADRACE_TRY_ASSIGN(std::unique_ptr<KernelRing> ring,
                      KernelRing::open(static_cast<unsigned>(depth)));
  return std::unique_ptr<IoQueue>(
      std::make_unique<UringIoQueue>(depth, std::move(ring), std::move(others), files));
}

}  // namespace headrace
