#include "cache/store_secret.h"

#include <algorithm>

#include "cache/tier_wait.h"

namespace headrace {

HashSecret new_secret(Env& env) {
  HashSecret secret;
  for (std::size_t i = 0; i < secret.size(); ++i) {
    secret[i] = static_cast<std::byte>(env.random() >> 32);
  }
  return secret;
}

Result<HashSecret> store_secret(Env& env, DiskTier& tier) {
  const auto found = tier.read_record(RecordKind::secret, {});
  HashSecret secret = new_secret(env);
  if (found.ok() && found->size() == secret.size()) {
    std::ranges::copy(*found, secret.begin());
    return secret;
  }
  HEADRACE_TRY(finish(tier, tier.submit_put_record(RecordKind::secret, {}, secret)));
  return secret;
}

}  // namespace headrace
