// Invariant 4, never wrong: whatever happens to the segments while an engine is open, the logits
// stay the same, because a page that does not verify is computed again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "headrace/engine.h"
#include "tests/support/engine_run.h"
#include "tests/support/segments.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace headrace::test {
namespace {

constexpr std::uint32_t positions = 400;
constexpr std::uint32_t step_tokens = 40;
constexpr std::uint32_t block_tokens = 16;

/// Changes the bytes of a segment.
using Damage = std::function<void(std::string& bytes, std::mt19937_64& random)>;

void flip_a_bit(std::string& bytes, std::size_t at, std::mt19937_64& random) {
  bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1U << (random() % 8)));
}

void flip_a_bit_of_payload(std::string& bytes, const RecordHeader& page, std::mt19937_64& random) {
  flip_a_bit(bytes, page.offset + segment_unit_bytes + random() % page.payload_bytes, random);
}

void flip_a_bit_of_one_page(std::string& bytes, std::mt19937_64& random) {
  const std::vector<RecordHeader> pages = page_records_of(bytes);
  if (!pages.empty()) flip_a_bit_of_payload(bytes, pages[random() % pages.size()], random);
}

void flip_a_bit_of_every_page(std::string& bytes, std::mt19937_64& random) {
  for (const RecordHeader& page : page_records_of(bytes)) {
    flip_a_bit_of_payload(bytes, page, random);
  }
}

class DamagedPage : public testing::Test {
 protected:
  void SetUp() override {
    const auto written = write_tiny_model(directory_.path_of("tiny.gguf"), model_options());
    ASSERT_TRUE(written.ok()) << written.error().message;
    options_ = {.model_path = directory_.path_of("tiny.gguf"),
                .context = positions,
                .threads = 2,
                .chunk_tokens = 32,
                .kv = {.type = KvType::f16,
                       .disk_directory = directory_.path_of("kv"),
                       .tokens_per_block = block_tokens}};
    const auto expected = trace_of(options_, tokens_);
    ASSERT_TRUE(expected.ok()) << expected.error().message;
    expected_ = *expected;
    options_.kv.memory_bytes = smallest_kv_memory(options_, 512);
  }

  virtual TinyModelOptions model_options() const {
    return {.layers = 3, .query_heads = 4, .kv_heads = 2, .head_dim = 32, .trained_context = 1024};
  }

  /// Reads the tokens in steps, with `damage` done to each segment after each, and expects the
  /// same logits.
  void expect_same_logits_despite(const Damage& damage) {
    std::mt19937_64 random(seed_);
    std::cout << "seed=" << seed_ << "\n";
    {
      auto engine = Engine::open(options_);
      ASSERT_TRUE(engine.ok()) << engine.error().message;
      auto sequence = (*engine)->new_sequence();
      ASSERT_TRUE(sequence.ok()) << sequence.error().message;
      LogitsTrace trace;
      for (std::size_t begin = 0; begin < tokens_.size(); begin += step_tokens) {
        const auto step = std::span(tokens_).subspan(begin, step_tokens);
        const auto appended = append_traced(**engine, **sequence, step, 0, trace);
        ASSERT_TRUE(appended.ok()) << "from position " << begin << ": " << appended.error().message;
        damage_files(damage, random);
      }
      expect_same_trace(expected_, trace);
      stats_ = (*engine)->kv_stats();
      EXPECT_LE(stats_.kv_bytes_peak, stats_.kv_bytes_limit);
    }
    EXPECT_EQ(list_names(options_.kv.disk_directory), std::vector<std::string>{})
        << "nothing is left behind";
  }

  void expect_repairs() const {
    EXPECT_GT(stats_.pages_damaged, 0U);
    EXPECT_GT(stats_.pages_filled_by_replay, 0U);
  }

