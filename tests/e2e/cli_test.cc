// The headrace command as a user meets it: exit codes, one-line errors, --json, limits that hold,
// nothing left behind.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "tests/e2e/command_test_fixture.h"
#include "tests/support/tiny_model.h"

namespace headrace::test {
namespace {

constexpr std::uint64_t tight_memory = 400U * 1024;

class Command : public CommandTest {
 protected:
  /// The directory that was there before is still there, and empty.
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_TRUE(std::filesystem::is_directory(kv_directory_));
    EXPECT_EQ(list_names(kv_directory_), std::vector<std::string>{}) << "nothing is left behind";
  }

  Arguments run_tiny_ = {"run", "-m", model_,        "--raw", "-p", "Once upon a time",
                         "-n",  "8",  "--ignore-eos"};
  /// A context of 1,000 tokens whose KV (1 MiB) does not fit into the memory.
  Arguments tight_without_directory_ = {"--context",    "1024",     "--block-tokens", "16",
                                        "--chunk",      "64",       "--kv-memory",    "400KiB",
                                        "--no-kv-keep", "--kv-disk"};
  Arguments tight_ = tight_without_directory_ + Arguments{kv_directory_};
};

TEST_F(Command, HelpNamesEveryCommandAndTeaches) {
  const auto help = run_command({"--help"});
  EXPECT_EQ(help.exit_code, 0) << help.err;
  for (const char* command : {"run", "chat", "perplexity", "eval", "calibrate", "inspect", "bench",
                              "sessions", "verify"}) {
    EXPECT_NE(help.out.find(command), std::string::npos) << command;
    const auto own = run_command({command, "--help"});
    EXPECT_EQ(own.exit_code, 0) << own.err;
    EXPECT_GT(own.out.size(), 100U) << command;
  }
  const auto run_help = run_command({"run", "--help"});
  for (const char* option :
       {"--model",       "--file",       "--prompt",  "--context",    "--kv-memory",
        "--kv-disk",     "--no-kv-keep", "--session", "--kv-type",    "--threads",
        "--temperature", "--top-k",      "--top-p",   "--min-p",      "--repeat-penalty",
        "--seed",        "--raw",        "--chat",    "--ignore-eos", "--json"}) {
    EXPECT_NE(run_help.out.find(option), std::string::npos) << option;
  }
}

TEST_F(Command, RefusesWhatItDoesNotKnowInOneLine) {
  expect_one_line_error(run_command({"fly"}), exit_usage, "command");
  expect_one_line_error(run_command({"run"}), exit_usage, "model");
  expect_one_line_error(run_command(run_tiny_ + Arguments{"--warp", "9"}), exit_usage, "--warp");
  expect_one_line_error(run_command(run_tiny_ + Arguments{"--kv-memory", "lots"}), exit_usage,
                        "--kv-memory");
  expect_one_line_error(run_command(run_tiny_ + Arguments{"--kv-type", "f8"}), exit_usage, "f16");
  expect_one_line_error(run_command(run_tiny_ + Arguments{"--temperature=-1"}), exit_usage,
                        "temperature");
}

TEST_F(Command, SaysInOneLineWhatIsWrongWithTheModel) {
  const std::string missing = directory_.path_of("missing.gguf");
  expect_one_line_error(run_command({"run", "-m", missing, "-p", "x"}), exit_usage, missing);
  expect_one_line_error(run_command({"inspect", missing}), exit_usage, missing);

  const std::string cut = directory_.path_of("cut.gguf");
  const std::string bytes = read_bytes(model_);
  for (const std::size_t size :
       {bytes.size() - 1, bytes.size() / 2, std::size_t{5000}, std::size_t{100}}) {
    SCOPED_TRACE(size);
    write_bytes(cut, bytes.substr(0, size));
    expect_one_line_error(run_command({"run", "-m", cut, "-p", "x"}), exit_failure, "cut.gguf");
    expect_one_line_error(run_command({"inspect", cut}), exit_failure, "cut.gguf");
  }
  write_bytes(cut, "This is not a model.\n");
  expect_one_line_error(run_command({"run", "-m", cut, "-p", "x"}), exit_failure, "cut.gguf");
}

TEST_F(Command, SaysInOneLineThatForcedKernelsCannotRunHere) {
  CommandOptions options;
  options.environment = {"HEADRACE_FORCE_ISA=avx9000"};
  expect_one_line_error(run_command(run_tiny_, options), exit_usage, "HEADRACE_FORCE_ISA");
}

TEST_F(Command, SaysInOneLineWhatIsWrongWithTheLimits) {
  expect_one_line_error(run_command(run_tiny_ + Arguments{"--context", "2049"}), exit_usage,
                        "2048");
  expect_one_line_error(run_command(run_tiny_ + Arguments{"--kv-memory", "1KiB"}), exit_usage,
                        "iB");
  expect_one_line_error(run_command(run_tiny_ + Arguments{"--block-tokens", "17"}), exit_usage,
                        "16");
  const std::string file = file_with("x");
  expect_one_line_error(
      run_command(run_tiny_ + tight_without_directory_ + Arguments{file + "/below"}), exit_failure,
      "below");
  expect_one_line_error(
      run_command(run_tiny_ + tight_without_directory_ + Arguments{kv_directory_ + ":16KiB"}),
      exit_usage, "give at least");
  expect_one_line_error(run_command({"run", "-m", model_, "-f", directory_.path_of("no.txt")}),
                        exit_usage, "no.txt");
}

TEST_F(Command, SaysInOneLineThatThePromptIsTooLong) {
  const std::string file = file_with(std::string(3000, 'a'));
  const auto result = run_command({"run", "-m", model_, "--raw", "-f", file, "-n", "4"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST_F(Command, SaysInOneLineThatTheDiskIsFull) {
  const Arguments run = {"run", "-m", model_, "--raw", "-f", file_with(made_up_text(900)),
                         "-n",  "4"};
  const std::string limit = ":" + std::to_string(disk_bytes_of_pages(8));
  expect_one_line_error(
      run_command(run + tight_without_directory_ + Arguments{kv_directory_ + limit}), exit_failure,
      "disk");

  // The device's own limit: writes beyond 64 KiB fail.
  CommandOptions options;
  options.largest_file_bytes = 64 * 1024;
  expect_one_line_error(run_command(run + tight_, options), exit_failure, kv_directory_);
}

TEST_F(Command, RunStreamsTheTextThatJsonGives) {
  const auto plain = run_command(run_tiny_);
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  const Json json = parse_json(run_command(run_tiny_ + Arguments{"--json"}));
  for (const char* field :
       {"text", "tokens", "prefill_tokens_per_second", "decode_tokens_per_second",
        "kv_bytes_needed", "kv_bytes_peak", "pages_filled"}) {
    EXPECT_TRUE(json.contains(field)) << field;
  }
  EXPECT_EQ(json["tokens"].size(), 8U) << json.dump();
  EXPECT_TRUE(json["pages_filled"].is_object()) << "by source";
  EXPECT_TRUE(json["pages_filled"].contains("disk"));
  EXPECT_TRUE(json["pages_filled"].contains("replay"));
  EXPECT_NE(plain.out.find(json["text"].get<std::string>()), std::string::npos) << plain.out << "\n"
                                                                                << json.dump();
}

TEST_F(Command, RunGivesTheSameTokensWithLittleMemoryAndKeepsItsLimit) {
  const Arguments run = {"run", "-m", model_,   "--raw",       "-f", file_with(made_up_text(900)),
                         "-n",  "40", "--json", "--ignore-eos"};
  const Json everything = parse_json(run_command(run + Arguments{"--context", "1024"}));
  const Json little = parse_json(run_command(run + tight_));
  EXPECT_EQ(little["tokens"], everything["tokens"]);
  EXPECT_EQ(little["text"], everything["text"]);
  EXPECT_GT(little["pages_filled"]["disk"].get<std::uint64_t>(), 0U);
  EXPECT_LE(little["kv_bytes_peak"].get<std::uint64_t>(), tight_memory);
  EXPECT_GT(little["kv_bytes_needed"].get<std::uint64_t>(), tight_memory);
}

TEST_F(Command, RunReadsAPartOfTheTokensAndSaysHowMany) {
  const Arguments run = {"run", "-m", model_,   "--raw",       "-f", file_with(made_up_text(900)),
                         "-n",  "20", "--json", "--ignore-eos"};
  const Arguments window = {"--attention", "window", "--window-tokens", "84"};
  const Json json = parse_json(run_command(run + window + Arguments{"--context", "1024"}));
  EXPECT_EQ(json["attention"]["mode"], "window");
  EXPECT_EQ(json["attention"]["tokens_read"], 100) << "and the first 16";
  EXPECT_TRUE(json["attention"]["mass_left_out"].is_null());
  EXPECT_EQ(parse_json(run_command(run + window + tight_))["tokens"], json["tokens"]);
  const Json sparse =
      parse_json(run_command(run + Arguments{"--context", "1024", "--attention", "sparse",
                                             "--sparse-tokens", "120", "--sparse-heavy", "0"}));
  EXPECT_EQ(sparse["attention"]["tokens_read"], 120);
  expect_one_line_error(run_command(run + Arguments{"--window-tokens", "84"}), exit_usage,
                        "give --attention window");
}

TEST_F(Command, PerplexityMeasuresWhatAWindowChanges) {
  const Arguments perplexity = {
      "perplexity", "-m",        model_,     "-f",    file_with(made_up_text(4000)),
      "--context",  "1024",      "--chunks", "1",     "--score-last",
      "40",         "--against", "full",     "--json"};
  for (const char* mode : {"window", "sparse"}) {
    const std::string tokens = "--" + std::string(mode) + "-tokens";
    const Json json =
        parse_json(run_command(perplexity + Arguments{"--attention", mode, tokens, "100"}));
    EXPECT_EQ(json["attention"]["mode"], mode);
    EXPECT_GT(json["kl_mean"].get<double>(), 0.0);
    const Json all =
        parse_json(run_command(perplexity + Arguments{"--attention", mode, tokens, "1024"}));
    EXPECT_EQ(all["kl_mean"].get<double>(), 0.0) << "it covers the text";
  }
}

TEST_F(Command, RunWithASeedRepeatsItself) {
  const Arguments run =
      run_tiny_ + Arguments{"--json", "--temperature", "1", "--min-p", "0", "--seed"};
  const Json first = parse_json(run_command(run + Arguments{"7"}));
  EXPECT_EQ(first["tokens"], parse_json(run_command(run + Arguments{"7"}))["tokens"]);
  EXPECT_NE(first["tokens"], parse_json(run_command(run + Arguments{"8"}))["tokens"]);
}

TEST_F(Command, PerplexityAgainstFullFindsNoDifference) {
  const Arguments perplexity = {"perplexity", "-m", model_,  "-f", file_with(made_up_text(4000)),
                                "--chunks",   "2",  "--json"};
  const Json json = parse_json(run_command(perplexity + tight_ + Arguments{"--against", "full"}));
  for (const char* field : {"perplexity", "kl_mean", "same_top1", "tokens_scored",
                            "kv_bytes_needed", "kv_bytes_peak"}) {
    EXPECT_TRUE(json.contains(field)) << field;
  }
  EXPECT_EQ(json["kl_mean"].get<double>(), 0.0);
  EXPECT_EQ(json["same_top1"].get<double>(), 1.0);
  EXPECT_GT(json["perplexity"].get<double>(), 1.0);
  EXPECT_GT(json["tokens_scored"].get<std::uint64_t>(), 0U);
  EXPECT_LE(json["kv_bytes_peak"].get<std::uint64_t>(), tight_memory);
}

TEST_F(Command, EvalHoldsEveryModeAgainstTheFullCache) {
  const std::string choices = directory_.path_of("choices.jsonl");
  write_bytes(
      choices,
      "{\"ctx\": \"A cat\", \"endings\": [\"sleeps.\", \"reads a book.\"], \"label\": 0}\n"
      "{\"ctx\": \"A cat\", \"endings\": [\"sleeps.\", \"reads a book.\"], \"label\": 1}\n");
  const std::string table = directory_.path_of("table.md");
  const CommandResult result = run_command({"eval",
                                            "-m",
                                            model_,
                                            "-f",
                                            file_with(made_up_text(8000)),
                                            "--context",
                                            "2048",
                                            "--choices",
                                            choices,
                                            "--items",
                                            "2",
                                            "--tasks",
                                            "needle,perplexity,choices",
                                            "--modes",
                                            "lossless,eighth,recall,q4",
                                            "--json",
                                            "--markdown",
                                            table,
                                            "--plots",
                                            directory_.path_of("p")});
  const Json modes = parse_json(result)["modes"];
  EXPECT_NE(result.err.find("eighth is left out"), std::string::npos)
      << "less than a step needs: " << result.err;
  ASSERT_EQ(modes.size(), 4U) << modes.dump();
  EXPECT_EQ(modes[0]["tasks"][1]["solved_by_exact"], 1) << "one of two labels is the model's";
  EXPECT_EQ(modes[1]["mode"], "lossless");
  EXPECT_EQ(modes[1]["kl_mean"], 0.0);
  EXPECT_EQ(modes[1]["tasks"][1]["agreement"], 1.0);
  EXPECT_LT(modes[2]["tokens_read"], 513.0);
  EXPECT_GT(modes[2]["kl_mean"], 0.0);
  EXPECT_GT(modes[3]["kl_mean"], 0.0);
  EXPECT_NE(read_bytes(table).find("| recall |"), std::string::npos);
  EXPECT_EQ(list_names(directory_.path_of("p")),
            (std::vector<std::string>{"eval-quality.svg", "eval-speed.svg"}));

  write_bytes(choices, "{\"ctx\": \"A cat\"}\n");
  expect_one_line_error(run_command({"eval", "-m", model_, "--choices", choices}), exit_usage,
                        "trained");
  expect_one_line_error(
      run_command({"eval", "-m", model_, "--context", "2048", "--choices", choices}), exit_failure,
      "choices.jsonl:1: ");
}

TEST_F(Command, CalibrateMakesAMapThatRunsAndIsRefusedElsewhere) {
  const std::string map = directory_.path_of("tiny.map");
  const Arguments sizes = {"--context", "64", "--block-tokens", "16"};
  const Json json = parse_json(
      run_command(Arguments{"calibrate", "-m", model_, "-f", file_with(made_up_text(2000)), "--out",
                            map, "--last", "16", "--bits", "6", "--json"} +
                  sizes));
  ASSERT_EQ(json["measured"].size(), 4U);
  EXPECT_EQ(json["measured"][0]["codec"], "the map");
  EXPECT_LE(json["measured"][0]["bits"].get<double>(), 6.0);
  EXPECT_GT(json["measured"][0]["kl_mean"].get<double>(), 0.0);
  EXPECT_LT(json["measured"][1]["kl_mean"].get<double>(),
            json["measured"][0]["kl_mean"].get<double>())
      << "q8 loses less";
  bool any_loss = false;
  for (const Json& head : json["heads"]) any_loss |= head["kl_key_q4"].get<double>() > 0;
  EXPECT_TRUE(any_loss);

  const Arguments mapped = {
      "run", "-m",     model_,         "--raw",          "-p", made_up_text(60), "-n",
      "8",   "--json", "--ignore-eos", "--block-tokens", "16", "--kv-codec",     "map:" + map};
  EXPECT_EQ(parse_json(run_command(mapped))["tokens"].size(), 8U);

  const std::string text = read_bytes(map);
  const auto refuse = [&](const std::string& changed, int exit_code, const std::string& mentions) {
    write_bytes(map, changed);
    expect_one_line_error(run_command(mapped), exit_code, mentions);
  };
  std::string other = text;
  char& digit = other[other.find("model ") + 6];
  digit = digit == 'a' ? 'b' : 'a';
  refuse(other, exit_usage, "make one for this model with headrace calibrate");
  refuse(text.substr(0, text.find("\n3 ")), exit_usage, "layer 3 and those after it are missing");
  refuse("", exit_usage, "headrace calibrate");
  std::filesystem::remove(map);
  expect_one_line_error(run_command(mapped), exit_usage, map);
}

TEST_F(Command, InspectTellsGeometryAndCosts) {
  const auto result = run_command({"inspect", model_, "--context", "1024"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* text : {"llama", "Tiny random model", "Q4_1", "2048", "1024"}) {
    std::string out = result.out;
    std::erase(out, ',');
    std::transform(out.begin(), out.end(), out.begin(), [](char c) { return c == 'q' ? 'Q' : c; });
    EXPECT_NE(out.find(text), std::string::npos) << text << " in\n" << result.out;
  }
}

TEST_F(Command, BenchMeasuresWithoutPeersAndWritesItsResults) {
  const std::string results = directory_.path_of("results");
  const auto result = run_command({"bench", "-m", model_, "--quick", "--rounds", "1", "--kv-disk",
                                   kv_directory_, "--results", results});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* text : {"prefill-512", "decode-16", "memory, reading", "disk, writing"}) {
    EXPECT_NE(result.out.find(text), std::string::npos) << text << " in\n" << result.out;
  }
  EXPECT_NE(result.err.find("llama.cpp is left out"), std::string::npos) << result.err;
  const Json figures = Json::parse(read_bytes(results + "/results.json"));
  ASSERT_EQ(figures.size(), 2U);
  for (const Json& figure : figures) {
    EXPECT_EQ(figure["engine"], "headrace");
    EXPECT_GT(figure["tokens_per_second"].get<double>(), 1.0);
    EXPECT_GT(figure["kv_bytes_peak"].get<std::uint64_t>(), 0U);
  }
  const Json machine = Json::parse(read_bytes(results + "/machine.json"));
  EXPECT_GT(machine["limits"]["memory_read_bytes_per_second"].get<double>(), 1e8);
  EXPECT_EQ(list_names(results),
            (std::vector<std::string>{"decode.svg", "machine.json", "memory.svg", "prefill.svg",
                                      "results.json", "results.md"}));
}

TEST_F(Command, BenchComparesSmallMemoryWithAll) {
  // So much KV that half of it has room for a step and the buffers of the disk.
  TinyModelOptions model = tiny_model_options(GGML_TYPE_Q4_1);
  model.layers = 16;
  model.head_dim = 64;
  model.trained_context = 2048;
  const auto written = write_tiny_model(model_, model);
  ASSERT_TRUE(written.ok()) << written.error().message;
  const std::string json = directory_.path_of("figures.json");
  const auto result = run_command({"bench", "-m", model_, "--no-limits", "--rounds", "2",
                                   "--workloads", "prefill-2048,decode-2048", "--engines",
                                   "headrace,headrace-half,headrace-eighth", "--kv-disk",
                                   kv_directory_, "--json", json});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json figures = Json::parse(read_bytes(json));
  ASSERT_GE(figures.size(), 4U) << result.err;
  EXPECT_EQ(figures[1]["engine"], "headrace-half");
  EXPECT_EQ(figures[1]["samples"].size(), 2U);
  EXPECT_LE(figures[1]["kv_bytes_peak"].get<std::uint64_t>(),
            figures[0]["kv_bytes_peak"].get<std::uint64_t>() / 2);
}

TEST_F(Command, ChatAnswersEveryLineAndEndsWithTheInput) {
  CommandOptions options;
  options.input = "Hello\nAnd again\n";
  const auto result = run_command({"chat", "-m", model_, "-n", "6"}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(result.timed_out);
}

TEST_F(Command, InterruptedWhileAnsweringLeavesNothingBehind) {
  CommandOptions options;
  options.signal = SIGINT;
  options.signal_after_milliseconds = 700;
  const auto result = run_command(
      {"run",       "-m",         model_,         "--raw",       "-p",     made_up_text(600),
       "-n",        "0",          "--ignore-eos", "--context",   "2048",   "--block-tokens",
       "16",        "--chunk",    "64",           "--kv-memory", "400KiB", "--no-kv-keep",
       "--kv-disk", kv_directory_},
      options);
  EXPECT_FALSE(result.timed_out);
  EXPECT_TRUE(result.exit_code == exit_interrupted || result.exit_code == 0)
      << result.exit_code << result.err;
}

// ----------------------------------------------------------------------------------------------
// the real model

class CommandWithSmolLm2 : public Command {
 protected:
  void SetUp() override {
    if (test_model_path().empty()) GTEST_SKIP() << "HEADRACE_TEST_MODEL names no model";
    Command::SetUp();
  }

  /// `run` of a text of about `bytes` bytes.
  Arguments run_text(std::size_t bytes) const {
    return {"run",         "-m", test_model_path(),
            "--raw",       "-f", file_with(text_of(TextKind::licence, bytes)),
            "--ignore-eos"};
  }
};

TEST_F(CommandWithSmolLm2, GivesTheSameTokensWithAnEighthOfTheKvInMemory) {
  const Arguments run = run_text(12000) + Arguments{"-n", "24", "--context", "3072", "--json"};
  const Json everything = parse_json(run_command(run));
  ASSERT_TRUE(everything.contains("kv_bytes_needed"));
  const std::uint64_t needed = everything["kv_bytes_needed"].get<std::uint64_t>();
  ASSERT_GT(needed, 30 * mebibyte);
  const std::uint64_t eighth = std::uint64_t{3072} * 23040 / 8;
  const Json little =
      parse_json(run_command(run + Arguments{"--kv-memory", std::to_string(eighth), "--no-kv-keep",
                                             "--kv-disk", kv_directory_}));
  EXPECT_EQ(little["tokens"], everything["tokens"]);
  EXPECT_LE(little["kv_bytes_peak"].get<std::uint64_t>(), eighth);
  EXPECT_GT(little["pages_filled"]["disk"].get<std::uint64_t>(), 0U);
}

TEST_F(CommandWithSmolLm2, StaysWithinWeightsAndKvMemoryAtEightThousandTokens) {
  const std::uint64_t kv_memory = 24 * mebibyte;
  const auto result = run_command(run_text(33000) +
                                  Arguments{"-n", "4", "--context", "8192", "--json", "--kv-memory",
                                            "24MiB", "--no-kv-keep", "--kv-disk", kv_directory_});
  const Json json = parse_json(result);
  const std::uint64_t weights = std::filesystem::file_size(test_model_path());
  std::cout << "peak RSS " << result.peak_rss_bytes / mebibyte << " MiB of " << weights / mebibyte
            << " + 24 + 64\n"
            << json["kv_bytes_needed"] << " bytes of KV needed, peak " << json["kv_bytes_peak"]
            << "\n";
  EXPECT_GE(json["kv_bytes_needed"].get<std::uint64_t>(), 6500U * 23040U)
      << "the text should be long";
  EXPECT_LE(json["kv_bytes_peak"].get<std::uint64_t>(), kv_memory);
  EXPECT_LE(result.peak_rss_bytes, weights + kv_memory + 64 * mebibyte);
}

TEST_F(CommandWithSmolLm2, InterruptedWhileReadingLeavesNothingBehind) {
  CommandOptions options;
  options.signal = SIGINT;
  options.signal_after_milliseconds = 4000;
  const auto result =
      run_command(run_text(33000) + Arguments{"-n", "1000", "--context", "8192", "--kv-memory",
                                              "24MiB", "--no-kv-keep", "--kv-disk", kv_directory_},
                  options);
  EXPECT_EQ(result.exit_code, exit_interrupted) << result.err;
  EXPECT_FALSE(result.timed_out);
}

TEST_F(CommandWithSmolLm2, CleansUpAfterARunThatWasKilled) {
  CommandOptions options;
  options.signal = SIGKILL;
  options.signal_after_milliseconds = 6000;
  const Arguments in_little_memory = {"--context", "8192",        "--kv-memory", "24MiB",
                                      "--kv-disk", kv_directory_, "--no-kv-keep"};
  const Arguments run = run_text(33000) + in_little_memory + Arguments{"-n", "1000"};
  const auto killed = run_command(run, options);
  ASSERT_EQ(killed.exit_code, 128 + SIGKILL) << killed.err;
  EXPECT_FALSE(list_names(kv_directory_).empty())
      << "a killed process cannot clean up: is this test still right?";

  const auto next = run_command(run_text(300) + in_little_memory + Arguments{"-n", "2"});
  EXPECT_EQ(next.exit_code, 0) << next.err;
}

}  // namespace
}  // namespace headrace::test
