// CommandTest: runs the whole program in a world of its own, on a FakeEngine.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/fake_engine.h"
#include "env/memory_env.h"

namespace headrace {

class CommandTest : public testing::Test {
 protected:
  // Bytes of one token each.
  static std::vector<TokenId> bytes(std::string_view text) { return {text.begin(), text.end()}; }

  void write_file(const std::string& path, const std::string& text) {
    auto file = env.open_file(path, OpenMode::create_new);
    ASSERT_TRUE(file.ok());
    const std::vector<Bytes> parts = {std::as_bytes(std::span(text))};
    ASSERT_TRUE((*file)->write_at(0, parts).ok());
  }

  int run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "headrace");
    std::vector<const char*> argv;
    argv.reserve(arguments.size());
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    CommandContext context = {
        .open_engine = [&](const EngineOptions& options) -> Result<std::unique_ptr<Engine>> {
          opened.push_back(options);
          if (!open_error.message.empty()) return open_error;
          if (!engine_error.message.empty()) return engine_error;
          auto engine = std::make_unique<FakeEngine>();
          if (prepare) prepare(*engine, static_cast<int>(opened.size()));
          engines.push_back(engine.get());
          return std::unique_ptr<Engine>(std::move(engine));
        },
        .inspect_model = [&](const std::string&) -> Result<ModelInfo> {
          if (!open_error.message.empty()) return open_error;
          return inspected;
        },
        .env = env,
        .interrupts = interrupts,
        .in = in,
        .out = out,
        .err = err,
        .in_is_terminal = in_is_terminal,
        .err_is_terminal = err_is_terminal,
    };
    return run_program(static_cast<int>(argv.size()), argv.data(), context);
  }

  nlohmann::json json() const { return nlohmann::json::parse(out.str()); }

  MemoryEnv env;
  Interrupts interrupts;
  std::istringstream in;
  std::ostringstream out, err;
  bool in_is_terminal = false, err_is_terminal = false;
  std::function<void(FakeEngine&, int nth)> prepare;  // nth: 1 for the first engine opened
  Error open_error;                                   // of opening and of inspecting
  Error engine_error;                                 // of opening only
  ModelInfo inspected;
  std::vector<EngineOptions> opened;
  std::vector<FakeEngine*> engines;  // gone when the command has ended
};

}  // namespace headrace
