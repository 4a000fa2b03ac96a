// The file of `headrace run --eviction-log`: a line for all that leaves memory, in columns that are
// separated by tabs, under a line with their names.
#pragma once

#include <memory>
#include <string>

#include "env/env.h"
#include "headrace/engine.h"

namespace headrace {

class EvictionLog {
 public:
  /// Replaces what the file holds. Errors: those of Env::open_file() and File::truncate().
  static Result<std::unique_ptr<EvictionLog>> open(Env& env, const std::string& path);

  /// For EngineOptions::on_eviction. The log must outlive the engine.
  EvictionCallback callback();
  /// From now on tokens are written as this engine's text.
  void set_engine(const Engine* engine) { engine_ = engine; }
  /// Writes what is not written yet. Errors: the first of all writes that failed.
  Result<void> finish();

 private:
  explicit EvictionLog(std::unique_ptr<File> file) : file_(std::move(file)) {}
  void add(const KvEviction& eviction);
  void write();

  std::unique_ptr<File> file_;
  const Engine* engine_ = nullptr;
  std::string lines_;
  std::uint64_t written_ = 0;  // bytes
  Result<void> outcome_;
};

}  // namespace headrace
