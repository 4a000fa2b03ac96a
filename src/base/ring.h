// Ring: a queue that keeps its memory, so that adding to one which has held as much before, or was
// made for it, cannot fail.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace headrace {

template <typename T>
class Ring {
 public:
  explicit Ring(std::size_t capacity = 0) : items_(capacity) {}

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }

  /// Throws std::bad_alloc, and is unchanged then.
  void push(T item) {
    if (size_ == items_.size()) grow();
    items_[(first_ + size_) % items_.size()] = std::move(item);
    ++size_;
  }
  /// The oldest. There must be one.
  T pop() {
    T item = std::exchange(items_[first_], T());
    first_ = (first_ + 1) % items_.size();
    --size_;
    return item;
  }

 private:
  void grow() {
    std::vector<T> larger(2 * items_.size() + 1);
    for (std::size_t i = 0; i < size_; ++i) {
      larger[i] = std::move(items_[(first_ + i) % items_.size()]);
    }
    items_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace headrace
