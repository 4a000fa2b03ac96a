#include "base/budget.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace headrace {

Reservation::Reservation(Reservation&& other) noexcept
    : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  // The old booking moves into a temporary that ends here; moving to itself therefore keeps it.
  Reservation incoming(std::move(other));
  std::swap(budget_, incoming.budget_);
  std::swap(bytes_, incoming.bytes_);
  return *this;
}

Reservation::~Reservation() {
  if (budget_ != nullptr) budget_->used_bytes_ -= bytes_;
}

Result<Reservation> Budget::reserve(std::uint64_t bytes, std::string_view what) {
  if (bytes > free_bytes()) {
    return Error{ErrorCode::out_of_budget, std::string(what) + ": " + format_byte_count(bytes) +
                                               " asked, " + format_byte_count(free_bytes()) +
                                               " left of " + format_byte_count(limit_bytes_)};
  }
  used_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return Reservation(this, bytes);
}

}  // namespace headrace
