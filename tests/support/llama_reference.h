// LlamaReference: llama.cpp's own forward pass over the same file and tokens, which our logits are
// compared with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "headrace/result.h"
#include "headrace/types.h"

namespace headrace::test {

struct LlamaReferenceOptions {
  KvType kv_type = KvType::f16;
  std::uint32_t context = 4096;      ///< tokens at most
  std::uint32_t batch_tokens = 256;  ///< logits of so many rows are held at once
  std::uint32_t threads = 2;
};

/// Called with each position, in order, and the logits of the token after it.
using ReferenceLogitsCallback = std::function<void(std::uint32_t position, const float* logits)>;

class LlamaReference {
 public:
  /// Errors: corrupt (llama.cpp does not load the file), internal.
  static Result<std::unique_ptr<LlamaReference>> open(const std::string& path,
                                                      const LlamaReferenceOptions& options);
  ~LlamaReference();
  LlamaReference(const LlamaReference&) = delete;
  LlamaReference& operator=(const LlamaReference&) = delete;

  std::uint32_t vocabulary() const;

  /// Reads `tokens` after those read before; without logits if `on_logits` is empty.
  Result<void> append(std::span<const TokenId> tokens, const ReferenceLogitsCallback& on_logits);

 private:
  struct State;
  explicit LlamaReference(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The same in one call, from an empty context.
Result<void> reference_logits(const std::string& path, std::span<const TokenId> tokens,
                              const ReferenceLogitsCallback& on_logits,
                              LlamaReferenceOptions options);

}  // namespace headrace::test
