#include "cli/eviction_log.h"

#include <cstdio>
#include <span>
#include <string_view>

namespace headrace {
namespace {

constexpr std::size_t bytes_at_once = 1 << 16;

/// In one column of one line.
void append_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '\t':
        out += "\\t";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\\':
        out += "\\\\";
        break;
      default:
        out += c;
    }
  }
}

}  // namespace

Result<std::unique_ptr<EvictionLog>> EvictionLog::open(Env& env, const std::string& path) {
  const OpenMode mode = env.exists(path) ? OpenMode::read_write : OpenMode::create_new;
  HEADRACE_TRY_ASSIGN(auto file, env.open_file(path, mode));
  HEADRACE_TRY(file->truncate(0));
  std::unique_ptr<EvictionLog> log(new EvictionLog(std::move(file)));
  log->lines_ = "layer\tposition\ttokens\tmass\treason\tto\ttext\n";
  return log;
}

EvictionCallback EvictionLog::callback() {
  return [this](const KvEviction& eviction) { add(eviction); };
}

void EvictionLog::add(const KvEviction& eviction) {
  char mass[32];
  std::snprintf(mass, sizeof mass, "%.3g", eviction.mass);
  lines_ += std::to_string(eviction.layer) + "\t" + std::to_string(eviction.first_position) + "\t" +
            std::to_string(eviction.tokens.size()) + "\t" + mass + "\t" + eviction.reason + "\t" +
            eviction.to + "\t";
  if (engine_ != nullptr) {
    for (const TokenId token : eviction.tokens) append_escaped(lines_, engine_->token_bytes(token));
  }
  lines_ += '\n';
  if (lines_.size() >= bytes_at_once) write();
}

void EvictionLog::write() {
  if (!outcome_.ok()) return lines_.clear();
  const Bytes bytes = std::as_bytes(std::span(lines_));
  outcome_ = file_->write_at(written_, std::span(&bytes, 1));
  written_ += lines_.size();
  lines_.clear();
}

Result<void> EvictionLog::finish() {
  write();
  return outcome_;
}

}  // namespace headrace
