// Whole records that are wrong: cut off, emptied, swapped, old, or another's under the right name.
// All are refused and rebuilt: the answer, and every byte of K and V, are those of a cold run.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/log.h"
#include "tests/soak/state_audit.h"
#include "tests/support/engine_run.h"
#include "tests/support/rounds.h"
#include "tests/support/segments.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"
#include "tier/segment_format.h"

namespace headrace::test {
namespace {

constexpr std::size_t saved_tokens = 200;
constexpr std::size_t earlier_tokens = 120;

/// The segments of a directory by name.
using Image = std::map<std::string, std::string>;

Image image_of(const std::string& directory) {
  Image image;
  for (const std::string& name : list_names(directory)) {
    if (segment_number(name)) image[name] = read_bytes(directory + "/" + name);
  }
  return image;
}

void put_back(const Image& image, const std::string& directory) {
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  for (const auto& [name, bytes] : image) write_bytes(directory + "/" + name, bytes);
}

struct Record {
  std::string segment;
  RecordHeader header;
};

std::vector<Record> records_of(const Image& image, RecordKind kind) {
  std::vector<Record> records;
  for (const auto& [name, bytes] : image) {
    for (const RecordHeader& header : test::records_of(bytes)) {
      if (header.kind == kind) records.push_back({name, header});
    }
  }
  return records;
}

Bytes payload_of(const Image& image, const Record& record) {
  return std::as_bytes(std::span(image.at(record.segment)))
      .subspan(record.header.offset + segment_unit_bytes, record.header.payload_bytes);
}

/// Writes a payload of the right length into the place of a record, under a header that verifies:
/// all that tells is what the header says of the page. `header` names the checksum of the page that
/// the payload holds, as it did where that was written. A payload of another page under the
/// checksum of ours comes about only by somebody who means it: the format is no defence against
/// him.
void replace(Image& image, const Record& record, RecordHeader header, Bytes payload) {
  header.offset = record.header.offset;
  set_checksums(header, payload);
  std::string& file = image.at(record.segment);
  const MutableBytes all = std::as_writable_bytes(std::span(file));
  const auto segment = decode_segment_header(all.first(segment_unit_bytes));
  ASSERT_TRUE(segment.ok()) << segment.error().message;
  encode_record_header(header, segment->identity, all.subspan(header.offset, segment_unit_bytes));
  std::ranges::copy(payload, all.subspan(header.offset + segment_unit_bytes).begin());
}

struct Faults {
  Image whole;
  Image earlier;               ///< the same directory, at an earlier save
  std::vector<Image> foreign;  ///< of another model, tenant and KV type; pages of the same size
};

using Fault = std::function<void(const Faults&, Image&, std::mt19937_64&)>;

template <typename Items>
auto& any_of(Items& items, std::mt19937_64& random) {
  return *std::next(items.begin(), static_cast<std::ptrdiff_t>(random() % items.size()));
}

void cut_a_segment(const Faults&, Image& image, std::mt19937_64& random) {
  std::string& bytes = any_of(image, random).second;
  bytes.resize(random() % bytes.size());
}

void empty_a_page(const Faults&, Image& image, std::mt19937_64& random) {
  const auto pages = records_of(image, RecordKind::page);
  if (pages.empty()) return;
  const Record& page = any_of(pages, random);
  const std::vector<std::byte> zeros(page.header.payload_bytes);
  if (random() % 2 == 0) {  // as a device does that lost a write
    const auto at = static_cast<std::ptrdiff_t>(page.header.offset);
    auto begin = image.at(page.segment).begin() + at;
    std::fill(begin, begin + static_cast<std::ptrdiff_t>(page.header.record_bytes()), '\0');
  } else {
    RecordHeader header = page.header;
    header.page.checksum = hash_bytes(zeros);
    replace(image, page, header, zeros);
  }
}

void swap_two_records(const Faults&, Image& image, std::mt19937_64& random) {
  const auto pages = records_of(image, random() % 4 == 0 ? RecordKind::block : RecordKind::page);
  if (pages.empty()) return;
  const Record& a = any_of(pages, random);
  const Record& b = any_of(pages, random);
  if (a.header.record_bytes() != b.header.record_bytes()) return;
  const auto length = static_cast<std::ptrdiff_t>(a.header.record_bytes());
  const auto a_at = image.at(a.segment).begin() + static_cast<std::ptrdiff_t>(a.header.offset);
  const auto b_at = image.at(b.segment).begin() + static_cast<std::ptrdiff_t>(b.header.offset);
  if (a_at != b_at) std::swap_ranges(a_at, a_at + length, b_at);
}

/// Each gets the page of the other under its own name, and headers that verify.
void swap_two_payloads(const Faults&, Image& image, std::mt19937_64& random) {
  const auto pages = records_of(image, RecordKind::page);
  if (pages.empty()) return;
  const Record& a = any_of(pages, random);
  const Record& b = any_of(pages, random);
  if (a.header.payload_bytes != b.header.payload_bytes) return;
  const Bytes of_a = payload_of(image, a);
  const std::vector<std::byte> kept(of_a.begin(), of_a.end());
  const Bytes of_b = payload_of(image, b);
  const std::vector<std::byte> other(of_b.begin(), of_b.end());
  RecordHeader a_header = a.header;
  RecordHeader b_header = b.header;
  std::swap(a_header.page.checksum, b_header.page.checksum);
  replace(image, a, a_header, other);
  replace(image, b, b_header, kept);
}

void put_an_old_version_back(const Faults& faults, Image& image, std::mt19937_64& random) {
  const auto& [name, bytes] = any_of(faults.earlier, random);
  image[name] = bytes;
}

/// A page of another model, tenant or KV type, from the same place of a text, under the name of
/// ours; the header says as much of the truth as the dice want.
void put_a_foreign_page(const Faults& faults, Image& image, std::mt19937_64& random) {
  const Image& other_image = any_of(faults.foreign, random);
  const auto pages = records_of(image, RecordKind::page);
  const auto others = records_of(other_image, RecordKind::page);
  if (pages.empty()) return;
  const Record& page = any_of(pages, random);
  const Record& other = any_of(others, random);
  if (page.header.payload_bytes != other.header.payload_bytes) return;
  RecordHeader header = page.header;
  header.page.checksum = other.header.page.checksum;
  if (random() % 2 == 0) header.page.identity.model = other.header.page.identity.model;
  if (random() % 2 == 0) header.page.identity.shape = other.header.page.identity.shape;
  replace(image, page, header, payload_of(other_image, other));
}

/// Under a header that says it is another page: one that there is not, for by chance it would be
/// the one that another fault has put elsewhere.
void lie_about_the_checksum(const Faults&, Image& image, std::mt19937_64& random) {
  const auto pages = records_of(image, RecordKind::page);
  if (pages.empty()) return;
  const Record& page = any_of(pages, random);
  RecordHeader header = page.header;
  header.page.checksum.low = random();
  const Bytes payload = payload_of(image, page);
  replace(image, page, header, std::vector<std::byte>(payload.begin(), payload.end()));
}

class DamagedSegments : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::off);
    options_ = options_for("tiny", 1);
    const Image whole = image_after_save(options_, text_, "", &faults_.earlier);
    ASSERT_GE(whole.size(), 4U) << "more than one segment";
    faults_.whole = whole;
    faults_.foreign.push_back(image_after_save(options_for("other", 2), text_, ""));
    faults_.foreign.push_back(
        image_after_save(options_, random_tokens(saved_tokens, 8), "somebody else"));
    EngineOptions other_type = options_;
    other_type.kv.type = KvType::bf16;
    faults_.foreign.push_back(image_after_save(other_type, text_, ""));

