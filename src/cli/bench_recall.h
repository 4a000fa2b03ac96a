// `headrace bench --recall`: what reading a part of the tokens gains, with all of the KV in memory
// and with a part of it.
#pragma once

#include <string>
#include <vector>

#include "cli/bench_engine.h"
#include "cli/bench_figures.h"

namespace headrace {

struct RecallBenchSize {
  std::uint32_t prompt_tokens = 7'680;  ///< of the text, before the answer
  std::uint32_t steps = 256;            ///< of the answer
  std::uint32_t rounds = 3;             ///< the ways take turns
  std::string codec = "raw";            ///< of what has less memory: KvOptions::codec
  float share = AttentionOptions().recall_share;
  std::uint32_t load_tokens = 0;  ///< of what has less memory: AttentionOptions::recall_load_tokens
};

/// A size for a run of less than a minute.
RecallBenchSize quick_recall_size();

/// Answers behind the beginning of `text`: exact, in recall, and in recall with less memory;
/// llama.cpp's too when setup.llama_bench is given. Figures are medians of the rounds. Errors:
/// cancelled, invalid_argument (the text is too short), and those of Engine.
Result<std::vector<BenchFigure>> measure_recall(const BenchSetup& setup,
                                                const RecallBenchSize& size,
                                                const std::string& text, CommandContext& context);

}  // namespace headrace
