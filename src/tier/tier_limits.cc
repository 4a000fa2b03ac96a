#include "tier/tier_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/hash.h"
#include "codec/codec.h"
#include "codec/group_layout.h"
#include "tier/segment_scan.h"

namespace headrace {
namespace {

constexpr std::size_t reads_at_once = 8;

struct PlacedPage {
  File* file = nullptr;
  std::uint64_t offset = 0;
  RecordHeader header;
};

struct Pages {
  std::vector<std::unique_ptr<File>> files;
  std::vector<PlacedPage> placed;  ///< in the order in which a step reads them
  std::uint64_t page_bytes = 0;
  std::uint64_t record_bytes_max = 0;
};

Result<Pages> find_pages(Env& env, const std::string& directory, std::uint64_t bytes_max) {
  Pages pages;
  HEADRACE_TRY_ASSIGN(AlignedBuffer unit, AlignedBuffer::allocate(segment_unit_bytes));
  HEADRACE_TRY_ASSIGN(const auto names, env.list_directory(directory));
  std::uint64_t bytes = 0;
  for (const std::string& name : names) {
    const auto number = segment_number(name);
    if (!number) continue;
    const std::string path = std::string(directory).append("/").append(name);
    HEADRACE_TRY_ASSIGN(auto file, env.open_file(path, OpenMode::read));
    const auto visit = [&](const RecordHeader& header) -> Result<void> {
      const SealedPage& page = header.page;
      const bool is_whole = header.kind == RecordKind::page && page.codec == CodecId::raw &&
                            page.identity.tokens_held == page.identity.shape.tokens;
      if (!is_whole || bytes >= bytes_max) return {};
      bytes += header.record_bytes();
      pages.page_bytes = page.identity.shape.bytes();
      pages.record_bytes_max = std::max(pages.record_bytes_max, header.record_bytes());
      pages.placed.push_back({file.get(), header.offset, header});
      return {};
    };
    const auto scan = scan_segment(*file, *number, unit.span(), visit, [](auto, const auto&) {});
    if (scan.ok()) pages.files.push_back(std::move(file));
  }
  if (pages.placed.empty()) {
    return Error{ErrorCode::not_found, "'" + directory + "' has no raw pages to measure with"};
  }
  std::ranges::stable_sort(
      pages.placed, {}, [](const PlacedPage& page) { return page.header.page.identity.key.layer; });
  return pages;
}

/// All pages once, `at_once` at a time. Returns bytes of pool pages per second.
Result<double> read_all(Env& env, const Pages& pages, std::size_t at_once) {
  HEADRACE_TRY_ASSIGN(AlignedBuffer buffers,
                      AlignedBuffer::allocate(at_once * pages.record_bytes_max));
  std::vector<Result<void>> results(at_once);
  std::atomic<std::size_t> next = 0;
  const auto executor = env.new_executor(at_once);
  const std::chrono::nanoseconds start = env.now();
  for (std::size_t i = 0; i < at_once; ++i) {
    executor->submit([&, i] {
      for (std::size_t at = next++; at < pages.placed.size(); at = next++) {
        const PlacedPage& page = pages.placed[at];
        const MutableBytes bytes =
            buffers.span().subspan(i * pages.record_bytes_max, page.header.record_bytes());
        results[i] = page.file->read_at(page.offset, std::span(&bytes, 1));
        if (!results[i].ok()) return;
      }
    });
  }
  executor->wait_idle();
  const double seconds = std::chrono::duration<double>(env.now() - start).count();
  for (const Result<void>& result : results) HEADRACE_TRY(result);
  const auto bytes = static_cast<double>(pages.placed.size() * pages.page_bytes);
  return seconds > 0 ? bytes / seconds : 0;
}

/// Bytes of pool pages per second of the best of some rounds over the same page.
template <typename Work>
double decode_rate(Env& env, std::uint64_t page_bytes, Work work) {
  constexpr int rounds = 32;
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::chrono::nanoseconds start = env.now();
    work();
    const double seconds = std::chrono::duration<double>(env.now() - start).count();
    if (seconds > 0) best = std::max(best, static_cast<double>(page_bytes) / seconds);
  }
  return best;
}

Result<void> measure_decoding(Env& env, const Pages& pages, TierLimits& limits) {
  HEADRACE_TRY_ASSIGN(AlignedBuffer record, AlignedBuffer::allocate(pages.record_bytes_max));
  HEADRACE_TRY_ASSIGN(AlignedBuffer target, AlignedBuffer::allocate(pages.page_bytes));
  const Codec& lossless = *find_codec(CodecId::lossless);
  // A page from the middle of the model is like most of the others.
  const PlacedPage& page = pages.placed[pages.placed.size() / 2];
  const PageIdentity& identity = page.header.page.identity;
  const MutableBytes whole = record.span().first(page.header.record_bytes());
  HEADRACE_TRY(page.file->read_at(page.offset, std::span(&whole, 1)));
  const Bytes payload = Bytes(whole).subspan(segment_unit_bytes, page.header.payload_bytes);
  const std::uint64_t group = group_bytes(identity.shape);
  const auto verify = [&](std::uint32_t first, Bytes groups) {
    return verify_payload(page.header, groups, first * group / page.header.checked_bytes);
  };
  Result<void> status;
  limits.raw_decode = decode_rate(env, pages.page_bytes, [&] {
    status = decode_groups(identity.shape, identity.tokens_held, payload, target.span(), verify);
  });
  HEADRACE_TRY(status);
  const PagePlan plan = {.shape = identity.shape,
                         .tokens_held = identity.tokens_held,
                         .layer = identity.key.layer,
                         .layers = pages.placed.back().header.page.identity.key.layer + 1,
                         .first_position = identity.first_position};
  std::vector<std::byte> encoded(lossless.encoded_bytes_max(identity.shape));
  encoded.resize(lossless.encode(plan, target.span(), encoded));
  limits.lossless_ratio =
      static_cast<double>(encoded.size()) / static_cast<double>(pages.page_bytes);
  limits.lossless_decode = decode_rate(env, pages.page_bytes, [&] {
    const Digest128 before = hash_bytes(encoded);
    status = lossless.decode(plan, encoded, target.span());
    if (hash_bytes(target.span()) != page.header.page.checksum || before == Digest128()) {
      status = Error{ErrorCode::corrupt, "a page that was encoded does not decode"};
    }
  });
  return status;
}

}  // namespace

Result<TierLimits> measure_tier_limits(Env& env, const std::string& directory,
                                       std::uint64_t bytes_max) {
  HEADRACE_TRY_ASSIGN(const Pages pages, find_pages(env, directory, bytes_max));
  TierLimits limits;
  limits.pages = pages.placed.size();
  HEADRACE_TRY(read_all(env, pages, 1));  // into the system's cache
  for (int round = 0; round < 3; ++round) {
    HEADRACE_TRY_ASSIGN(const double rate, read_all(env, pages, 1));
    limits.buffered_read = std::max(limits.buffered_read, rate);
  }
  HEADRACE_TRY(measure_decoding(env, pages, limits));
  for (const std::unique_ptr<File>& file : pages.files) {
    // Without direct IO there is no such limit.
    if (!file->use_direct_io().ok()) return limits;
  }
  HEADRACE_TRY_ASSIGN(limits.direct_read, read_all(env, pages, reads_at_once));
  return limits;
}

}  // namespace headrace
