// SessionStore: the saved conversations of a directory, without a model: to list, copy, delete and
// move them. The engine itself saves and resumes them (page_store.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cache/block_record.h"
#include "cache/session_record.h"
#include "env/env.h"
#include "tier/disk_tier.h"

namespace headrace {

/// The record of a session. Errors: invalid_argument (its name), not_found, saying that it is not
/// in `directory`, corrupt, io.
Result<SessionRecord> read_session(DiskTier& tier, const std::string& name,
                                   const std::string& directory);
/// All but damaged ones. Errors: io (one may be there that the device did not give).
Result<std::vector<SessionRecord>> read_sessions(DiskTier& tier);
/// A page of a session's block.
PageIdentity page_identity(const SessionRecord& session, const BlockRecord& block,
                           const Digest128& key, std::uint32_t layer);

/// Used by one thread. Each call opens the directory for itself; no engine can use it meanwhile.
class SessionStore {
 public:
  /// Errors: not_found (there is no such directory), io (another process uses it).
  static Result<std::unique_ptr<SessionStore>> open(Env& env, const std::string& directory);

  /// By name. Errors: io.
  Result<std::vector<SessionRecord>> list();
  /// Errors: invalid_argument (name), not_found, corrupt.
  Result<SessionRecord> read(const std::string& name);
  /// Copies a session: both share all blocks. Errors: those of read(), invalid_argument (there is
  /// one with the new name), out_of_budget, io.
  Result<void> fork(const std::string& name, const std::string& new_name);
  /// Deletes a session. Blocks stay for texts that begin alike, but with `purge` those that no
  /// other session has go too, and with them what was built on them. Errors: those of read(), io.
  Result<void> erase(const std::string& name, bool purge);
  /// Writes a session and its blocks into a new file (docs/formats/records.md). Errors: those of
  /// read(), io.
  Result<void> export_to(const std::string& name, const std::string& path);
  /// Takes a session from a file; returns its name. Blocks that are damaged are left out: their
  /// text is read again. Errors: not_found, corrupt, invalid_argument (there is a session of its
  /// name), out_of_budget, io.
  Result<std::string> import_from(const std::string& path);

 private:
  SessionStore(Env& env, std::string directory) : env_(env), directory_(std::move(directory)) {}

  Result<std::unique_ptr<DiskTier>> open_tier(const PageShape& shape, std::uint32_t layers) const;
  Result<void> check_is_new(DiskTier& tier, const std::string& name) const;
  Result<void> put(DiskTier& tier, const SessionRecord& session);

  Env& env_;
  const std::string directory_;
};

}  // namespace headrace
