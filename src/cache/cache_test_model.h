// A model for the tests of the cache: keys, values and outputs are hashes of all that a real model
// would make them from, so a wrong byte anywhere changes everything after it.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "page/page_stream.h"

namespace headrace {

/// One number per row: what comes out of the last layer.
using FakeOutputs = std::vector<std::uint64_t>;

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t value = (a ^ (b + 0x9E37'79B9'7F4A'7C15U)) * 0xBF58'476D'1CE4'E5B9U;
  value = (value ^ (value >> 29)) * 0x94D0'49BB'1331'11EBU;
  return value ^ (value >> 32);
}

/// Row invariant, as the real one: the row of a position depends on the tokens up to it and on
/// nothing else.
class FakeModel {
 public:
  /// `windows`: as PageStoreOptions::windows.
  explicit FakeModel(std::uint32_t layers, std::vector<std::uint32_t> windows = {})
      : layers_(layers), windows_(std::move(windows)) {}

  std::uint32_t layers() const { return layers_; }

  /// Breaks row invariance: from now on the number of rows of a step matters.
  void let_batches_matter() { batches_matter_ = true; }

  /// Runs `tokens`, which stand at `first_position`, through layers [0, layers_end).
  Result<FakeOutputs> run(SequenceKv& kv, std::span<const TokenId> tokens,
                          std::uint32_t first_position, std::uint32_t layers_end) const {
    FakeOutputs hidden;
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      const std::uint64_t position = first_position + row;
      hidden.push_back(mix(static_cast<std::uint64_t>(tokens[row]), position));
      if (batches_matter_) hidden.back() += tokens.size();
    }
    for (std::uint32_t layer = 0; layer < layers_end; ++layer) {
      write_rows(kv.shape(), kv.rows(layer), layer, first_position, hidden);
      const std::uint32_t window = windows_.empty() ? 0 : windows_[layer];
      HEADRACE_TRY(attend(kv.shape(), kv.attend(layer), first_position, window, hidden));
    }
    return hidden;
  }

 private:
  static std::size_t element_offset(const PageShape& shape, bool is_key, std::uint32_t head,
                                    std::uint32_t dim, std::uint32_t token) {
    const std::uint64_t index =
        is_key ? (std::uint64_t{token / tile_tokens} * shape.head_dim + dim) * tile_tokens +
                     token % tile_tokens
               : std::uint64_t{token} * shape.head_dim + dim;
    return (is_key ? shape.k_offset(head) : shape.v_offset(head)) +
           index * value_bytes(shape.type, 1);
  }

  template <typename Visit>
  static void for_each_element(const PageShape& shape, std::uint32_t token, const Visit& visit) {
    for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
      for (std::uint32_t dim = 0; dim < shape.head_dim; ++dim) {
        visit(element_offset(shape, true, head, dim, token));
        visit(element_offset(shape, false, head, dim, token));
      }
    }
  }

  static void write_rows(const PageShape& shape, std::span<const RowSlice> slices,
                         std::uint32_t layer, std::uint32_t first_position,
                         const FakeOutputs& hidden) {
    std::uint32_t row = 0;
    for (const RowSlice& slice : slices) {
      ASSERT_EQ(slice.first_row, row) << "slices come in order, without a gap";
      ASSERT_GT(slice.rows, 0U);
      ASSERT_LE(slice.first_token + slice.rows, shape.tokens);
      ASSERT_EQ(slice.first_token, (first_position + row) % shape.tokens);
      for (std::uint32_t i = 0; i < slice.rows; ++i, ++row) {
        std::uint64_t value = mix(hidden[row], layer);
        for_each_element(shape, slice.first_token + i, [&](std::size_t offset) {
          value = mix(value, 1);
          std::memcpy(slice.page + offset, &value, value_bytes(shape.type, 1));
        });
      }
    }
    ASSERT_EQ(row, hidden.size()) << "every row has its place";
  }

  static Result<void> attend(const PageShape& shape, PageStream& stream,
                             std::uint32_t first_position, std::uint32_t window,
                             FakeOutputs& hidden) {
    const std::uint32_t end = first_position + static_cast<std::uint32_t>(hidden.size());
    const std::uint32_t first_read =
        window == 0 || first_position < window ? 0 : first_position - window + 1;
    std::uint32_t position = 0;
    bool is_first = true;
    std::vector<std::uint64_t> read(end);  // what each position holds
    while (true) {
      HEADRACE_TRY_ASSIGN(const std::span<const PageView> views, stream.next());
      if (views.empty()) break;
      for (const PageView& view : views) {
        if (is_first && view.first_position <= first_read) position = view.first_position;
        is_first = false;
        EXPECT_EQ(view.first_position, position) << "pages come in order, without a gap";
        for (std::uint32_t token = 0; token < view.tokens; ++token, ++position) {
          for_each_element(shape, token, [&](std::size_t offset) {
            std::uint32_t value = 0;
            std::memcpy(&value, view.data + offset, value_bytes(shape.type, 1));
            read[position] = mix(read[position], value);
          });
        }
      }
    }
    EXPECT_EQ(position, end) << "all pages up to the newest row, and no more";
    std::uint64_t seen = 0;  // without a window: of all positions so far
    for (position = 0; position < end; ++position) {
      seen = mix(seen, read[position]);
      if (position < first_position) continue;
      if (window != 0) {
        seen = 0;
        for (std::uint32_t p = position - std::min(position, window - 1); p <= position; ++p)
          seen = mix(seen, read[p]);
      }
      hidden[position - first_position] = mix(hidden[position - first_position], seen);
    }
    return {};
  }

  const std::uint32_t layers_;
  const std::vector<std::uint32_t> windows_;
  bool batches_matter_ = false;
};

/// Keys and values in plain memory: what the cache is compared with.
class PlainKv final : public SequenceKv, private PageStream {
 public:
  PlainKv(const PageShape& shape, std::uint32_t layers, std::size_t tokens)
      : shape_(shape), tokens_(static_cast<std::uint32_t>(tokens)), pages_(layers) {
    const std::size_t blocks = (tokens + shape.tokens - 1) / shape.tokens;
    for (auto& layer : pages_) layer.resize(blocks, std::vector<std::byte>(shape.bytes()));
  }

  const PageShape& shape() const override { return shape_; }

  std::span<const RowSlice> rows(std::uint32_t layer) override {
    slices_.clear();
    for (std::uint32_t first = 0; first < tokens_; first += shape_.tokens) {
      slices_.push_back({.page = pages_[layer][first / shape_.tokens].data(),
                         .first_row = first,
                         .rows = std::min(shape_.tokens, tokens_ - first),
                         .first_token = 0});
    }
    return slices_;
  }

  PageStream& attend(std::uint32_t layer) override {
    views_.clear();
    for (const RowSlice& slice : rows(layer)) {
      views_.push_back(
          {.first_position = slice.first_row, .tokens = slice.rows, .data = slice.page});
    }
    return *this;
  }

  const std::vector<std::byte>& page(std::uint32_t layer, std::uint32_t block) const {
    return pages_[layer][block];
  }

 private:
  Result<std::span<const PageView>> next() override {
    yielded_.swap(views_);
    views_.clear();
    return std::span<const PageView>(yielded_);
  }

  const PageShape shape_;
  const std::uint32_t tokens_;
  std::vector<std::vector<std::vector<std::byte>>> pages_;  // [layer][block]
  std::vector<RowSlice> slices_;
  std::vector<PageView> views_;
  std::vector<PageView> yielded_;
};

}  // namespace headrace
