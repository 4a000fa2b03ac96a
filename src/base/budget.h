// Budget: a hard limit on bytes. Memory is reserved here before it is allocated (invariant 5), so
// the sum of what the parts hold can never exceed the limit, and the peak is known exactly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "headrace/result.h"

namespace headrace {

class Budget;

/// Bytes held of a Budget; given back when this ends. Movable, so that the owner of memory also
/// owns its booking.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();
  std::uint64_t bytes() const { return bytes_; }

 private:
  friend class Budget;
  Reservation(Budget* budget, std::uint64_t bytes) : budget_(budget), bytes_(bytes) {}
  Budget* budget_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// Used by one thread (the engine loop). Must outlive its reservations.
class Budget {
 public:
  explicit Budget(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  /// Errors: out_of_budget, naming `what`, the bytes asked for and the bytes left.
  Result<Reservation> reserve(std::uint64_t bytes, std::string_view what);

  /// At least used_bytes().
  void set_limit_bytes(std::uint64_t limit_bytes) { limit_bytes_ = limit_bytes; }
  std::uint64_t limit_bytes() const { return limit_bytes_; }
  std::uint64_t used_bytes() const { return used_bytes_; }
  std::uint64_t peak_bytes() const { return peak_bytes_; }
  std::uint64_t free_bytes() const { return limit_bytes_ - used_bytes_; }

 private:
  friend class Reservation;
  std::uint64_t limit_bytes_;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
};

}  // namespace headrace