    EngineOptions cold = options_;
    cold.kv.keep_disk = false;
    cold.kv.disk_directory = directory_.path_of("unused");
    cold.kv.memory_bytes = 0;
    const auto trace = trace_of(cold, all_);
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    cold_trace_.assign(trace->begin() + saved_tokens, trace->end());
    const auto engine = Engine::open(cold);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    const auto sequence = (*engine)->new_sequence();
    ASSERT_TRUE((*sequence)->append(all_, nullptr, nullptr).ok());
    cold_state_ = state_of(**sequence);
  }
  void TearDown() override { set_log_level(level_); }

  /// Puts the image into the directory and reads the text as if nothing were wrong; then once more
  /// in a later process, which finds all of it rebuilt.
  void expect_a_cold_answer(const Image& image) {
    put_back(image, options_.kv.disk_directory);
    read_all(false);
    read_all(true);
  }

 private:
  EngineOptions options_for(const std::string& name, std::uint64_t seed) const {
    TinyModelOptions model;
    model.head_dim = 32;
    model.seed = seed;
    const auto written = write_tiny_model(directory_.path_of(name + ".gguf"), model);
    EXPECT_TRUE(written.ok()) << written.error().message;
    EngineOptions options = {.model_path = directory_.path_of(name + ".gguf"),
                             .context = 320,
                             .threads = 1,
                             .chunk_tokens = 32,
                             .kv = {.type = KvType::f16,
                                    .disk_directory = directory_.path_of("kv"),
                                    .tokens_per_block = 16}};
    options.kv.memory_bytes = 3 << 20;
    options.kv.keep_disk = true;
    options.kv.disk_bytes = 1 << 20;
    return options;
  }

  /// What a process leaves that saves the text; `earlier` is what was there at the save before.
  Image image_after_save(const EngineOptions& options, const std::vector<TokenId>& text,
                         const std::string& tenant, Image* earlier = nullptr) const {
    std::filesystem::remove_all(options.kv.disk_directory);
    for (const std::size_t end : {earlier_tokens, saved_tokens}) {
      const auto engine = Engine::open(options);
      EXPECT_TRUE(engine.ok()) << engine.error().message;
      const auto sequence = (*engine)->new_sequence({.tenant = tenant});
      EXPECT_TRUE((*sequence)->append(std::span(text).first(end), nullptr, nullptr).ok());
      const auto saved = (*engine)->save_session("s", **sequence, "");
      EXPECT_TRUE(saved.ok()) << saved.error().message;
      if (earlier != nullptr && end == earlier_tokens) {
        *earlier = image_of(options.kv.disk_directory);
      }
    }
    return image_of(options.kv.disk_directory);
  }

  void read_all(bool is_rebuilt) {
    const auto engine = Engine::open(options_);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    // Also of the session: all of it, that of an earlier save, or none.
    const auto session = (*engine)->read_session("s");
    EXPECT_TRUE(session.ok() || !is_rebuilt) << "what was saved anew is not there";
    if (session.ok()) {
      const std::size_t tokens = session->tokens.size();
      EXPECT_TRUE(is_rebuilt ? tokens == all_.size()
                             : tokens == saved_tokens || tokens == earlier_tokens)
          << tokens;
      EXPECT_TRUE(std::ranges::equal(session->tokens, std::span(all_).first(tokens)));
    }
    const auto sequence = (*engine)->new_sequence();
    ASSERT_TRUE(sequence.ok()) << sequence.error().message;
    const auto read = (*sequence)->append(text_, nullptr, nullptr);
    ASSERT_TRUE(read.ok()) << read.error().message;
    LogitsTrace trace(saved_tokens);
    const auto traced =
        append_traced(**engine, **sequence, std::span(all_).subspan(saved_tokens), 0, trace);
    ASSERT_TRUE(traced.ok()) << traced.error().message;
    trace.erase(trace.begin(), trace.begin() + saved_tokens);
    expect_same_trace(cold_trace_, trace);
    expect_same_state(cold_state_, state_of(**sequence));
    if (is_rebuilt) {
      EXPECT_EQ((*engine)->kv_stats().pages_damaged, 0U) << "what was damaged is not met again";
      EXPECT_EQ((*engine)->kv_stats().tokens_reused, saved_tokens - 1);
    }
    const auto saved = (*engine)->save_session("s", **sequence, "");
    ASSERT_TRUE(saved.ok()) << saved.error().message;
  }

 protected:
  Faults faults_;

 private:
  const LogLevel level_ = log_level();
  TemporaryDirectory directory_;
  EngineOptions options_;
  const std::vector<TokenId> all_ = random_tokens(saved_tokens + 40, 7);
  const std::vector<TokenId> text_{all_.begin(), all_.begin() + saved_tokens};
  LogitsTrace cold_trace_;
  SequenceState cold_state_;
};

