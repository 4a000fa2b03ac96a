// Attention over pages: neither the rows of a step, nor the batches in which pages arrive, nor the
// workers change a bit (invariants 1 and 2).
#include "model/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
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
  shape.layers = 1;
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

/// [position]: what a query head of the row at `last` gives to those that it reads, in double.
std::vector<double> true_shares(const Sequence& sequence, const Heads& heads, std::uint32_t last,
                                std::uint32_t head,
                                const std::function<bool(std::uint32_t)>& reads) {
  const std::uint32_t dim = heads.head_dim;
  const std::uint32_t kv_head = head / (heads.query_heads / heads.kv_heads);
  const float* query = sequence.query(last) + std::size_t{head} * dim;
  std::vector<double> shares(last + 1);
  double sum = 0;
  for (std::uint32_t position = 0; position <= last; ++position) {
    if (!reads(position)) continue;
    const std::size_t at = (std::size_t{position} * heads.kv_heads + kv_head) * dim;
    double score = 0;
    for (std::uint32_t d = 0; d < dim; ++d) {
      score += static_cast<double>(query[d]) * static_cast<double>(sequence.keys[at + d]);
    }
    shares[position] = std::exp(score / std::sqrt(dim));
    sum += shares[position];
  }
  for (double& share : shares) share /= sum;
  return shares;
}

/// Softmax attention of one query head in double over those of positions 0..last that it reads.
std::vector<double> attend_exactly(
    const Sequence& sequence, const Heads& heads, std::uint32_t last, std::uint32_t head,
    const std::function<bool(std::uint32_t)>& reads = [](std::uint32_t) { return true; }) {
  const std::uint32_t dim = heads.head_dim;
  const std::uint32_t kv_head = head / (heads.query_heads / heads.kv_heads);
  const std::vector<double> shares = true_shares(sequence, heads, last, head, reads);
  std::vector<double> out(dim);
  for (std::uint32_t position = 0; position <= last; ++position) {
    const std::size_t at = (std::size_t{position} * heads.kv_heads + kv_head) * dim;
    for (std::uint32_t d = 0; d < dim; ++d)
      out[d] += shares[position] * static_cast<double>(sequence.values[at + d]);
  }
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
    const std::size_t groups = views_.size() * (shape.tokens / kernel::group_tokens);
    mass = random_floats(shape.kv_heads * groups, 95);
    for (float& value : mass) value = std::abs(value);
    next_mass.resize(mass.size(), -1.0F);
  }

  RecallView view(const AttentionOptions& options) {
    const std::uint32_t last = static_cast<std::uint32_t>(views_.size()) - 1;
    const std::uint32_t first = last * sequence_.shape.tokens;
    RecallView view = {
        &options, views_, {first, tokens_ - first, sequence_.pages[last].data()}, groups_alone_};
    if (!notes_mass(options)) return view;
    view.mass = mass;
    view.next_mass = next_mass;
    view.is_mass_known = true;
    return view;
  }

  const PageShape& shape() const override { return sequence_.shape; }
  std::span<const RowSlice> rows(std::uint32_t) override { return {}; }
  PageStream& attend(std::uint32_t) override {
    stream_ = std::make_unique<TestPageStream>(sequence_.stream(tokens_, batch_));
    return *stream_;
  }
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

  std::vector<float> mass, next_mass;  // [kv_head][group]

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
                          bool groups_alone = false, std::vector<float>* mass = nullptr) {
  Attention attention = Attention::create(parallel, model_shape(heads), sequence.shape, 1).value();
  EXPECT_TRUE(attention.prepare_recall(model_shape(heads), sequence.shape, tokens, options).ok());
  SketchedKv kv(sequence, tokens, batch);
  if (groups_alone) kv.keep_groups_alone();
  std::vector<float> out(sequence.query_width, -9.0F);
  const Result<void> result =
      attention.run_recall(sequence.rows(tokens - 1, 1, out.data()), kv, 0, kv.view(options));
  EXPECT_TRUE(result.ok());
  if (mass != nullptr) *mass = kv.next_mass;
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
  const AttentionOptions options = recall_of(13);
  ASSERT_TRUE(attention.prepare_recall(model_shape(heads), sequence.shape, tokens, options).ok());
  SketchedKv kv(sequence, tokens, all_pages);
  std::vector<float> out(sequence.query_width);
  ASSERT_TRUE(
      attention.run_recall(sequence.rows(tokens - 1, 1, out.data()), kv, 0, kv.view(options)).ok());
  EXPECT_GE(kv.pages_read(), 2U);
  EXPECT_LE(kv.pages_read(), 4U) << "3 groups of 4, and the newest page";
  for (const float value : out) EXPECT_TRUE(std::isfinite(value));
}

