// A session in a file of its own, to be carried from one directory to another:
// docs/formats/records.md.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cache/block_record.h"
#include "cache/session_record.h"
#include "env/env.h"

namespace headrace {

class SessionFileWriter {
 public:
  /// `path` must not exist. Errors: io.
  static Result<SessionFileWriter> create(Env& env, const std::string& path,
                                          const SessionRecord& session);
  /// A block, then its pages: as many as the session has layers. An empty one is missing.
  Result<void> begin_block(const BlockRecord& block);
  Result<void> add_page(Bytes page);
  /// Makes the file durable.
  Result<void> finish();

 private:
  explicit SessionFileWriter(std::unique_ptr<File> file) : file_(std::move(file)) {}
  Result<void> write(Bytes bytes);
  Result<void> write_framed(Bytes bytes);

  std::unique_ptr<File> file_;
  std::uint64_t end_ = 0;
};

class SessionFileReader {
 public:
  /// Errors: not_found, io, corrupt.
  static Result<SessionFileReader> open(Env& env, const std::string& path);
  const SessionRecord& session() const { return session_; }
  /// The next block, or nothing at the end. Errors: io, corrupt.
  Result<std::optional<BlockRecord>> next_block();
  /// The next page of the block. False: it is missing. The bytes are not verified.
  Result<bool> next_page(MutableBytes page);

 private:
  explicit SessionFileReader(std::unique_ptr<File> file) : file_(std::move(file)) {}
  Result<std::vector<std::byte>> read_framed();
  Result<void> read(MutableBytes bytes);

  std::unique_ptr<File> file_;
  std::uint64_t size_ = 0;
  std::uint64_t position_ = 0;
  SessionRecord session_;
};

}  // namespace headrace
