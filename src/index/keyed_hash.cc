#include "index/keyed_hash.h"

#include <sodium.h>

#include <cstring>

#include "base/check.h"

namespace headrace {

Digest128 keyed_hash(const HashSecret& secret, std::span<const Bytes> fields) {
  crypto_generichash_state state;
  crypto_generichash_init(&state, reinterpret_cast<const unsigned char*>(secret.data()),
                          secret.size(), sizeof(Digest128));
  for (const Bytes field : fields) {
    const std::uint64_t length = field.size();
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&length),
                              sizeof(length));
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(field.data()),
                              field.size());
  }
  std::array<unsigned char, sizeof(Digest128)> bytes;
  crypto_generichash_final(&state, bytes.data(), bytes.size());
  Digest128 digest;
  std::memcpy(&digest, bytes.data(), bytes.size());
  return digest;
}

}  // namespace headrace
