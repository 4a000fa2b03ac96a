// Where std::bad_alloc ends: at the border of the public interface, of a job that another thread
// carries out, and of a destructor.
#pragma once

#include <new>
#include <type_traits>
#include <utility>

#include "headrace/result.h"

namespace headrace {

/// Its text is so short that it needs no memory of its own.
inline Error no_memory(ErrorCode code) { return {code, "out of memory"}; }

/// What `work` returns, a Result, or an error with `code` where it runs out of memory.
template <typename Work>
std::invoke_result_t<Work> or_no_memory(ErrorCode code, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    return no_memory(code);
  }
}

/// For destructors, which have nobody to tell. False: it ran out of memory.
template <typename Work>
bool has_memory_for(Work&& work) {
  try {
    std::forward<Work>(work)();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace headrace
