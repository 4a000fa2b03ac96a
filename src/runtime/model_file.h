// ModelFile: a mapped GGUF file, its parsed metadata and, after load(), its weights. One owner, so
// that nothing points into a mapping that is gone.
#pragma once

#include <memory>
#include <string>

#include "base/hash.h"
#include "env/env.h"
#include "model/gguf_file.h"
#include "model/model.h"

namespace headrace {

class ModelFile {
 public:
  /// Errors: not_found, io, corrupt, unsupported.
  static Result<std::unique_ptr<ModelFile>> open(Env& env, const std::string& path);

  const GgufFile& gguf() const { return gguf_; }
  const ModelShape& shape() const { return shape_; }
  ModelInfo info() const { return describe_model(gguf_, shape_); }

  /// Hash of the whole file: part of the identity of every page computed with it.
  Digest128 digest(Parallel& parallel) const;

 private:
  ModelFile(std::unique_ptr<MappedFile> mapping, GgufFile gguf, const ModelShape& shape)
      : mapping_(std::move(mapping)), gguf_(std::move(gguf)), shape_(shape) {}

  std::unique_ptr<MappedFile> mapping_;
  GgufFile gguf_;
  ModelShape shape_;
};

}  // namespace headrace