// --- Window and sparse ------------------------------------------------------------------------

AttentionOptions window_of(std::uint32_t first, std::uint32_t newest) {
  AttentionOptions options;
  options.mode = AttentionMode::window;
  options.recall_first = first;
  options.window_tokens = newest;
  return options;
}

AttentionOptions sparse_of(std::uint32_t tokens) {
  AttentionOptions options;
  options.mode = AttentionMode::sparse;
  options.recall_first = 8;
  options.sparse_tokens = tokens;
  options.sparse_sample = 0.2F;
  options.sparse_heavy = 0.3F;
  return options;
}

TEST(AttentionInAWindow, ThatCoversEverythingHasTheBitsOfAttention) {
  for (const std::uint32_t tokens : {16U * 9 + 5, 16U * 9, 3U}) {
    for (const KvType type : kv_types) {
      for (const Heads& heads : geometries) {
        if (type == KvType::q8 && heads.head_dim % 32 != 0) continue;
        const Sequence sequence(heads, type, 16, tokens, 96);
        SerialParallel serial;
        Attention attention =
            Attention::create(serial, model_shape(heads), sequence.shape, 1).value();
        const std::vector<float> expected = attend(attention, sequence, tokens - 1, 1, all_pages);
        for (const AttentionOptions& options : {window_of(0, tokens), window_of(16, tokens - 2),
                                                window_of(4, 5000), sparse_of(tokens + 60)}) {
          expect_same(expected, recall(serial, heads, sequence, tokens, options, all_pages));
        }
      }
    }
  }
}

TEST(AttentionInAWindow, IsSoftmaxAttentionOverWhatItReads) {
  const Heads heads = {6, 2, 48};
  // Pages that hold the first tokens, the newest ones and a gap between them; borders within a
  // tile of 16 and within a group of 4.
  for (const std::uint32_t page_tokens : {16U, 32U, 128U}) {
    for (const std::uint32_t tokens : {100U, 128U, 130U}) {
      const Sequence sequence(heads, KvType::f32, page_tokens, tokens, 97);
      for (const std::uint32_t newest : {1U, 9U, 30U, 71U}) {
        SerialParallel serial;
        const std::vector<float> out =
            recall(serial, heads, sequence, tokens, window_of(8, newest), 2);
        const auto reads = [&](std::uint32_t position) {
          return position < 8 || position + newest >= tokens;
        };
        for (std::uint32_t head = 0; head < heads.query_heads; ++head) {
          const std::vector<double> expected =
              attend_exactly(sequence, heads, tokens - 1, head, reads);
          for (std::uint32_t d = 0; d < heads.head_dim; ++d) {
            ASSERT_NEAR(static_cast<double>(out[head * heads.head_dim + d]), expected[d], 4e-6)
                << page_tokens << " " << tokens << " " << newest << " " << head;
          }
        }
      }
    }
  }
}

