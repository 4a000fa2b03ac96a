// Attention over pages: neither the rows of a step, nor the batches in which pages arrive, nor the
// workers change a bit (invariants 1 and 2).
#include "model/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "base/serial_parallel.h"
#include "env/thread_pool.h"
#include "kernel/test_parallel.h"
#include "model/test_kv.h"

namespace headrace {
namespace {

constexpr std::size_t all_pages = SIZE_MAX;

struct Heads {
  std::uint32_t query_heads;
  std::uint32_t kv_heads;
  std::uint32_t head_dim;
};

ModelShape model_shape(const Heads& heads) {
  ModelShape shape;
  shape.query_heads = heads.query_heads;
  shape.kv_heads = heads.kv_heads;
  shape.head_dim = heads.head_dim;
  return shape;
}

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> result(count);
  for (float& value : result) value = static_cast<float>(normal(random));
  return result;
}

/// Random K and V of `tokens` positions in pages, and a random query for each of them.
struct Sequence {
  Sequence(const Heads& heads, KvType type, std::uint32_t page_tokens, std::uint32_t tokens,
           unsigned seed)
      : shape{page_tokens, heads.kv_heads, heads.head_dim, type},
        query_width(heads.query_heads * heads.head_dim),
        queries(random_floats(std::size_t{tokens} * query_width, seed)),
        keys(random_floats(std::size_t{tokens} * heads.kv_heads * heads.head_dim, seed + 1)),
        values(random_floats(keys.size(), seed + 2)) {
    std::printf("seed=%u\n", seed);
    for (std::uint32_t position = 0; position < tokens; ++position) {
      if (position % page_tokens == 0) pages.emplace_back(shape.bytes());
      for (std::uint32_t head = 0; head < heads.kv_heads; ++head) {
        const std::size_t at =
            (std::size_t{position} * heads.kv_heads + head) * std::size_t{heads.head_dim};
        kernel::kernels().store_kv(&keys[at], &values[at], 0, position % page_tokens, 1,
                                   page_head(shape, pages.back().data(), head));
      }
    }
  }

  /// The pages as a step that ends before position `end` sees them.
  TestPageStream stream(std::uint32_t end, std::size_t batch) const {
    std::vector<PageView> views;
    for (std::uint32_t first = 0; first < end; first += shape.tokens) {
      views.push_back(
          {first, std::min(shape.tokens, end - first), pages[first / shape.tokens].data()});
    }
    return {std::move(views), batch};
  }
  const float* query(std::uint32_t position) const {
    return queries.data() + std::size_t{position} * query_width;
  }
  AttentionRows rows(std::uint32_t first, std::uint32_t count, float* out) const {
    return {query(first), out, count, first};
  }

