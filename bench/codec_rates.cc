// What codecs do with the pages of a saved session, on one core:
//   codec_rates DIR SESSION
// where DIR is the --kv-disk of a run with --session SESSION and --kv-disk-codec raw. Prints bits a
// value and GB/s of pool bytes, encoding and decoding.
#include <cstdio>
#include <string>
#include <vector>

#include "cache/session_store.h"
#include "cache/tier_wait.h"
#include "codec/codec.h"
#include "env/env.h"

namespace headrace {
namespace {

struct Page {
  PagePlan plan;
  std::vector<std::byte> bytes;
};

/// The pages of the full blocks of a session.
Result<std::vector<Page>> read_pages(Env& env, const std::string& directory,
                                     const std::string& name) {
  HEADRACE_TRY_ASSIGN(const auto sessions, SessionStore::open(env, directory));
  HEADRACE_TRY_ASSIGN(const SessionRecord session, sessions->read(name));
  DiskTierOptions options;
  options.directory = directory;
  options.shape = session.shape;
  options.layers = session.layers;
  options.keep = true;
  options.max_pages = options.max_records = 1U << 16;
  HEADRACE_TRY_ASSIGN(const auto tier, open_disk_tier(env, options));
  std::vector<Page> pages;
  for (const Digest128& key : session.blocks) {
    HEADRACE_TRY_ASSIGN(const auto body, tier->read_record(RecordKind::block, key));
    HEADRACE_TRY_ASSIGN(const BlockRecord block, decode_block_record(body));
    if (block.tokens.size() < session.shape.tokens) continue;
    for (std::uint32_t layer = 0; layer < session.layers; ++layer) {
      Page page;
      page.plan = {session.shape, session.shape.tokens, layer, session.layers,
                   block.first_position};
      page.bytes.resize(session.shape.bytes());
      const PageIdentity identity = page_identity(session, block, key, layer);
      HEADRACE_TRY(finish(*tier, tier->submit_get(identity, block.checksums[layer], page.bytes)));
      pages.push_back(std::move(page));
    }
  }
  return pages;
}

struct Rates {
  double bits_a_value = 0;
  double encode = 0;  ///< GB/s of pool bytes
  double decode = 0;
};

/// Of the best of three rounds over all pages.
Rates measure(Env& env, const Codec& codec, const std::vector<Page>& pages) {
  const PageShape& shape = pages.front().plan.shape;
  const double values = 2.0 * shape.tokens * shape.kv_heads * shape.head_dim;
  const double pool_bytes = static_cast<double>(pages.size() * shape.bytes());
  std::vector<std::vector<std::byte>> encoded(pages.size());
  std::vector<std::byte> page(shape.bytes());
  Rates rates;
  for (int round = 0; round < 3; ++round) {
    double stored = 0;
    auto start = env.now();
    for (std::size_t i = 0; i < pages.size(); ++i) {
      encoded[i].resize(codec.encoded_bytes_max(shape));
      encoded[i].resize(codec.encode(pages[i].plan, pages[i].bytes, encoded[i]));
      stored += static_cast<double>(encoded[i].size());
    }
    const auto between = env.now();
    for (std::size_t i = 0; i < pages.size(); ++i) {
      if (!codec.decode(pages[i].plan, encoded[i], page).ok()) std::abort();
    }
    const auto end = env.now();
    rates.bits_a_value = stored * 8 / (values * static_cast<double>(pages.size()));
    const auto rate = [&](auto time) {
      return pool_bytes / std::chrono::duration<double>(time).count() / 1e9;
    };
    rates.encode = std::max(rates.encode, rate(between - start));
    rates.decode = std::max(rates.decode, rate(end - between));
  }
  return rates;
}

int run(const std::string& directory, const std::string& session) {
  Env& env = posix_env();
  const auto pages = read_pages(env, directory, session);
  if (!pages.ok() || pages->empty()) {
    std::fprintf(stderr, "codec_rates: %s\n",
                 pages.ok() ? "the session has no full block" : pages.error().message.c_str());
    return 1;
  }
  std::printf("%zu pages of %s\n\n", pages->size(), to_string(pages->front().plan.shape.type));
  std::printf("| codec | bits a value | encode GB/s | decode GB/s |\n|---|---|---|---|\n");
  for (const CodecId id : {CodecId::raw, CodecId::lossless, CodecId::q8, CodecId::k8v4, CodecId::q4,
                           CodecId::q8_delta, CodecId::k8v4_delta, CodecId::q4_delta}) {
    const Rates rates = measure(env, *find_codec(id), *pages);
    std::printf("| `%s` | %.3f | %.2f | %.1f |\n", to_string(id), rates.bits_a_value, rates.encode,
                rates.decode);
  }
  return 0;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  if (argc == 3) return headrace::run(argv[1], argv[2]);
  std::fprintf(stderr, "usage: codec_rates DIR SESSION\n");
  return 2;
}