TEST_F(DamagedSegments, AreRefusedAndRebuiltWhateverIsWrongWithWholeRecords) {
  const std::vector<Fault> faults = {
      cut_a_segment,           empty_a_page,       swap_two_records,      swap_two_payloads,
      put_an_old_version_back, put_a_foreign_page, lie_about_the_checksum};
  for (Rounds rounds("damaged segments", {.suite = 50, .soak = 5'000, .soak_share = 0.1});
       rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    Image image = faults_.whole;
    for (std::uint64_t count = 1 + random() % 4; count > 0; --count) {
      any_of(faults, random)(faults_, image, random);
    }
    expect_a_cold_answer(image);
  }
}

TEST_F(DamagedSegments, AreRefusedAndRebuiltWhenEveryPageIsAnothers) {
  for (const Image& foreign : faults_.foreign) {
    Image image = faults_.whole;
    const auto others = records_of(foreign, RecordKind::page);
    std::size_t next = 0;
    for (const Record& page : records_of(image, RecordKind::page)) {
      const Record& other = others[next++ % others.size()];
      if (other.header.payload_bytes != page.header.payload_bytes) continue;
      RecordHeader header = page.header;
      header.page.checksum = other.header.page.checksum;
      replace(image, page, header, payload_of(foreign, other));
    }
    expect_a_cold_answer(image);
  }
}

}  // namespace
}  // namespace headrace::test