  PageShape shape;
  std::uint32_t query_width;
  std::vector<float> queries;  // [position][query_head][head_dim]
  std::vector<float> keys;     // [position][kv_head][head_dim]
  std::vector<float> values;
  std::vector<std::vector<std::byte>> pages;
};

std::vector<float> attend(Attention& attention, const Sequence& sequence, std::uint32_t first,
                          std::uint32_t count, std::size_t batch) {
  std::vector<float> out(std::size_t{count} * sequence.query_width, -9.0F);
  TestPageStream stream = sequence.stream(first + count, batch);
  const Result<void> result =
      attention.run(sequence.rows(first, count, out.data()), sequence.shape, stream);
  EXPECT_TRUE(result.ok());
  return out;
}

void expect_same(std::span<const float> expected, std::span<const float> actual) {
  ASSERT_EQ(expected.size(), actual.size());
  ASSERT_EQ(std::memcmp(expected.data(), actual.data(), actual.size_bytes()), 0);
}

/// Softmax attention of one query head in double over positions 0..last.
std::vector<double> attend_exactly(const Sequence& sequence, const Heads& heads, std::uint32_t last,
                                   std::uint32_t head) {
  const std::uint32_t dim = heads.head_dim;
  const std::uint32_t kv_head = head / (heads.query_heads / heads.kv_heads);
  const float* query = sequence.query(last) + std::size_t{head} * dim;
  std::vector<double> out(dim);
  double sum = 0;
  for (std::uint32_t position = 0; position <= last; ++position) {
    const std::size_t at = (std::size_t{position} * heads.kv_heads + kv_head) * dim;
    double score = 0;
    for (std::uint32_t d = 0; d < dim; ++d) {
      score += static_cast<double>(query[d]) * static_cast<double>(sequence.keys[at + d]);
    }
    const double weight = std::exp(score / std::sqrt(dim));
    sum += weight;
    for (std::uint32_t d = 0; d < dim; ++d) {
      out[d] += weight * static_cast<double>(sequence.values[at + d]);
    }
  }
  for (double& value : out) value /= sum;
  return out;
}

TEST(Attention, IsSoftmaxAttentionOfEachHeadOverItsKvHead) {
  const Heads heads = {6, 2, 48};
  const Sequence sequence(heads, KvType::f32, 32, 100, 81);
  SerialParallel serial;
  Attention attention = Attention::create(serial, model_shape(heads), sequence.shape, 100).value();
  const std::vector<float> out = attend(attention, sequence, 0, 100, 2);
  for (const std::uint32_t row : {0U, 1U, 31U, 32U, 63U, 99U}) {
    for (std::uint32_t head = 0; head < heads.query_heads; ++head) {
      const std::vector<double> expected = attend_exactly(sequence, heads, row, head);
      const float* actual =
          out.data() + (std::size_t{row} * heads.query_heads + head) * heads.head_dim;
      for (std::uint32_t d = 0; d < heads.head_dim; ++d) {
        ASSERT_NEAR(static_cast<double>(actual[d]), expected[d], 4e-6)
            << "row " << row << ", head " << head << ", dim " << d;
      }
    }
  }
}

// Groups of 1, 3, 4 and 13 query heads: 13 exceeds the vectors of one fold call.
constexpr Heads geometries[] = {{2, 2, 16}, {9, 3, 64}, {8, 2, 80}, {13, 1, 32}};

TEST(Attention, RowsAndBatchesOfPagesChangeNoBit) {
  constexpr std::uint32_t tokens = 150;
  for (const Heads& heads : geometries) {
    for (const KvType type : kv_types) {
      if (type == KvType::q8 && heads.head_dim % 32 != 0) continue;
      SCOPED_TRACE(std::to_string(heads.query_heads) + " heads, " + to_string(type));
      const Sequence sequence(heads, type, 16, tokens, 82);
      SerialParallel serial;
      Attention attention =
          Attention::create(serial, model_shape(heads), sequence.shape, tokens).value();
      std::vector<float> alone;
      for (std::uint32_t row = 0; row < tokens; ++row) {
        const std::vector<float> out = attend(attention, sequence, row, 1, all_pages);
        alone.insert(alone.end(), out.begin(), out.end());
      }
      for (const std::size_t batch : {std::size_t{1}, std::size_t{3}, all_pages}) {
        for (const std::uint32_t count : {1U, 2U, 7U, 64U, tokens}) {
          for (std::uint32_t first = 0; first < tokens; first += count) {
            if (count == 1 && first % 29 != 0) continue;
            SCOPED_TRACE(std::to_string(std::min(count, tokens - first)) + " rows from " +
                         std::to_string(first));
            const std::vector<float> together =
                attend(attention, sequence, first, std::min(count, tokens - first), batch);
            ASSERT_NO_FATAL_FAILURE(
                expect_same(std::span(alone).subspan(std::size_t{first} * sequence.query_width,
                                                     together.size()),
                            together));
          }
        }
      }
    }
  }
}

TEST(Attention, WorkersChangeNoBit) {
  constexpr std::uint32_t tokens = 90;
  for (const Heads& heads : geometries) {
    const Sequence sequence(heads, KvType::f16, 16, tokens, 83);
    SerialParallel serial;
    ShuffledParallel shuffled(3, 84);
    ThreadPool two(2);
    ThreadPool three(3);
    Attention reference =
        Attention::create(serial, model_shape(heads), sequence.shape, tokens).value();
    const std::vector<float> expected = attend(reference, sequence, 0, tokens, 2);
    for (Parallel* parallel : {static_cast<Parallel*>(&shuffled), static_cast<Parallel*>(&two),
                               static_cast<Parallel*>(&three)}) {
      Attention attention =
          Attention::create(*parallel, model_shape(heads), sequence.shape, tokens).value();
      ASSERT_NO_FATAL_FAILURE(expect_same(expected, attend(attention, sequence, 0, tokens, 2)));
      const std::vector<float> last = attend(attention, sequence, tokens - 1, 1, 4);
      ASSERT_NO_FATAL_FAILURE(expect_same(std::span(expected).last(sequence.query_width), last));
    }
  }
}

// More pages in a batch than partials are kept for (64).
TEST(Attention, ALongBatchForOneRowIsFoldedInPasses) {
  const Heads heads = {2, 1, 16};
  constexpr std::uint32_t tokens = 16 * 131;
  const Sequence sequence(heads, KvType::f16, 16, tokens, 85);
  SerialParallel serial;
  Attention attention = Attention::create(serial, model_shape(heads), sequence.shape, 2).value();
  const std::vector<float> whole = attend(attention, sequence, tokens - 1, 1, all_pages);
  ASSERT_NO_FATAL_FAILURE(expect_same(whole, attend(attention, sequence, tokens - 1, 1, 5)));
  const std::vector<float> pair = attend(attention, sequence, tokens - 2, 2, 64);
  ASSERT_NO_FATAL_FAILURE(expect_same(whole, std::span(pair).last(sequence.query_width)));
}

TEST(Attention, ALostPageIsTheResultAndTheNextRunIsUndisturbed) {
  const Heads heads = {4, 2, 32};
  const Sequence sequence(heads, KvType::f16, 16, 64, 86);
  SerialParallel serial;
  Attention attention = Attention::create(serial, model_shape(heads), sequence.shape, 8).value();
  const std::vector<float> expected = attend(attention, sequence, 56, 8, 1);
  std::vector<float> out(expected.size());
  TestPageStream stream = sequence.stream(64, 1);
  stream.fail_after(2);
  const Result<void> result =
      attention.run(sequence.rows(56, 8, out.data()), sequence.shape, stream);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::page_lost);
  ASSERT_NO_FATAL_FAILURE(expect_same(expected, attend(attention, sequence, 56, 8, 1)));
}

