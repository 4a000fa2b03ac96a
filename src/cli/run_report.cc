#include "cli/run_report.h"

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cli/attention_report.h"
#include "cli/figures.h"
#include "cli/process.h"
#include "cli/repetition_report.h"

namespace headrace {

void print_summary(std::ostream& out, const RunReport& report) {
  const Generation& generation = report.generation;
  const KvStats kv = report.engine.kv_stats();
  Table table;
  const std::string reused =
      generation.reused_tokens == 0
          ? ""
          : " (" + format_count(generation.reused_tokens) + " of them from the cache)";
  table.row("prompt", format_count(generation.prompt_tokens) + " tokens" + reused + " in " +
                          format_seconds(generation.prefill_seconds) + ", " +
                          format_rate(generation.prefill_tokens_per_second()));
  table.row("answer", format_count(generation.tokens.size()) + " tokens in " +
                          format_seconds(generation.decode_seconds) + ", " +
                          format_rate(generation.decode_tokens_per_second()) + " (" +
                          generation.finish_reason + ")");
  if (generation.guessed_tokens > 0) {
    table.row("guesses", format_count(generation.guesses_kept) + " of " +
                             format_count(generation.guessed_tokens) + " were right");
  }
  if (generation.step_seconds_p50 > 0) {
    const auto milliseconds = [](double seconds) { return format_fixed(1e3 * seconds, 1) + " ms"; };
    table.row("per token", milliseconds(generation.step_seconds_p50) + " median, " +
                               milliseconds(generation.step_seconds_p90) + " p90, " +
                               milliseconds(generation.step_seconds_p99) + " p99");
  }
  add_attention_rows(table, report.options.attention.mode, kv);
  table.row("KV needed", format_byte_count(kv.kv_bytes_needed));
  table.row("KV memory", format_byte_count(kv.kv_bytes_peak) + " at most, limit " +
                             format_byte_count(kv.kv_bytes_limit));
  if (kv.pages_filled_from_host > 0) {
    table.row("from memory", format_count(kv.pages_filled_from_host) + " pages decoded");
  }
  if (kv.pages_written > 0 || kv.pages_filled_from_disk > 0) {
    table.row("disk", format_count(kv.pages_written) + " pages written, " +
                          format_byte_count(kv.disk_bytes_peak) + " at most");
    table.row("pages filled", format_count(kv.pages_filled_from_disk) + " from disk, " +
                                  format_count(kv.pages_filled_by_replay) + " recomputed");
  }
  if (kv.recomputations > 0) {
    const auto tokens = static_cast<double>(kv.recomputed_tokens);
    table.row("recomputed", format_count(kv.recomputed_tokens) + " tokens in " +
                                format_count(kv.recomputations) + " runs of " +
                                format_fixed(tokens / static_cast<double>(kv.recomputations), 0) +
                                ", " + format_seconds(kv.recompute_seconds));
  }
  if (kv.pages_damaged > 0) {
    table.row("damaged",
              format_count(kv.pages_damaged) + " pages failed verification and were recomputed");
  }
  table.print(out);
}

std::string to_json(const RunReport& report) {
  const Generation& generation = report.generation;
  const KvStats kv = report.engine.kv_stats();
  const nlohmann::ordered_json json = {
      {"text", generation.text},
      {"tokens", generation.tokens},
      {"finish_reason", generation.finish_reason},
      {"prompt_tokens", generation.prompt_tokens},
      {"reused_tokens", generation.reused_tokens},
      {"prefill_seconds", generation.prefill_seconds},
      {"decode_seconds", generation.decode_seconds},
      {"prefill_tokens_per_second", generation.prefill_tokens_per_second()},
      {"decode_tokens_per_second", generation.decode_tokens_per_second()},
      {"step_seconds",
       {{"p50", generation.step_seconds_p50},
        {"p90", generation.step_seconds_p90},
        {"p99", generation.step_seconds_p99}}},
      {"attention", attention_json(report.options.attention.mode, kv)},
      {"repetitions", repetitions_json(report.repetitions)},
      {"guessed_tokens", generation.guessed_tokens},
      {"guesses_kept", generation.guesses_kept},
      {"kv_bytes_needed", kv.kv_bytes_needed},
      {"kv_bytes_peak", kv.kv_bytes_peak},
      {"kv_bytes_limit", kv.kv_bytes_limit},
      {"pages_filled",
       {{"host", kv.pages_filled_from_host},
        {"disk", kv.pages_filled_from_disk},
        {"replay", kv.pages_filled_by_replay}}},
      {"recomputed",
       {{"runs", kv.recomputations},
        {"tokens", kv.recomputed_tokens},
        {"seconds", kv.recompute_seconds}}},
      {"pages_damaged", kv.pages_damaged},
      {"pages_written", kv.pages_written},
      {"disk_bytes_peak", kv.disk_bytes_peak},
      {"model", report.options.model_path},
      {"context", report.engine.context()},
      {"threads", report.threads},
      {"kv_type", to_string(report.options.kv.type)},
      {"instruction_set", report.engine.instruction_set()},
      {"peak_rss_bytes", process_peak_rss_bytes()},
  };
  // A text cut by someone else's tokenizer may not be UTF-8; a replaced character is better than no
  // report.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace headrace
