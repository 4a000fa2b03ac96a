#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench_engine.h"
#include "cli/bench_limits.h"
#include "cli/bench_recall.h"
#include "cli/bench_recompute.h"
#include "cli/bench_report.h"
#include "cli/bench_result.h"
#include "cli/bench_store.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/exit_code.h"
#include "cli/output_file.h"
#include "cli/prompt_text.h"

namespace headrace {
namespace {

constexpr const char* footer =
    "Examples:\n"
    "  headrace bench -m model.gguf --quick\n"
    "  headrace bench -m model.gguf --engines headrace,headrace-eighth --workloads decode-8192\n"
    "  headrace bench -m model.gguf --llama-bench build/bench/llama-bench --results results\n"
    "  headrace bench -m model.gguf --limits-only\n"
    "  headrace bench -m model.gguf --recall book.txt --llama-bench build/bench/llama-bench\n"
    "  headrace bench -m model.gguf --store --llama-server build/bench/llama-server\n"
    "\n"
    "`make bench` of the source tree gets the peers and runs everything.\n"
    "Engines: headrace, headrace-f16 and headrace-q8 (other KV types), headrace-half and\n"
    "headrace-eighth (room for that part of the KV), headrace-recall, headrace-window and\n"
    "headrace-sparse (an eighth of the tokens is read), llama.cpp (as it comes), "
    "llama.cpp-fa-off,\n"
    "llama.cpp-fa-on, llama.cpp-q8, openvino-genai.";

std::vector<std::string> quick_engines() { return {"headrace", "llama.cpp", "openvino-genai"}; }
std::vector<std::string> quick_workloads() { return {"prefill-512", "decode-16"}; }

struct BenchFlags {
  BenchSetup setup;
  std::string kv_disk;
  std::vector<std::string> engines, workloads;
  std::string json, markdown, plots, results, recall;
  std::string recall_codec = RecallBenchSize().codec;
  float recall_share = RecallBenchSize().share;
  std::uint32_t recall_load_tokens = RecallBenchSize().load_tokens;
  std::uint32_t rounds = 0;  // 0: the default
  bool quick = false, limits_only = false, no_limits = false, store = false, recompute = false;
};

/// Takes away what BenchPlan::begin has written on a terminal.
void clear_line(CommandContext& context) {
  if (context.err_is_terminal) context.err << "\r\033[K" << std::flush;
}

std::string file_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

Result<void> prepare_outputs(Env& env, const BenchFlags& flags) {
  for (const std::string& directory : {flags.plots, flags.results}) {
    if (!directory.empty()) HEADRACE_TRY(env.make_directories(directory));
  }
  for (const std::string& file : {flags.json, flags.markdown}) {
    HEADRACE_TRY(expect_folder_of(env, file));
  }
  return {};
}

Result<void> write_outputs(Env& env, const BenchFlags& flags, const BenchReport& report) {
  if (!flags.json.empty()) HEADRACE_TRY(write_file(env, flags.json, results_json(report)));
  if (!flags.markdown.empty()) {
    HEADRACE_TRY(write_file(env, flags.markdown, results_markdown(report, false)));
  }
  for (const std::string& directory : {flags.plots, flags.results}) {
    if (directory.empty()) continue;
    for (const auto& [name, svg] : charts(report)) {
      HEADRACE_TRY(write_file(env, std::string(directory).append("/").append(name), svg));
    }
  }
  if (flags.results.empty()) return {};
  HEADRACE_TRY(write_file(env, flags.results + "/results.json", results_json(report)));
  HEADRACE_TRY(write_file(env, flags.results + "/machine.json", machine_json(report)));
  return write_file(env, flags.results + "/results.md", results_markdown(report, true));
}

std::vector<std::string> names_or(const std::vector<std::string>& given, bool quick,
                                  const std::vector<std::string>& quick_names,
                                  const std::vector<std::string>& otherwise) {
  if (!given.empty()) return given;
  return quick ? quick_names : otherwise;
}

/// What to run, nothing with --limits-only; says what is left out. Errors: invalid_argument.
Result<BenchPlan> make_plan(const BenchFlags& flags, const BenchSetup& setup,
                            const ModelInfo& model, CommandContext& context) {
  BenchPlan plan;
  if (flags.limits_only) return plan;
  plan.rounds = flags.rounds != 0 ? flags.rounds : flags.quick ? 2 : 3;
  plan.say = [&context](const std::string& line) {
    clear_line(context);
    context.err << "headrace: bench: " << line << std::endl;
  };
  if (context.err_is_terminal) {
    plan.begin = [&context](const std::string& what) {
      clear_line(context);
      context.err << what << " ..." << std::flush;
    };
  }
  std::vector<std::string> all_names;
  std::vector<std::string> default_names;
  for (const Workload& workload : all_workloads()) {
    all_names.push_back(workload.name);
    if (!workload.when_named) default_names.push_back(workload.name);
  }
  HEADRACE_TRY_ASSIGN(const auto workloads, choose_names("workload",
                                                         names_or(flags.workloads, flags.quick,
                                                                  quick_workloads(), default_names),
                                                         all_names));
  HEADRACE_TRY_ASSIGN(
      const auto engines,
      choose_names("engine",
                   names_or(flags.engines, flags.quick, quick_engines(), default_engine_names()),
                   all_engine_names()));
  for (const std::string& name : workloads) {
    const auto known = std::find(all_names.begin(), all_names.end(), name) - all_names.begin();
    const Result<Workload> workload =
        fit_workload(all_workloads()[static_cast<std::size_t>(known)], model.trained_context);
    if (workload.ok()) {
      plan.workloads.push_back(*workload);
    } else {
      plan.say(name + " is left out: " + workload.error().message);
    }
  }
  for (const std::string& name : engines) {
    auto engine = make_bench_engine(name, setup, context);
    if (engine.ok()) {
      plan.engines.push_back(std::move(*engine));
    } else {
      plan.say(name + " is left out: " + engine.error().message);
    }
  }
  if (plan.workloads.empty() || plan.engines.empty()) {
    return Error{ErrorCode::invalid_argument, "nothing is left to measure"};
  }
  return plan;
}

Result<MachineLimits> limits(const BenchFlags& flags, const BenchSetup& setup,
                             CommandContext& context) {
  LimitsOptions options = {.threads = setup.threads,
                           .disk_directory = setup.disk_directory.empty()
                                                 ? context.env.temporary_directory()
                                                 : setup.disk_directory};
  if (flags.quick) {
    options.memory_bytes /= 2;
    options.disk_bytes /= 4;
    options.rounds = 3;
  }
  context.err << "headrace: bench: the limits of this machine" << std::endl;
  return measure_limits(context.env, options);
}

/// What --store, --recompute or --recall asks for.
Result<std::vector<BenchFigure>> measure_figures(const BenchFlags& flags, const BenchSetup& setup,
                                                 CommandContext& context) {
  if (flags.recompute) {
    RecomputeBenchSize size = flags.quick ? quick_recompute_size() : RecomputeBenchSize();
    if (flags.rounds != 0) size.rounds = flags.rounds;
    return measure_recompute(setup, size, context);
  }
  if (flags.store)
    return measure_store(setup, flags.quick ? quick_store_size() : StoreBenchSize(), context);
  HEADRACE_TRY_ASSIGN(const std::string text, read_text_file(context, flags.recall));
  RecallBenchSize size = flags.quick ? quick_recall_size() : RecallBenchSize();
  size.codec = flags.recall_codec;
  size.share = flags.recall_share;
  size.load_tokens = flags.recall_load_tokens;
  if (flags.rounds != 0) size.rounds = flags.rounds;
  return measure_recall(setup, size, text, context);
}

Result<void> bench_figures(const BenchFlags& flags, const BenchSetup& setup,
                           CommandContext& context) {
  HEADRACE_TRY(prepare_outputs(context.env, flags));
  HEADRACE_TRY_ASSIGN(const auto figures, measure_figures(flags, setup, context));
  print_figures(context.out, figures);
  if (!flags.json.empty()) {
    HEADRACE_TRY(write_file(context.env, flags.json, figures_json(figures)));
  }
  if (!flags.markdown.empty()) {
    HEADRACE_TRY(write_file(context.env, flags.markdown, figures_markdown(figures)));
  }
  return {};
}

int bench(const BenchFlags& flags, CommandContext& context) {
  const auto fail = [&](const Error& error, Phase phase) {
    if (error.code == ErrorCode::cancelled && context.interrupts.pending()) {
      return context.interrupts.exit_code();
    }
    return report_error(context.err, error, phase);
  };
  BenchSetup setup = flags.setup;
  if (setup.threads == 0)
    setup.threads = static_cast<std::uint32_t>(context.env.hardware_threads());
  if (!flags.kv_disk.empty()) {
    const Result<DiskPlace> place = parse_disk_place(flags.kv_disk);
    if (!place.ok()) return fail(place.error(), Phase::opening);
    setup.disk_directory = place->directory;
  }
  const Result<ModelInfo> model = context.inspect_model(setup.model_path);
  if (!model.ok()) return fail(model.error(), Phase::opening);
  if (flags.store || flags.recompute || !flags.recall.empty()) {
    const Result<void> status = bench_figures(flags, setup, context);
    return status.ok() ? exit_ok : fail(status.error(), Phase::running);
  }
  const Result<BenchPlan> plan = make_plan(flags, setup, *model, context);
  if (!plan.ok()) return fail(plan.error(), Phase::opening);
  const Result<void> prepared = prepare_outputs(context.env, flags);
  if (!prepared.ok()) return fail(prepared.error(), Phase::opening);

  BenchReport report = {.machine = describe_machine(context.env),
                        .limits = {},
                        .has_limits = !flags.no_limits,
                        .model = *model,
                        .model_file = file_name(setup.model_path),
                        .threads = setup.threads,
                        .rounds = plan->rounds,
                        .results = {}};
  if (report.has_limits) {
    const Result<MachineLimits> measured = limits(flags, setup, context);
    if (!measured.ok()) return fail(measured.error(), Phase::running);
    report.limits = *measured;
  }
  Result<std::vector<BenchResult>> results = run_plan(*plan);
  if (!results.ok()) {
    clear_line(context);
    return fail(results.error(), Phase::running);
  }
  report.results = std::move(*results);
  print_report(context.out, report);
  const Result<void> written = write_outputs(context.env, flags, report);
  if (!written.ok()) return fail(written.error(), Phase::running);
  return exit_ok;
}

}  // namespace

Command add_bench(CLI::App& program) {
  const auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = program.add_subcommand(
      "bench", "Measure this machine, this program and its peers on the same model, in turns");
  command->add_option("-m,--model", flags->setup.model_path, "The model, a GGUF file")
      ->required()
      ->type_name("FILE");
  CLI::Option* limits_only =
      command->add_flag("--limits-only", flags->limits_only,
                        "Only what the machine can do: memory, arithmetic, disk");
  command->add_flag("--no-limits", flags->no_limits, "Everything but that")->excludes(limits_only);
  command->add_flag("--quick", flags->quick,
                    "Two small workloads, two rounds: in less than two minutes");
  CLI::Option* store =
      command
          ->add_flag("--store", flags->store,
                     "Instead of the workloads: memory and disk that hold KV for the pool")
          ->excludes(limits_only);
  CLI::Option* recompute =
      command
          ->add_flag("--recompute", flags->recompute,
                     "Instead of the workloads: how fast KV comes back of which only the text was "
                     "kept, in batches of several sizes")
          ->excludes(limits_only)
          ->excludes(store);
  CLI::Option* recall =
      command
          ->add_option(
              "--recall", flags->recall,
              "Instead of the workloads: answers behind the beginning of this text, exact and "
              "in recall, with all of the KV in memory and with a part of it")
          ->excludes(limits_only)
          ->excludes(store)
          ->excludes(recompute)
          ->type_name("FILE");
  command
      ->add_option("--recall-codec", flags->recall_codec,
                   "With --recall: the --kv-codec of what has a part of the KV in memory, such as "
                   "hidden-q8")
      ->needs(recall)
      ->type_name("NAME");
  command
      ->add_option("--recall-share", flags->recall_share,
                   "With --recall: the --recall-share of all that recalls")
      ->needs(recall)
      ->type_name("P");
  command
      ->add_option("--recall-load-tokens", flags->recall_load_tokens,
                   "With --recall: the --recall-load-tokens of what has a part of the KV in memory")
      ->needs(recall)
      ->type_name("N");
  command->add_option("--rounds", flags->rounds, "Turns of every engine (default: 3)")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command
      ->add_option("--workloads", flags->workloads,
                   "Such as prefill-512,decode-2048 (default: all that the model allows)")
      ->delimiter(',')
      ->type_name("LIST");
  command
      ->add_option("--engines", flags->engines, "Such as headrace,llama.cpp (default: see below)")
      ->delimiter(',')
      ->type_name("LIST");
  command
      ->add_option("--threads", flags->setup.threads,
                   "Threads of each engine (default: one per core)")
      ->check(CLI::Range(1, 256))
      ->type_name("N");
  command
      ->add_option("--kv-disk", flags->kv_disk,
                   "The disk that is measured, and where KV goes that does not fit (default: the "
                   "temporary directory)")
      ->type_name("DIR");

  const std::string peers = "Peers";
  command->add_option("--llama-bench", flags->setup.llama_bench, "llama.cpp's program of that name")
      ->type_name("FILE")
      ->group(peers);
  command->add_option("--llama-server", flags->setup.llama_server, "The same, for --store")
      ->type_name("FILE")
      ->group(peers);
  flags->setup.llama_server_script = "bench/llama_server_peer.py";
  command
      ->add_option("--llama-server-script", flags->setup.llama_server_script,
                   "What python3 runs for it (default: bench/llama_server_peer.py)")
      ->type_name("FILE")
      ->group(peers);
  command
      ->add_option("--openvino-python", flags->setup.openvino_python,
                   "A Python that has the package openvino-genai")
      ->type_name("FILE")
      ->group(peers);
  flags->setup.openvino_script = "bench/openvino_peer.py";
  command
      ->add_option("--openvino-script", flags->setup.openvino_script,
                   "What it runs (default: bench/openvino_peer.py)")
      ->type_name("FILE")
      ->group(peers);

  const std::string outputs = "Results, besides the table";
  command->add_option("--json", flags->json, "A list with an object for each figure")
      ->type_name("FILE")
      ->group(outputs);
  command->add_option("--markdown", flags->markdown, "The tables as Markdown")
      ->type_name("FILE")
      ->group(outputs);
  command->add_option("--plots", flags->plots, "Charts over the context length, as SVG")
      ->type_name("DIR")
      ->group(outputs);
  command
      ->add_option("--results", flags->results,
                   "All of them, and machine.json with the limits and the memory")
      ->type_name("DIR")
      ->group(outputs);
  command->footer(footer);
  return {command, [flags](CommandContext& context) { return bench(*flags, context); }};
}

}  // namespace headrace
