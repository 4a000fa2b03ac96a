// GgufFile: the metadata and tensors of a GGUF model file, read by ggml's parser from mapped bytes,
// and checked against the file's real size before anything is used. Format: the GGUF specification
// of the ggml project, version 2 and 3.
//
// Thread-safety: immutable after open().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "headrace/result.h"

struct gguf_context;

namespace headrace {

/// One tensor: its name, type, shape and bytes inside the mapping.
struct TensorInfo {
  std::string name;
  std::int32_t type = 0;    ///< ggml_type
  std::uint64_t width = 0;  ///< values of a row
  std::uint64_t rows = 0;   ///< of all outer dimensions
  Bytes bytes;
};

class GgufFile {
 public:
  /// Parses `file`, which must stay mapped as long as this lives. `path` is for messages.
  /// Errors: corrupt (not a GGUF file, damaged, cut short: names the tensor, its end and the file's
  /// size).
  static Result<GgufFile> open(Bytes file, const std::string& path);

  // Values by key. get: nothing when the key is missing. Errors of the require_ functions and of
  // all when the type differs: corrupt, with the key's name.
  Result<std::optional<std::uint64_t>> get_unsigned(const std::string& key) const;
  Result<std::optional<double>> get_float(const std::string& key) const;
  Result<std::optional<bool>> get_bool(const std::string& key) const;
  Result<std::optional<std::string>> get_string(const std::string& key) const;
  /// Whole numbers from 0 on, or flags as 0 and 1.
  Result<std::vector<std::uint64_t>> get_unsigned_array(const std::string& key) const;
  Result<std::uint32_t> require_u32(const std::string& key) const;
  Result<float> require_float(const std::string& key) const;
  Result<std::string> require_string(const std::string& key) const;
  /// Entries of an array; 0 when it is missing.
  std::uint64_t array_length(const std::string& key) const;
  bool is_array(const std::string& key) const;
  bool has_key(const std::string& key) const;

  std::span<const TensorInfo> tensors() const { return tensors_; }
  const TensorInfo* find_tensor(std::string_view name) const;
  const std::string& path() const { return path_; }
  std::uint64_t file_bytes() const { return file_bytes_; }

 private:
  struct Free {
    void operator()(gguf_context* context) const;
  };
  GgufFile() = default;
  Result<void> read_tensors(Bytes file);
  Error wrong_type(const std::string& key, const char* wanted) const;

  std::unique_ptr<gguf_context, Free> context_;
  std::vector<TensorInfo> tensors_;
  std::string path_;
  std::uint64_t file_bytes_ = 0;
};

}  // namespace headrace
