// Result<T>: a value or an Error. Headrace throws nowhere; every operation that can fail because of
// the world (files, memory limits, user input) returns one of these, and the compiler insists that
// it is looked at.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace headrace {

/// What kind of thing went wrong. Callers branch on the code; people read the message.
enum class ErrorCode {
  invalid_argument,  ///< the caller asked for something that cannot be; changing the request helps
  not_found,         ///< a file or a name does not exist
  unsupported,       ///< valid, but not something this build can do
  corrupt,           ///< bytes failed verification (checksum, identity, length, structure)
  out_of_budget,     ///< a stated limit (memory, disk) would be exceeded, or memory ran out
  io,                ///< the operating system refused or failed an operation
  page_lost,  ///< a KV page could not be restored from its tier; replay of its tokens brings it
              ///< back
  cancelled,  ///< the caller asked to stop
  internal,   ///< a broken invariant of ours that was noticed in time
};

/// Stable lower-case name of a code, for logs and JSON.
const char* to_string(ErrorCode code);

/// An error: its kind and one sentence for a person, which says what to do where that is known.
struct Error {
  ErrorCode code = ErrorCode::internal;
  std::string message;
};

/// A value of type T or an Error. Accessing the wrong side is a programming error and ends the
/// process.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return *side<0>(state_); }
  const T& value() const& { return *side<0>(state_); }
  T&& value() && { return std::move(*side<0>(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& { return *side<1>(state_); }
  Error&& error() && { return std::move(*side<1>(state_)); }

 private:
  template <std::size_t Index>
  static auto* side(auto& state) {
    auto* found = std::get_if<Index>(&state);
    if (found == nullptr) std::abort();
    return found;
  }

  std::variant<T, Error> state_;
};

/// Success without a value, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const& { return *error_; }
  Error&& error() && { return *std::move(error_); }

 private:
  std::optional<Error> error_;
};

#define HEADRACE_CONCAT_INNER(a, b) a##b
#define HEADRACE_CONCAT(a, b) HEADRACE_CONCAT_INNER(a, b)

/// Returns from the enclosing function with the error of `expr` if it has one.
#define HEADRACE_TRY(expr)                                                        \
  do {                                                                            \
    auto headrace_try_result = (expr);                                            \
    if (!headrace_try_result.ok()) return std::move(headrace_try_result).error(); \
  } while (false)

/// Declares `decl` and gives it the value of `expr`, or returns from the enclosing function with
/// its error.
#define HEADRACE_TRY_ASSIGN(decl, expr) \
  HEADRACE_TRY_ASSIGN_INNER(HEADRACE_CONCAT(headrace_result_, __LINE__), decl, expr)
#define HEADRACE_TRY_ASSIGN_INNER(result, decl, expr) \
  auto result = (expr);                               \
  if (!result.ok()) return std::move(result).error(); \
  decl = std::move(result).value()

}  // namespace headrace