/// What is noted of pages of a type is what was given, but for what the type rounds.
void expect_true_mass(KvType type, double tolerance) {
  SCOPED_TRACE(to_string(type));
  const Heads heads = {6, 2, 64};
  constexpr std::uint32_t page_tokens = 64;
  for (const std::uint32_t tokens : {301U, 383U, 384U}) {
    const Sequence sequence(heads, type, page_tokens, tokens, 98);
    SerialParallel serial;
    Attention attention = Attention::create(serial, model_shape(heads), sequence.shape, 1).value();
    const AttentionOptions options = sparse_of(110);
    ASSERT_TRUE(attention.prepare_recall(model_shape(heads), sequence.shape, tokens, options).ok());
    SketchedKv kv(sequence, tokens, all_pages);
    std::vector<float> out(sequence.query_width);
    const RecallView view = kv.view(options);
    ASSERT_TRUE(attention.run_recall(sequence.rows(tokens - 1, 1, out.data()), kv, 0, view).ok());
    // The same choice again, to know what was read.
    WindowChooser chooser =
        WindowChooser::create(serial, model_shape(heads), sequence.shape, tokens, options).value();
    chooser.choose(tokens - 1, view);
    const std::size_t groups = kv.mass.size() / heads.kv_heads;
    for (std::uint32_t kv_head = 0; kv_head < heads.kv_heads; ++kv_head) {
      const auto reads = [&](std::uint32_t position) {
        const std::uint32_t block = position / page_tokens;
        const std::uint32_t token = position % page_tokens;
        return token >= chooser.block(block, kv_head).whole_from ||
               std::ranges::count(chooser.groups(block, kv_head), token / kernel::group_tokens) > 0;
      };
      std::vector<double> expected(groups);
      for (std::size_t group = 0; group < groups; ++group)
        expected[group] = 0.995 * static_cast<double>(kv.mass[kv_head * groups + group]);
      for (std::uint32_t head = kv_head * 3; head < kv_head * 3 + 3; ++head) {
        const auto shares = true_shares(sequence, heads, tokens - 1, head, reads);
        for (std::uint32_t t = 0; t < tokens; ++t) expected[t / kernel::group_tokens] += shares[t];
        const auto exact = attend_exactly(sequence, heads, tokens - 1, head, reads);
        for (std::uint32_t d = 0; d < heads.head_dim; ++d)
          ASSERT_NEAR(static_cast<double>(out[head * heads.head_dim + d]), exact[d], tolerance);
      }
      for (std::uint32_t group = 0; group * kernel::group_tokens < tokens; ++group) {
        ASSERT_NEAR(static_cast<double>(kv.next_mass[kv_head * groups + group]), expected[group],
                    tolerance)
            << group;
      }
    }
  }
}

TEST(AttentionInSparse, AddsTheSharesOfWhatItReadToWhatFades) {
  expect_true_mass(KvType::f32, 4e-6);
  expect_true_mass(KvType::f16, 1e-3);
  expect_true_mass(KvType::i16, 2e-3);
  expect_true_mass(KvType::bf16, 1e-2);
  expect_true_mass(KvType::q8, 1e-2);
}

TEST(AttentionInSparse, AStepThatReadsAllCountsForAllStepsBeforeIt) {
  const Heads heads = {6, 2, 64};
  constexpr std::uint32_t tokens = 301;
  const Sequence sequence(heads, KvType::f32, 64, tokens, 101);
  SerialParallel serial;
  Attention attention = Attention::create(serial, model_shape(heads), sequence.shape, 1).value();
  const AttentionOptions options = sparse_of(110);
  ASSERT_TRUE(attention.prepare_recall(model_shape(heads), sequence.shape, tokens, options).ok());
  SketchedKv kv(sequence, tokens, all_pages);
  std::vector<float> out(sequence.query_width);
  RecallView view = kv.view(options);
  view.is_mass_known = false;
  ASSERT_TRUE(attention.run_recall(sequence.rows(tokens - 1, 1, out.data()), kv, 0, view).ok());
  expect_same(attend(attention, sequence, tokens - 1, 1, all_pages), out);
  std::vector<double> expected(tokens / kernel::group_tokens + 1);
  for (std::uint32_t head = 0; head < 3; ++head) {
    const auto shares =
        true_shares(sequence, heads, tokens - 1, head, [](std::uint32_t) { return true; });
    for (std::uint32_t t = 0; t < tokens; ++t)
      expected[t / kernel::group_tokens] += shares[t] / (1 - 0.995);
  }
  for (std::size_t group = 0; group < expected.size(); ++group)
    ASSERT_NEAR(static_cast<double>(kv.next_mass[group]), expected[group], 1e-3) << group;
}

TEST(AttentionInSparse, WorkersAndBatchesChangeNoBit) {
  constexpr std::uint32_t tokens = 32 * 20 + 7;
  for (const Heads& heads : geometries) {
    const Sequence sequence(heads, KvType::i16, 32, tokens, 99);
    SerialParallel serial;
    ShuffledParallel shuffled(3, 100);
    ThreadPool two(2);
    const AttentionOptions options = sparse_of(110);
    std::vector<float> expected_mass;
    std::vector<float> mass;
    const std::vector<float> expected =
        recall(serial, heads, sequence, tokens, options, all_pages, false, &expected_mass);
    for (Parallel* parallel : {static_cast<Parallel*>(&shuffled), static_cast<Parallel*>(&two)}) {
      for (const std::size_t batch : {std::size_t{1}, std::size_t{3}, all_pages}) {
        expect_same(expected,
                    recall(*parallel, heads, sequence, tokens, options, batch, false, &mass));
        expect_same(expected_mass, mass);
      }
    }
  }
}

