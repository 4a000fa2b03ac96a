// TestKv: a sequence's pages in plain memory, yielded in batches of a chosen size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "page/page_stream.h"

namespace headrace {

/// Yields `pages` in batches. The views are good until the next call only, as a real one's are.
class TestPageStream final : public PageStream {
 public:
  TestPageStream(std::vector<PageView> pages, std::size_t batch)
      : pages_(std::move(pages)), batch_(batch) {}

  Result<std::span<const PageView>> next() override {
    if (fails_after_ == yielded_) return Error{ErrorCode::page_lost, "a page is lost"};
    std::fill(current_.begin(), current_.end(), PageView{});
    const std::size_t count = std::min(batch_, pages_.size() - yielded_);
    const auto first = pages_.begin() + static_cast<std::ptrdiff_t>(yielded_);
    current_.assign(first, first + static_cast<std::ptrdiff_t>(count));
    yielded_ += count;
    return std::span<const PageView>(current_);
  }

  /// Makes the call after `pages` pages fail.
  void fail_after(std::size_t pages) { fails_after_ = pages; }

 private:
  std::vector<PageView> pages_;
  std::vector<PageView> current_;
  std::size_t batch_;
  std::size_t yielded_ = 0;
  std::size_t fails_after_ = SIZE_MAX;
};

class TestKv final : public SequenceKv {
 public:
  TestKv(const PageShape& shape, std::uint32_t layers, std::size_t batch = SIZE_MAX)
      : shape_(shape), batch_(batch), pages_(layers) {}

  /// The step that follows writes `rows` rows from `first_position` on.
  void begin_step(std::uint32_t first_position, std::uint32_t rows) {
    first_position_ = first_position;
    end_ = first_position + rows;
    for (auto& layer : pages_) {
      while (layer.size() * shape_.tokens < end_) layer.emplace_back(shape_.bytes());
    }
  }
  /// In this step the pages of `layer` are lost.
  void lose(std::uint32_t layer) { lost_layer_ = layer; }
  void heal() { lost_layer_ = UINT32_MAX; }

  const PageShape& shape() const override { return shape_; }
  std::span<const RowSlice> rows(std::uint32_t layer) override {
    slices_.clear();
    for (std::uint32_t position = first_position_; position < end_;) {
      const std::uint32_t token = position % shape_.tokens;
      const std::uint32_t count = std::min(shape_.tokens - token, end_ - position);
      slices_.push_back({pages_[layer][position / shape_.tokens].data(), position - first_position_,
                         count, token});
      position += count;
    }
    return slices_;
  }
  PageStream& attend(std::uint32_t layer) override {
    std::vector<PageView> views;
    for (std::uint32_t first = 0; first < end_; first += shape_.tokens) {
      views.push_back({first, std::min(shape_.tokens, end_ - first),
                       pages_[layer][first / shape_.tokens].data()});
    }
    stream_ = std::make_unique<TestPageStream>(std::move(views), batch_);
    if (layer == lost_layer_) stream_->fail_after(0);
    return *stream_;
  }

  /// From now on hidden states are kept, in rows of so many bytes.
  void keep_hidden(std::size_t row_bytes, std::uint32_t rows_max) {
    hidden_row_bytes_ = row_bytes;
    hidden_.assign(pages_.size(), std::vector<std::byte>(row_bytes * rows_max));
  }
  std::byte* hidden_rows(std::uint32_t layer) override {
    return hidden_.empty() ? nullptr : hidden_[layer].data() + first_position_ * hidden_row_bytes_;
  }
  Bytes hidden(std::uint32_t layer) const { return hidden_[layer]; }
  Bytes page(std::uint32_t layer, std::uint32_t index) const { return pages_[layer][index]; }

  /// By bytes.
  bool operator==(const TestKv& other) const { return pages_ == other.pages_; }
  bool same_layer(const TestKv& other, std::uint32_t layer) const {
    return pages_[layer] == other.pages_[layer];
  }

 private:
  PageShape shape_;
  std::size_t batch_;
  std::vector<std::vector<std::vector<std::byte>>> pages_;  // [layer][page]
  std::vector<std::vector<std::byte>> hidden_;              // [layer]: a row for each token
  std::size_t hidden_row_bytes_ = 0;
  std::uint32_t first_position_ = 0;
  std::uint32_t end_ = 0;
  std::uint32_t lost_layer_ = UINT32_MAX;
  std::vector<RowSlice> slices_;
  std::unique_ptr<TestPageStream> stream_;
};

}  // namespace headrace
