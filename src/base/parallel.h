// Parallel: runs independent tasks on a fixed set of workers. The interface that compute code sees;
// the threads themselves belong to env/.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace headrace {

/// A non-owning reference to a callable void(task, worker). Valid while the callable lives.
class TaskRef {
 public:
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, TaskRef>)
  TaskRef(F&& callable)  // NOLINT(google-explicit-constructor): a view, made at the call
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, std::size_t task, std::size_t worker) {
          (*static_cast<std::remove_reference_t<F>*>(object))(task, worker);
        }) {}
  void operator()(std::size_t task, std::size_t worker) const { call_(object_, task, worker); }

 private:
  void* object_;
  void (*call_)(void*, std::size_t, std::size_t);
};

/// Runs tasks 0..count-1 and returns when all are done. Which worker runs which task is not
/// defined, so a task's result must not depend on it: `worker` (< workers()) only selects scratch
/// memory.
class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual std::size_t workers() const = 0;
  virtual void run(std::size_t count, TaskRef task) = 0;
};

}  // namespace headrace
