#include "cache/session_store.h"

#include <algorithm>
#include <array>
#include <set>

#include "cache/session_file.h"
#include "cache/store_secret.h"
#include "cache/tier_wait.h"
#include "index/block_index.h"

namespace headrace {
namespace {

/// Of no page: for looking at sessions only.
constexpr PageShape no_pages{.tokens = 16, .kv_heads = 1, .head_dim = 16, .type = KvType::f16};

constexpr std::uint32_t blocks_most = 1U << 16;

/// The device did not give it: something else than being lost or damaged.
template <typename T>
bool failed_to_read(const Result<T>& result) {
  return !result.ok() && result.error().code == ErrorCode::io;
}

Result<BlockRecord> read_block(DiskTier& tier, const Digest128& key) {
  HEADRACE_TRY_ASSIGN(const std::vector<std::byte> body, tier.read_record(RecordKind::block, key));
  return decode_block_record(body);
}

/// An older version of a session is none, and one that is not found may be there.
Result<void> check_is_complete(const DiskTier& tier, const std::string& directory) {
  if (tier.is_complete()) return {};
  return Error{ErrorCode::io, "a part of '" + directory +
                                  "' could not be read, and what is saved in it is not known; "
                                  "try again, or look with headrace verify"};
}

}  // namespace

Result<SessionRecord> read_session(DiskTier& tier, const std::string& name,
                                   const std::string& directory) {
  HEADRACE_TRY(check_session_name(name));
  HEADRACE_TRY(check_is_complete(tier, directory));
  const auto body = tier.read_record(RecordKind::session, session_key(name));
  if (body.ok()) return decode_session_record(*body);
  if (body.error().code != ErrorCode::not_found) return body.error();
  return Error{ErrorCode::not_found, "there is no session '" + name + "' in '" + directory +
                                         "'; list them with headrace sessions list"};
}

Result<std::vector<SessionRecord>> read_sessions(DiskTier& tier) {
  std::vector<SessionRecord> sessions;
  for (const Digest128& key : tier.record_keys(RecordKind::session)) {
    const auto body = tier.read_record(RecordKind::session, key);
    if (failed_to_read(body)) return body.error();
    if (!body.ok()) continue;
    Result<SessionRecord> session = decode_session_record(*body);
    if (session.ok()) sessions.push_back(std::move(session).value());
  }
  return sessions;
}

PageIdentity page_identity(const SessionRecord& session, const BlockRecord& block,
                           const Digest128& key, std::uint32_t layer) {
  PageIdentity identity;
  identity.key = {key, layer};
  identity.model = session.model;
  identity.first_position = block.first_position;
  identity.shape = session.shape;
  identity.tokens_held = static_cast<std::uint32_t>(block.tokens.size());
  return identity;
}

Result<std::unique_ptr<SessionStore>> SessionStore::open(Env& env, const std::string& directory) {
  if (!env.exists(directory)) {
    return Error{ErrorCode::not_found, "there is no directory '" + directory +
                                           "'; give the one of --kv-disk that the sessions were "
                                           "saved in"};
  }
  std::unique_ptr<SessionStore> store(new SessionStore(env, directory));
  HEADRACE_TRY_ASSIGN(const auto tier, store->open_tier(no_pages, 1));  // says what is wrong, now
  return store;
}

Result<std::unique_ptr<DiskTier>> SessionStore::open_tier(const PageShape& shape,
                                                          std::uint32_t layers) const {
  DiskTierOptions options;
  options.directory = directory_;
  options.shape = shape;
  options.layers = layers;
  options.keep = true;
  options.max_pages = blocks_most;
  options.max_records = blocks_most;
  HEADRACE_TRY_ASSIGN(auto tier, open_disk_tier(env_, options));
  HEADRACE_TRY(check_is_complete(*tier, directory_));
  return tier;
}

Result<std::vector<SessionRecord>> SessionStore::list() {
  HEADRACE_TRY_ASSIGN(const auto tier, open_tier(no_pages, 1));
  HEADRACE_TRY_ASSIGN(std::vector<SessionRecord> sessions, read_sessions(*tier));
  std::ranges::sort(sessions, {}, &SessionRecord::name);
  return sessions;
}

Result<SessionRecord> SessionStore::read(const std::string& name) {
  HEADRACE_TRY_ASSIGN(const auto tier, open_tier(no_pages, 1));
  return read_session(*tier, name, directory_);
}

Result<void> SessionStore::check_is_new(DiskTier& tier, const std::string& name) const {
  HEADRACE_TRY(check_session_name(name));
  const Result<SessionRecord> session = read_session(tier, name, directory_);
  if (!session.ok() && session.error().code == ErrorCode::not_found) return {};
  if (!session.ok()) return session.error();
  return Error{ErrorCode::invalid_argument, "there is a session '" + name + "' in '" + directory_ +
                                                "' already; delete it first"};
}

Result<void> SessionStore::put(DiskTier& tier, const SessionRecord& session) {
  const std::vector<std::byte> body = encode(session);
  HEADRACE_TRY(
      finish(tier, tier.submit_put_record(RecordKind::session, session_key(session.name), body)));
  return finish(tier, tier.submit_sync());
}

Result<void> SessionStore::fork(const std::string& name, const std::string& new_name) {
  HEADRACE_TRY_ASSIGN(const auto tier, open_tier(no_pages, 1));
  HEADRACE_TRY_ASSIGN(SessionRecord session, read_session(*tier, name, directory_));
  HEADRACE_TRY(check_is_new(*tier, new_name));
  session.name = new_name;
  session.created_seconds = session.saved_seconds = env_.unix_seconds();
  return put(*tier, session);
}

Result<void> SessionStore::erase(const std::string& name, bool purge) {
  HEADRACE_TRY_ASSIGN(const SessionRecord session, read(name));
  HEADRACE_TRY_ASSIGN(const auto tier, open_tier(session.shape, session.layers));
  HEADRACE_TRY_ASSIGN(const std::vector<SessionRecord> sessions, read_sessions(*tier));
  tier->erase_record(RecordKind::session, session_key(name));
  std::set<Digest128> kept;
  for (const SessionRecord& other : sessions) {
    if (other.name != name) kept.insert(other.blocks.begin(), other.blocks.end());
  }
  for (const Digest128& key : session.blocks) {
    if (!purge || kept.contains(key)) continue;
    for (std::uint32_t layer = 0; layer < session.layers; ++layer) tier->erase({key, layer});
    tier->erase_record(RecordKind::block, key);
  }
  return finish(*tier, tier->submit_sync());
}

Result<void> SessionStore::export_to(const std::string& name, const std::string& path) {
  HEADRACE_TRY_ASSIGN(const SessionRecord session, read(name));
  HEADRACE_TRY_ASSIGN(const auto tier, open_tier(session.shape, session.layers));
  HEADRACE_TRY_ASSIGN(auto file, SessionFileWriter::create(env_, path, session));
  std::vector<std::byte> page(session.shape.bytes());
  for (const Digest128& key : session.blocks) {
    const Result<BlockRecord> block = read_block(*tier, key);
    if (failed_to_read(block)) return block.error();
    if (!block.ok()) break;  // those behind it are of no use without it
    HEADRACE_TRY(file.begin_block(*block));
    for (std::uint32_t layer = 0; layer < session.layers; ++layer) {
      Result<void> read = finish(*tier, tier->submit_get(page_identity(session, *block, key, layer),
                                                         block->checksums[layer], page));
      if (failed_to_read(read)) return read;
      HEADRACE_TRY(file.add_page(read.ok() ? Bytes(page) : Bytes()));
    }
  }
  return file.finish();
}

Result<std::string> SessionStore::import_from(const std::string& path) {
  HEADRACE_TRY_ASSIGN(auto file, SessionFileReader::open(env_, path));
  SessionRecord session = file.session();
  HEADRACE_TRY_ASSIGN(const auto tier, open_tier(session.shape, session.layers));
  HEADRACE_TRY(check_is_new(*tier, session.name));
  HEADRACE_TRY_ASSIGN(const HashSecret secret, store_secret(env_, *tier));
  // Keys are secret to each directory, so the blocks get new ones.
  session.blocks.clear();
  Digest128 parent;
  std::vector<std::byte> page(session.shape.bytes());
  while (true) {
    HEADRACE_TRY_ASSIGN(std::optional<BlockRecord> block, file.next_block());
    if (!block) break;
    if (session.blocks.empty()) parent = root_key(secret, block->settings, session.tenant);
    block->parent = parent;
    const Digest128 key = block_key(secret, parent, block->tokens);
    const std::vector<std::byte> body = encode(*block);
    HEADRACE_TRY(finish(*tier, tier->submit_put_record(RecordKind::block, key, body)));
    for (std::uint32_t layer = 0; layer < session.layers; ++layer) {
      HEADRACE_TRY_ASSIGN(const bool present, file.next_page(page));
      if (!present || hash_bytes(page) != block->checksums[layer]) continue;
      HEADRACE_TRY(finish(*tier, tier->submit_put(page_identity(session, *block, key, layer),
                                                  block->checksums[layer], page)));
    }
    session.blocks.push_back(key);
    parent = key;
  }
  HEADRACE_TRY(put(*tier, session));
  return session.name;
}

}  // namespace headrace
