#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cli/attention_report.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/exit_code.h"
#include "cli/figures.h"
#include "cli/progress.h"
#include "cli/prompt_text.h"
#include "cli/score_text.h"

namespace headrace {
namespace {

constexpr const char* footer =
    "The text is read in chunks of --context tokens, and the predictions of each chunk's second "
    "half\n"
    "are scored, as llama.cpp's llama-perplexity does.\n"
    "\n"
    "Examples:\n"
    "  headrace perplexity -m model.gguf -f book.txt --context 2048 --chunks 4\n"
    "  headrace perplexity -m model.gguf -f book.txt --context 4096 --kv-memory 16MiB --against "
    "full\n"
    "  headrace perplexity -m model.gguf -f - --json < book.txt";

constexpr const char* full_run = "full";

struct PerplexityFlags {
  EngineFlags engine;
  std::string file, against;
  std::uint32_t chunks = 0, last_tokens = 0, decoded_tokens = 0;
  bool json = false;
};

std::string to_json(const TextScore& result, AttentionMode mode, const KvStats& kv) {
  const Score& score = result.score;
  nlohmann::ordered_json json = {
      {"perplexity", score.perplexity()},
      {"kl_mean", nullptr},  // null: not compared
      {"same_top1", nullptr},
      {"tokens_scored", score.tokens()},
      {"kv_bytes_needed", kv.kv_bytes_needed},
      {"kv_bytes_peak", kv.kv_bytes_peak},
      {"tokens_per_second", static_cast<double>(result.tokens_read) / result.seconds},
  };
  if (score.compared()) {
    json["kl_mean"] = score.kl_mean();
    json["same_top1"] = score.same_top1();
  }
  json["attention"] = attention_json(mode, kv);
  return json.dump();
}

void print_table(std::ostream& out, const TextScore& result, AttentionMode mode, const KvStats& kv,
                 const std::string& against) {
  const Score& score = result.score;
  Table table;
  table.row("perplexity", format_fixed(score.perplexity(), 4) + " over " +
                              format_count(score.tokens()) + " tokens");
  if (score.compared()) {
    char kl[32];
    std::snprintf(kl, sizeof kl, "%.3g", score.kl_mean());
    table.row("against " + against, "mean KL " + std::string(kl) + ", same top-1 " +
                                        format_fixed(100 * score.same_top1(), 2) + " %");
  }
  add_attention_rows(table, mode, kv);
  table.row("KV needed", format_byte_count(kv.kv_bytes_needed));
  table.row("KV memory", format_byte_count(kv.kv_bytes_peak) + " at most");
  table.row("speed", format_rate(static_cast<double>(result.tokens_read) / result.seconds));
  table.print(out);
}

int perplexity(const PerplexityFlags& flags, CommandContext& context) {
  const auto fail = [&](const Error& error, Phase phase) {
    return report_error(context.err, error, phase);
  };
  const Result<EngineOptions> options = flags.engine.options();
  if (!options.ok()) return fail(options.error(), Phase::opening);
  const Result<std::string> text = read_text_file(context, flags.file);
  if (!text.ok()) return fail(text.error(), Phase::opening);
  const auto tested = context.open_engine(*options);
  if (!tested.ok()) return fail(tested.error(), Phase::opening);
  std::unique_ptr<Engine> full;
  if (!flags.against.empty()) {
    EngineOptions full_options = *options;
    full_options.kv.memory_bytes = 0;
    full_options.kv.disk_directory.clear();
    full_options.kv.codec = KvOptions().codec;
    full_options.attention = {};
    if (flags.against != full_run) {
      const Result<KvType> type = parse_kv_type(flags.against);
      if (!type.ok()) return fail(type.error(), Phase::opening);
      full_options.kv.type = *type;
    }
    auto opened = context.open_engine(full_options);
    if (!opened.ok()) return fail(opened.error(), Phase::opening);
    full = std::move(opened).value();
  }
  const auto tokens = (*tested)->tokenize(*text, {});
  if (!tokens.ok()) return fail(tokens.error(), Phase::opening);

  Progress progress(context, "scoring");
  const ScoreTextOptions scoring = {
      .chunk_tokens = (*tested)->context(),
      .chunks_max = flags.chunks,
      .last_tokens = flags.decoded_tokens > 0 ? flags.decoded_tokens : flags.last_tokens,
      .decodes = flags.decoded_tokens > 0,
      .now = [&] { return context.env.now(); },
      .on_progress =
          [&](std::uint64_t done, std::uint64_t total) {
            progress.update(done, total);
            return !context.interrupts.pending();
          },
  };
  const Result<TextScore> result = score_text(**tested, full.get(), *tokens, scoring);
  progress.finish();
  if (context.interrupts.pending()) return context.interrupts.exit_code();
  if (!result.ok()) return fail(result.error(), Phase::running);

  const KvStats kv = (*tested)->kv_stats();
  const AttentionMode mode = options->attention.mode;
  print_table(flags.json ? context.err : context.out, *result, mode, kv, flags.against);
  if (flags.json) context.out << to_json(*result, mode, kv) << std::endl;
  return exit_ok;
}

}  // namespace

Command add_perplexity(CLI::App& program) {
  const auto flags = std::make_shared<PerplexityFlags>();
  CLI::App* command = program.add_subcommand(
      "perplexity", "How well a model predicts a text, and what a memory limit changes");
  command->add_option("-f,--file", flags->file, "The text; - is standard input")
      ->required()
      ->type_name("FILE");
  command->add_option("--chunks", flags->chunks, "Score only the first K chunks (default: all)")
      ->type_name("K");
  command
      ->add_option("--last", flags->last_tokens,
                   "Score only the last N tokens of each chunk (default: its second half)")
      ->type_name("N");
  command
      ->add_option("--score-last", flags->decoded_tokens,
                   "The same, and read them one by one as answers are, in the mode of --attention")
      ->excludes("--last")
      ->type_name("N");
  command
      ->add_option(
          "--against", flags->against,
          "Compare (mean KL divergence, top-1 agreement) with a run that has everything in "
          "memory: full, or a KV type for that run")
      ->type_name("RUN");
  command->add_flag("--json", flags->json,
                    "One JSON object on stdout; everything else goes to stderr");
  flags->engine.add_to(*command, 512);
  command->get_option("--context")->description("Tokens of a chunk (default: 512)");
  command->footer(footer);
  return {command, [flags](CommandContext& context) { return perplexity(*flags, context); }};
}

}  // namespace headrace
