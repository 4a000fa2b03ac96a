// Invariant 1 on a model and a text of one's own: whatever tier a page has been in, every logit has
// the same bits as with everything in memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/command_context.h"

namespace headrace {

struct VerifyModelOptions {
  /// The model, its context and how keys and values are kept; where they are kept is what varies.
  EngineOptions engine;
  std::string text;  ///< repeated until it fills the context
};

/// One way of keeping keys and values.
struct TierCheck {
  std::string tier;
  std::uint64_t tokens = 0;          ///< read or taken over
  std::uint64_t restored_pages = 0;  ///< from encoded memory and from disk
  std::uint64_t rows_compared = 0;   ///< whose logits were compared
  std::uint64_t rows_equal = 0;      ///< with every bit the same
};

/// Works in temporary directories only. Errors: those of Engine::open() and Sequence::append(), and
/// invalid_argument (a context of less than verify_context_least).
Result<std::vector<TierCheck>> verify_model(CommandContext& context,
                                            const VerifyModelOptions& options);

inline constexpr std::uint32_t verify_context_least = 64;

}  // namespace headrace
