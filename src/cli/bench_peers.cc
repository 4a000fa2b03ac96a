#include "cli/bench_peers.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cli/output_file.h"

namespace headrace {
namespace {

/// The last line that is not empty: where programs say what is wrong.
std::string last_line(std::string_view text) {
  const std::size_t end = text.find_last_not_of(" \r\n");
  if (end == std::string_view::npos) return "";
  text = text.substr(0, end + 1);
  return std::string(text.substr(text.find_last_of('\n') + 1));
}

bool is_there(const std::string& program, CommandContext& context) {
  return !program.empty() && context.env.exists(program);
}

Error not_there(const std::string& what, const std::string& option) {
  return {ErrorCode::not_found,
          "no " + what + "; `make bench` gets it, or name one with " + option};
}

Result<ProgramOutput> run_peer(std::vector<std::string> arguments, CommandContext& context) {
  HEADRACE_TRY_ASSIGN(
      ProgramOutput output,
      context.env.run_program({.arguments = std::move(arguments),
                               .is_cancelled = [&] { return context.interrupts.pending(); }}));
  // The terminal sends an interrupt to the child as well, which may end before it is told to.
  if (context.interrupts.pending()) return Error{ErrorCode::cancelled, "stopped"};
  if (output.exit_code != 0) {
    return Error{ErrorCode::io, "it failed with exit code " + std::to_string(output.exit_code) +
                                    ": " + last_line(output.err)};
  }
  return output;
}

Result<double> number_in(const nlohmann::json& json, const char* field) {
  if (json.is_object() && json.contains(field) && json[field].is_number()) {
    return json[field].get<double>();
  }
  return Error{ErrorCode::corrupt, "its output has no " + std::string(field)};
}

/// Runs a peer, whose standard output is JSON or ends with a line of it.
class Peer : public BenchEngine {
 public:
  Peer(std::string name, const BenchSetup& setup, CommandContext& context)
      : BenchEngine(std::move(name)), setup_(setup), context_(context) {}

 protected:
  const BenchSetup& setup() const { return setup_; }

  Result<ProgramOutput> run(std::vector<std::string> arguments) const {
    return run_peer(std::move(arguments), context_);
  }

 private:
  const BenchSetup setup_;
  CommandContext& context_;
};

class LlamaBench final : public Peer {
 public:
  LlamaBench(const LlamaVariant& variant, const BenchSetup& setup, CommandContext& context)
      : Peer(variant.name, setup, context), arguments_(variant.arguments) {}

  Result<BenchSample> measure(const Workload& workload) override {
    if (workload.kind == WorkloadKind::together) {
      return Error{ErrorCode::unsupported, "llama-bench decodes one sequence at a time"};
    }
    std::vector<std::string> command = {setup().llama_bench,
                                        "-m",
                                        setup().model_path,
                                        "-t",
                                        std::to_string(setup().threads),
                                        "-ngl",
                                        "0",
                                        "-r",
                                        "1",
                                        "-o",
                                        "json"};
    command.insert(command.end(), arguments_.begin(), arguments_.end());
    const std::string prompt = std::to_string(workload.prompt_tokens);
    const std::vector<std::string> what =
        workload.kind == WorkloadKind::prefill
            ? std::vector<std::string>{"-p", prompt, "-n", "0"}
            : std::vector<std::string>{"-p", "0",   "-n", std::to_string(workload.steps),
                                       "-d", prompt};
    command.insert(command.end(), what.begin(), what.end());
    HEADRACE_TRY_ASSIGN(const ProgramOutput output, run(std::move(command)));
    const nlohmann::json json = nlohmann::json::parse(output.out, nullptr, false);
    BenchSample sample = {.peak_rss_bytes = output.peak_rss_bytes};
    const bool is_list = json.is_array() && !json.empty();
    HEADRACE_TRY_ASSIGN(sample.tokens_per_second,
                        number_in(is_list ? json.back() : nlohmann::json(), "avg_ts"));
    return sample;
  }

 private:
  const std::vector<std::string> arguments_;
};

class OpenVino final : public Peer {
 public:
  OpenVino(const BenchSetup& setup, CommandContext& context)
      : Peer(openvino_name, setup, context) {}

  Result<BenchSample> measure(const Workload& workload) override {
    if (workload.kind == WorkloadKind::together) {
      return Error{ErrorCode::unsupported, "it is measured with one sequence at a time"};
    }
    HEADRACE_TRY_ASSIGN(
        const ProgramOutput output,
        run({setup().openvino_python, setup().openvino_script, "--model", setup().model_path,
             "--threads", std::to_string(setup().threads), "--prompt-tokens",
             std::to_string(workload.prompt_tokens), "--steps", std::to_string(workload.steps)}));
    const nlohmann::json json = nlohmann::json::parse(last_line(output.out), nullptr, false);
    BenchSample sample = {.peak_rss_bytes = output.peak_rss_bytes};
    HEADRACE_TRY_ASSIGN(
        sample.tokens_per_second,
        number_in(json, workload.kind == WorkloadKind::prefill ? "prefill_tokens_per_second"
                                                               : "decode_tokens_per_second"));
    return sample;
  }
};

}  // namespace

std::span<const LlamaVariant> llama_variants() {
  // As it comes: flash attention where the machine has it (every CPU), KV in f16.
  static const std::vector<LlamaVariant> variants = {
      {"llama.cpp", {}},
      {"llama.cpp-fa-off", {"-fa", "off"}},
      {"llama.cpp-fa-on", {"-fa", "on"}},
      {"llama.cpp-q8", {"-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0"}},
  };
  return variants;
}

Result<std::unique_ptr<BenchEngine>> make_llama_engine(const LlamaVariant& variant,
                                                       const BenchSetup& setup,
                                                       CommandContext& context) {
  if (!is_there(setup.llama_bench, context)) return not_there("llama-bench", "--llama-bench");
  return std::unique_ptr<BenchEngine>(std::make_unique<LlamaBench>(variant, setup, context));
}

Result<ServerTimes> measure_llama_server(std::span<const TokenId> prompt, const std::string& folder,
                                         const BenchSetup& setup, CommandContext& context) {
  if (!is_there(setup.llama_server, context)) return not_there("llama-server", "--llama-server");
  HEADRACE_TRY(context.env.make_directories(folder));
  const std::string prompt_file = folder + "/prompt.json";
  HEADRACE_TRY(write_file(context.env, prompt_file, nlohmann::json(prompt).dump()));
  HEADRACE_TRY_ASSIGN(
      const ProgramOutput output,
      run_peer({"python3", setup.llama_server_script, "--server", setup.llama_server, "--model",
                setup.model_path, "--threads", std::to_string(setup.threads), "--prompt",
                prompt_file, "--slots", folder},
               context));
  const nlohmann::json json = nlohmann::json::parse(last_line(output.out), nullptr, false);
  ServerTimes times;
  HEADRACE_TRY_ASSIGN(times.read_seconds, number_in(json, "read_seconds"));
  HEADRACE_TRY_ASSIGN(times.restart_seconds, number_in(json, "restart_seconds"));
  if (times.restart_seconds <= 0) return Error{ErrorCode::corrupt, "it took no time"};
  return times;
}

Result<std::unique_ptr<BenchEngine>> make_openvino_engine(const BenchSetup& setup,
                                                          CommandContext& context) {
  if (!is_there(setup.openvino_python, context)) {
    return not_there("Python with openvino-genai", "--openvino-python");
  }
  return std::unique_ptr<BenchEngine>(std::make_unique<OpenVino>(setup, context));
}

}  // namespace headrace