// --- Recall
// ---------------------------------------------------------------------------------------

/// The pages of a text whose last token is the step's row, with sketches of all but the last page.
class SketchedKv final : public SequenceKv {
 public:
  SketchedKv(const Sequence& sequence, std::uint32_t tokens, std::size_t batch)
      : sequence_(sequence), tokens_(tokens), batch_(batch) {
    const PageShape& shape = sequence.shape;
    const std::size_t head_bytes = kernel::key_sketch_bytes(shape.tokens, shape.head_dim);
    std::vector<float> scratch(std::size_t{3} * shape.head_dim * kernel::lanes);
    for (std::uint32_t block = 0; (block + 1) * shape.tokens < tokens; ++block) {
      auto* const page = const_cast<std::byte*>(sequence.pages[block].data());
      sketches_.emplace_back(shape.kv_heads * head_bytes);
      for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
        kernel::kernels().sketch_keys(page_head(shape, page, head), scratch.data(),
                                      sketches_.back().data() + head * head_bytes);
      }
      views_.push_back(sketches_.back().data());
    }
    views_.push_back(nullptr);
  }

  RecallView view(const AttentionOptions& options) const {
    const std::uint32_t last = static_cast<std::uint32_t>(views_.size()) - 1;
    const std::uint32_t first = last * sequence_.shape.tokens;
    return {
        &options, views_, {first, tokens_ - first, sequence_.pages[last].data()}, groups_alone_};
  }

  const PageShape& shape() const override { return sequence_.shape; }
  std::span<const RowSlice> rows(std::uint32_t) override { return {}; }
  PageStream& attend(std::uint32_t layer) override { return attend_chosen(layer); }
  std::size_t choose(std::uint32_t, const TokenChoice& choice) override {
    choice_ = choice;
    return groups_alone_ ? choice.groups.size() : 0;
  }
  void load_group(std::size_t index) override { loaded_[index] = 1; }
  void copy_groups(const PageView& view, std::uint32_t kv_head,
                   std::span<const std::uint16_t> groups, std::byte* page) const override {
    const std::uint32_t block = view.first_position / shape().tokens;
    for (const std::uint16_t group : groups) {
      const std::size_t index = std::size_t{block} * (shape().tokens / choice_tokens) + group;
      EXPECT_NE(choice_.groups[index], 0);
      EXPECT_NE(loaded_[index], 0);
      const std::byte* const from = sequence_.pages[block].data() + shape().k_offset(kv_head);
      std::copy_n(from, shape().head_bytes(), page + shape().k_offset(kv_head));
    }
  }
  /// From now on full blocks are there by groups.
  void keep_groups_alone() {
    groups_alone_ = true;
    loaded_.assign(views_.size() * (shape().tokens / choice_tokens), 0);
  }
  PageStream& attend_chosen(std::uint32_t) override {
    const std::span<const std::uint8_t> wanted = choice_.blocks;
    std::vector<PageView> views;
    for (std::uint32_t block = 0; block < views_.size(); ++block) {
      const std::uint32_t first = block * shape().tokens;
      if (!wanted.empty() && wanted[block] == 0) continue;
      const bool has_data = !groups_alone_ || views_[block] == nullptr;
      views.push_back({first, std::min(shape().tokens, tokens_ - first),
                       has_data ? sequence_.pages[block].data() : nullptr});
    }
    pages_read_ = views.size();
    stream_ = std::make_unique<TestPageStream>(std::move(views), batch_);
    return *stream_;
  }
  std::size_t pages_read() const { return pages_read_; }

 private:
  const Sequence& sequence_;
  const std::uint32_t tokens_;
  const std::size_t batch_;
  std::vector<std::vector<std::byte>> sketches_;
  std::vector<const std::byte*> views_;
  std::unique_ptr<TestPageStream> stream_;
  std::size_t pages_read_ = 0;
  TokenChoice choice_;
  bool groups_alone_ = false;
  std::vector<std::uint8_t> loaded_;
};