// --- Certified steps --------------------------------------------------------------------------

CertifiedCounters certified(const Heads& heads, const Sequence& sequence, std::uint32_t tokens,
                            AttentionOptions options, bool groups_alone = false) {
  ThreadPool two(2);
  options.certify = true;
  Attention attention = Attention::create(two, model_shape(heads), sequence.shape, 1).value();
  EXPECT_TRUE(attention.prepare_recall(model_shape(heads), sequence.shape, tokens, options).ok());
  SketchedKv kv(sequence, tokens, 3);
  if (groups_alone) kv.keep_groups_alone();
  std::vector<float> out(sequence.query_width);
  EXPECT_TRUE(
      attention.run_recall(sequence.rows(tokens - 1, 1, out.data()), kv, 0, kv.view(options)).ok());
  options.certify = false;
  expect_same(recall(two, heads, sequence, tokens, options, all_pages), out);
  return attention.certified_counters();
}

TEST(AttentionCertified, MeasuresWhatAWindowLeavesOutAndHowFarThatIsFromAll) {
  for (const Heads& heads : geometries) {
    constexpr std::uint32_t tokens = 130;
    const Sequence sequence(heads, KvType::f32, 16, tokens, 102);
    const CertifiedCounters actual = certified(heads, sequence, tokens, window_of(8, 30));
    const auto reads = [](std::uint32_t position) { return position < 8 || position >= 100; };
    const auto all = [](std::uint32_t) { return true; };
    double not_read = 0;
    double most = 0;
    double squares = 0;
    double distance = 0;
    for (std::uint32_t head = 0; head < heads.query_heads; ++head) {
      const auto shares = true_shares(sequence, heads, tokens - 1, head, all);
      double left = 0;
      for (std::uint32_t t = 0; t < tokens; ++t) left += reads(t) ? 0 : shares[t];
      not_read += left;
      most = std::max(most, left);
      const auto exact = attend_exactly(sequence, heads, tokens - 1, head, all);
      const auto part = attend_exactly(sequence, heads, tokens - 1, head, reads);
      for (std::uint32_t d = 0; d < heads.head_dim; ++d) {
        squares += exact[d] * exact[d];
        distance += (exact[d] - part[d]) * (exact[d] - part[d]);
      }
    }
    EXPECT_EQ(actual.heads, heads.query_heads);
    EXPECT_NEAR(actual.mass_not_read_sum, not_read, 1e-5);
    EXPECT_NEAR(actual.mass_not_read_most, most, 1e-5);
    EXPECT_EQ(actual.layers, 1U);
    EXPECT_NEAR(actual.error_sum, std::sqrt(distance / squares), 1e-4);
    EXPECT_EQ(actual.error_most, actual.error_sum);
  }
}

TEST(AttentionCertified, OfRecallCountsWhatWasReadOnce) {
  constexpr std::uint32_t tokens = 32 * 20 + 7;
  for (const Heads& heads : geometries) {
    const Sequence sequence(heads, KvType::i16, 32, tokens, 103);
    const CertifiedCounters everything = certified(heads, sequence, tokens, recall_of(tokens));
    EXPECT_LT(everything.mass_not_read_most, 1e-6);
    EXPECT_EQ(everything.error_most, 0.0);
    const CertifiedCounters some = certified(heads, sequence, tokens, recall_of(300));
    const CertifiedCounters few = certified(heads, sequence, tokens, recall_of(100));
    EXPECT_GT(some.mass_not_read_sum, 0.05) << "random keys: all tokens matter";
    EXPECT_GT(few.mass_not_read_sum, some.mass_not_read_sum);
    EXPECT_LT(few.mass_not_read_most, 1.0);
    EXPECT_GT(few.error_most, 0.0);
    const CertifiedCounters in_groups = certified(heads, sequence, tokens, recall_of(100), true);
    EXPECT_EQ(in_groups.mass_not_read_sum, few.mass_not_read_sum);
    EXPECT_EQ(in_groups.error_sum, few.error_sum);
  }
}

}  // namespace
}  // namespace headrace
