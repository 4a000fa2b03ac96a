// This program as an engine of `headrace bench`, through the public interface.
#pragma once

#include <memory>
#include <span>

#include "cli/bench_engine.h"

namespace headrace {

/// A setting of ours that has a name in the benchmark.
struct OwnVariant {
  const char* name;
  KvType kv_type = KvOptions().type;
  /// The part of the workload's KV that fits into memory is one of so many.
  std::uint32_t memory_divisor = 1;
  AttentionMode attention = AttentionMode::exact;
  /// In other modes the part of the workload's tokens that a step reads is one of so many.
  std::uint32_t tokens_divisor = 1;
};

std::span<const OwnVariant> own_variants();

std::unique_ptr<BenchEngine> make_own_engine(const OwnVariant& variant, const BenchSetup& setup,
                                             CommandContext& context);

}  // namespace headrace
