#include "cache/store_secret.h"

#include <algorithm>

#include "cache/tier_wait.h"

namespace headrace {
namespace {

/// No name of a session has this key, and the record has another form than theirs.
constexpr auto secret_kind = RecordKind::session;
constexpr Digest128 secret_key{};

}  // namespace

HashSecret new_secret(Env& env) {
  HashSecret secret;
  for (std::size_t i = 0; i < secret.size(); ++i) {
    secret[i] = static_cast<std::byte>(env.random() >> 32);
  }
  return secret;
}

Result<HashSecret> store_secret(Env& env, DiskTier& tier) {
  const auto found = tier.read_record(secret_kind, secret_key);
  HashSecret secret = new_secret(env);
  if (found.ok() && found->size() == secret.size()) {
    std::ranges::copy(*found, secret.begin());
    return secret;
  }
  // A new secret would make all that is stored useless: only a directory without one, or with one
  // that is damaged for good, gets one.
  if (!found.ok() && found.error().code == ErrorCode::io) return found.error();
  if (!tier.is_complete()) {
    return Error{ErrorCode::io,
                 "--kv-disk: a part of the directory could not be read; try again, look with "
                 "headrace verify, or choose another directory"};
  }
  HEADRACE_TRY(finish(tier, tier.submit_put_record(secret_kind, secret_key, secret)));
  return secret;
}

}  // namespace headrace
