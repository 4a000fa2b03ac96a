#include "tests/support/engine_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace headrace::test {

Result<void> append_traced(Engine& engine, Sequence& sequence, std::span<const TokenId> tokens,
                           std::uint32_t step_tokens, LogitsTrace& trace) {
  const std::size_t vocabulary = engine.model().vocabulary;
  const std::size_t step = step_tokens == 0 ? tokens.size() : step_tokens;
  const auto add_row = [&](std::uint32_t position, const float* logits) {
    EXPECT_EQ(position, trace.size()) << "rows must come in order";
    trace.push_back(hash_bytes(std::as_bytes(std::span(logits, vocabulary))));
    return true;
  };
  while (!tokens.empty()) {
    const std::size_t rows = std::min(step, tokens.size());
    HEADRACE_TRY(sequence.append(tokens.first(rows), nullptr, add_row));
    tokens = tokens.subspan(rows);
  }
  return {};
}

Result<LogitsTrace> trace_of(const EngineOptions& options, std::span<const TokenId> tokens,
                             std::uint32_t step_tokens) {
  HEADRACE_TRY_ASSIGN(const auto engine, Engine::open(options));
  HEADRACE_TRY_ASSIGN(const auto sequence, engine->new_sequence());
  LogitsTrace trace;
  HEADRACE_TRY(append_traced(*engine, *sequence, tokens, step_tokens, trace));
  const KvStats stats = engine->kv_stats();
  EXPECT_LE(stats.kv_bytes_peak, stats.kv_bytes_limit) << "the KV memory limit is hard";
  if (options.kv.memory_bytes != 0) {
    EXPECT_LE(stats.kv_bytes_limit, options.kv.memory_bytes);
  }
  return trace;
}

void expect_same_trace(const LogitsTrace& expected, const LogitsTrace& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  const auto difference = std::mismatch(expected.begin(), expected.end(), actual.begin());
  if (difference.first == expected.end()) return;
  std::size_t count = 0;
  for (std::size_t row = 0; row < expected.size(); ++row)
    count += expected[row] == actual[row] ? 0 : 1;
  ADD_FAILURE() << "logits differ first after position " << difference.first - expected.begin()
                << ", and at " << count << " of " << expected.size() << " positions";
}

std::uint64_t smallest_kv_memory(EngineOptions options, std::uint64_t resolution_bytes) {
  auto enough = kv_bytes_needed(options);
  EXPECT_TRUE(enough.ok()) << enough.error().message;
  if (!enough.ok()) return 0;
  const auto does_open = [&](std::uint64_t bytes) {
    options.kv.memory_bytes = bytes;
    return Engine::open(options).ok();
  };
  std::uint64_t opens = 2 * *enough + (std::uint64_t{1} << 20U);  // room for metadata and buffers
  std::uint64_t refused = 0;
  while (!does_open(opens)) refused = std::exchange(opens, 2 * opens);
  while (opens - refused > resolution_bytes) {
    const std::uint64_t middle = refused + (opens - refused) / 2;
    (does_open(middle) ? opens : refused) = middle;
  }
  return opens;
}

Result<std::uint64_t> kv_bytes_needed(const EngineOptions& options) {
  HEADRACE_TRY_ASSIGN(const ModelInfo info, inspect_model(options.model_path));
  const std::uint64_t context = options.context == 0 ? info.trained_context : options.context;
  return info.kv_bytes(options.kv.type, context);
}

}  // namespace headrace::test