  void damage_files(const Damage& damage, std::mt19937_64& random) const {
    for (const std::string& path : segment_files(options_.kv.disk_directory)) {
      std::string bytes = read_bytes(path);
      const std::string before = bytes;
      damage(bytes, random);
      // In place and only where it differs: the engine has the file open, and may be writing to it.
      std::FILE* file = std::fopen(path.c_str(), "r+b");
      ASSERT_NE(file, nullptr);
      const std::size_t common = std::min(bytes.size(), before.size());
      for (std::size_t at = 0; at < common;) {
        std::size_t end = at;
        while (end < common && bytes[end] != before[end]) ++end;
        if (end > at) {
          std::fseek(file, static_cast<long>(at), SEEK_SET);
          EXPECT_EQ(std::fwrite(bytes.data() + at, 1, end - at, file), end - at);
        }
        at = end + 1;
      }
      std::fclose(file);
      if (bytes.size() < before.size()) std::filesystem::resize_file(path, bytes.size());
    }
  }

  TemporaryDirectory directory_;
  EngineOptions options_;
  std::vector<TokenId> tokens_ = random_tokens(positions, 31);
  LogitsTrace expected_;
  KvStats stats_;
  std::uint64_t seed_ = std::random_device{}();
};

TEST_F(DamagedPage, IsNotMadeUpWhenNothingIsDamaged) {
  expect_same_logits_despite([](std::string&, std::mt19937_64&) {});
  EXPECT_GT(stats_.pages_written, 0U);
  EXPECT_GT(stats_.pages_filled_from_disk, 0U);
  EXPECT_EQ(stats_.pages_damaged, 0U);
  EXPECT_EQ(stats_.pages_filled_by_replay, 0U);
}

TEST_F(DamagedPage, WithOneFlippedBitIsComputedAgain) {
  expect_same_logits_despite(flip_a_bit_of_one_page);
  expect_repairs();
}

TEST_F(DamagedPage, IsComputedAgainWhenEveryStoredPageHasAFlippedBit) {
  expect_same_logits_despite(flip_a_bit_of_every_page);
  expect_repairs();
}

/// What pages far back were made from is gone, in layers with a window: the text is read again.
class DamagedPageOfAModelWithWindows : public DamagedPage {
 protected:
  TinyModelOptions model_options() const override {
    return {.architecture = "gemma3",
            .layers = 6,
            .query_heads = 4,
            .kv_heads = 2,
            .head_dim = 32,
            .trained_context = 1024,
            .window = 24,
            .window_step = 3};
  }
};

TEST_F(DamagedPageOfAModelWithWindows, IsComputedAgain) {
  expect_same_logits_despite(flip_a_bit_of_one_page);
  expect_repairs();
}

TEST_F(DamagedPageOfAModelWithWindows, IsComputedAgainWhenEveryStoredPageHasAFlippedBit) {
  expect_same_logits_despite(flip_a_bit_of_every_page);
  expect_repairs();
}

TEST_F(DamagedPage, WithAFlippedBitInItsHeaderIsComputedAgain) {
  expect_same_logits_despite([](std::string& bytes, std::mt19937_64& random) {
    for (const RecordHeader& page : page_records_of(bytes)) {
      flip_a_bit(bytes, page.offset + random() % segment_unit_bytes, random);
    }
  });
  expect_repairs();
}

TEST_F(DamagedPage, IsComputedAgainWhenTheFileReadsAsZeros) {
  expect_same_logits_despite(
      [](std::string& bytes, std::mt19937_64&) { bytes.assign(bytes.size(), '\0'); });
  expect_repairs();
}

TEST_F(DamagedPage, IsComputedAgainWhenAnotherPageStandsInItsPlace) {
  expect_same_logits_despite([](std::string& bytes, std::mt19937_64&) {
    // Every page verifies by itself, but none is what belongs there.
    const std::string before = bytes;
    const std::vector<RecordHeader> pages = page_records_of(before);
    for (std::size_t page = 0; page < pages.size(); ++page) {
      move_record(before, pages[(page + 1) % pages.size()], bytes, pages[page]);
    }
  });
  expect_repairs();
}

TEST_F(DamagedPage, IsComputedAgainWhenARecordStandsInAnotherPlace) {
  // As they are: the place is part of what a header's checksum covers.
  expect_same_logits_despite([](std::string& bytes, std::mt19937_64&) {
    const std::vector<RecordHeader> pages = page_records_of(bytes);
    if (pages.size() < 2) return;
    const auto at = [&](const RecordHeader& page) {
      return bytes.begin() + static_cast<std::ptrdiff_t>(page.offset);
    };
    std::rotate(at(pages[0]), at(pages[1]),
                at(pages.back()) + static_cast<std::ptrdiff_t>(pages.back().record_bytes()));
  });
  expect_repairs();
}

