// What golden and fault tests do with an Engine: run tokens through it and keep a fingerprint of
// every row of logits, so that two runs can be compared bit for bit and the first difference is
// named.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/hash.h"
#include "headrace/engine.h"

namespace headrace::test {

/// One hash of the bytes of all logits per position, in order.
using LogitsTrace = std::vector<Digest128>;

/// Appends `tokens` in calls of `step_tokens` (0: one call) and adds the hash of each row to
/// `trace`.
Result<void> append_traced(Engine& engine, Sequence& sequence, std::span<const TokenId> tokens,
                           std::uint32_t step_tokens, LogitsTrace& trace);

/// Opens an engine, reads `tokens` into one new sequence and gives the trace.
Result<LogitsTrace> trace_of(const EngineOptions& options, std::span<const TokenId> tokens,
                             std::uint32_t step_tokens = 0);

/// Fails the current test, naming the first position that differs, unless both are equal.
void expect_same_trace(const LogitsTrace& expected, const LogitsTrace& actual);

/// The least `kv.memory_bytes` with which an engine opens, to `resolution_bytes`.
std::uint64_t smallest_kv_memory(EngineOptions options, std::uint64_t resolution_bytes);

/// KV bytes that `options.context` tokens need, everything in memory. Errors: those of
/// inspect_model().
Result<std::uint64_t> kv_bytes_needed(const EngineOptions& options);

}  // namespace headrace::test