AttentionOptions recall_of(std::uint32_t tokens) {
  AttentionOptions options;
  options.mode = AttentionMode::recall;
  options.recall_tokens = tokens;
  options.recall_mass = 1;
  options.recall_share = 0;
  options.recall_first = 0;
  options.recall_newest = 1;
  return options;
}

std::vector<float> recall(Parallel& parallel, const Heads& heads, const Sequence& sequence,
                          std::uint32_t tokens, const AttentionOptions& options, std::size_t batch,
                          bool groups_alone = false) {
  Attention attention = Attention::create(parallel, model_shape(heads), sequence.shape, 1).value();
  EXPECT_TRUE(attention.prepare_recall(model_shape(heads), sequence.shape, tokens).ok());
  SketchedKv kv(sequence, tokens, batch);
  if (groups_alone) kv.keep_groups_alone();
  std::vector<float> out(sequence.query_width, -9.0F);
  const Result<void> result =
      attention.run_recall(sequence.rows(tokens - 1, 1, out.data()), kv, 0, kv.view(options));
  EXPECT_TRUE(result.ok());
  return out;
}

TEST(AttentionInRecall, ThatMayReadEverythingHasTheBitsOfAttention) {
  constexpr std::uint32_t tokens = 16 * 9 + 5;
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::i16, KvType::q8}) {
    for (const Heads& heads : geometries) {
      if (type == KvType::q8 && heads.head_dim % 32 != 0) continue;
      const Sequence sequence(heads, type, 16, tokens, 87);
      SerialParallel serial;
      Attention attention =
          Attention::create(serial, model_shape(heads), sequence.shape, 1).value();
      expect_same(attend(attention, sequence, tokens - 1, 1, all_pages),
                  recall(serial, heads, sequence, tokens, recall_of(tokens), all_pages));
    }
  }
}

TEST(AttentionInRecall, WorkersAndBatchesChangeNoBit) {
  constexpr std::uint32_t tokens = 32 * 20 + 7;
  for (const Heads& heads : geometries) {
    const Sequence sequence(heads, KvType::i16, 32, tokens, 88);
    SerialParallel serial;
    ShuffledParallel shuffled(3, 89);
    ThreadPool two(2);
    const AttentionOptions options = recall_of(100);
    const std::vector<float> expected = recall(serial, heads, sequence, tokens, options, all_pages);
    for (Parallel* parallel : {static_cast<Parallel*>(&shuffled), static_cast<Parallel*>(&two)}) {
      for (const std::size_t batch : {std::size_t{1}, std::size_t{3}, all_pages})
        expect_same(expected, recall(*parallel, heads, sequence, tokens, options, batch));
    }
  }
}

TEST(AttentionInRecall, GroupsAloneGiveTheBitsOfWholePages) {
  constexpr std::uint32_t tokens = 32 * 20 + 7;
  for (const KvType type : {KvType::f16, KvType::i16, KvType::q8}) {
    for (const Heads& heads : geometries) {
      if (type == KvType::q8 && heads.head_dim % 32 != 0) continue;
      const Sequence sequence(heads, type, 32, tokens, 91);
      ThreadPool two(2);
      for (const std::uint32_t unit : {4U, 8U, 16U}) {
        AttentionOptions options = recall_of(100);
        options.recall_group = unit;
        expect_same(recall(two, heads, sequence, tokens, options, all_pages),
                    recall(two, heads, sequence, tokens, options, all_pages, true));
      }
    }
  }
}

TEST(AttentionInRecall, PagesOfWhichNothingIsChosenAreNotAskedFor) {
  const Heads heads = {2, 1, 16};
  constexpr std::uint32_t tokens = 16 * 40 + 1;
  const Sequence sequence(heads, KvType::f32, 16, tokens, 90);
  SerialParallel serial;
  Attention attention = Attention::create(serial, model_shape(heads), sequence.shape, 1).value();
  ASSERT_TRUE(attention.prepare_recall(model_shape(heads), sequence.shape, tokens).ok());
  SketchedKv kv(sequence, tokens, all_pages);
  std::vector<float> out(sequence.query_width);
  const AttentionOptions options = recall_of(13);
  ASSERT_TRUE(
      attention.run_recall(sequence.rows(tokens - 1, 1, out.data()), kv, 0, kv.view(options)).ok());
  EXPECT_GE(kv.pages_read(), 2U);
  EXPECT_LE(kv.pages_read(), 4U) << "3 groups of 4, and the newest page";
  for (const float value : out) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace headrace