TEST_F(DamagedPage, IsComputedAgainWhenTheSamePagesOfAnotherTextStandInItsPlace) {
  // The same model, geometry and positions, other tokens: only the identity tells.
  EngineOptions other_options = options_;
  other_options.kv.disk_directory = directory_.path_of("other");
  auto other = Engine::open(other_options);
  ASSERT_TRUE(other.ok()) << other.error().message;
  auto sequence = (*other)->new_sequence();
  ASSERT_TRUE(sequence.ok()) << sequence.error().message;
  LogitsTrace ignored;
  const auto appended =
      append_traced(**other, **sequence, random_tokens(positions, 32), 0, ignored);
  ASSERT_TRUE(appended.ok()) << appended.error().message;
  const auto files = segment_files(other_options.kv.disk_directory);
  ASSERT_EQ(files.size(), 1U);
  const std::string other_bytes = read_bytes(files[0]);
  const std::vector<RecordHeader> other_pages = page_records_of(other_bytes);
  ASSERT_FALSE(other_pages.empty());
  expect_same_logits_despite([&](std::string& bytes, std::mt19937_64&) {
    for (const RecordHeader& page : page_records_of(bytes)) {
      const auto is_like = [&](const RecordHeader& each) {
        const PageIdentity& left = each.page.identity;
        const PageIdentity& right = page.page.identity;
        return left.key.layer == right.key.layer && left.first_position == right.first_position;
      };
      const auto like = std::ranges::find_if(other_pages, is_like);
      if (like != other_pages.end()) move_record(other_bytes, *like, bytes, page);
    }
  });
  expect_repairs();
}

TEST_F(DamagedPage, IsComputedAgainWhenTheFileIsCutShort) {
  expect_same_logits_despite([](std::string& bytes, std::mt19937_64& random) {
    bytes.resize(random() % (bytes.size() + 1));
  });
  expect_repairs();
}

TEST_F(DamagedPage, DoesNotMatterWhenTheFileIsRemoved) {
  {
    auto engine = Engine::open(options_);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    auto sequence = (*engine)->new_sequence();
    ASSERT_TRUE(sequence.ok()) << sequence.error().message;
    LogitsTrace trace;
    for (std::size_t begin = 0; begin < tokens_.size(); begin += step_tokens) {
      const auto appended = append_traced(**engine, **sequence,
                                          std::span(tokens_).subspan(begin, step_tokens), 0, trace);
      ASSERT_TRUE(appended.ok()) << appended.error().message;
      for (const std::string& path : segment_files(options_.kv.disk_directory))
        std::filesystem::remove(path);
    }
    expect_same_trace(expected_, trace);
  }
  EXPECT_EQ(list_names(options_.kv.disk_directory), std::vector<std::string>{});
}

TEST_F(DamagedPage, IsComputedAgainInTheMiddleOfAnAnswer) {
  GenerateOptions generation;
  generation.max_tokens = 60;
  generation.ignore_end = true;
  const auto prompt = std::span(tokens_).first(300);
  const auto answer_with = [&](const EngineOptions& options, const TextCallback& on_text) {
    auto engine = Engine::open(options);
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    auto sequence = (*engine)->new_sequence();
    EXPECT_TRUE(sequence.ok()) << sequence.error().message;
    generation.on_text = on_text;
    const auto answer = (*sequence)->generate(prompt, generation);
    EXPECT_TRUE(answer.ok()) << answer.error().message;
    stats_ = (*engine)->kv_stats();
    return answer.ok() ? answer->tokens : std::vector<TokenId>{};
  };
  EngineOptions everything = options_;
  everything.kv.memory_bytes = 0;
  const auto expected = answer_with(everything, nullptr);
  ASSERT_EQ(expected.size(), 60U);

  std::cout << "seed=" << seed_ << "\n";
  std::mt19937_64 random(seed_);
  const auto answer = answer_with(options_, [&](std::string_view) {
    damage_files(flip_a_bit_of_one_page, random);
    return true;
  });
  EXPECT_EQ(answer, expected);
  expect_repairs();
}

}  // namespace
}  // namespace headrace::test
