#include "runtime/model_file.h"

#include <algorithm>
#include <vector>

namespace headrace {

Result<std::unique_ptr<ModelFile>> ModelFile::open(Env& env, const std::string& path) {
  HEADRACE_TRY_ASSIGN(std::unique_ptr<MappedFile> mapping, env.map_file(path));
  HEADRACE_TRY_ASSIGN(GgufFile gguf, GgufFile::open(mapping->bytes(), path));
  HEADRACE_TRY_ASSIGN(const ModelShape shape, read_model_shape(gguf));
  return std::unique_ptr<ModelFile>(new ModelFile(std::move(mapping), std::move(gguf), shape));
}

Digest128 ModelFile::digest(Parallel& parallel) const {
  constexpr std::size_t chunk_bytes = std::size_t{8} << 20;
  const Bytes bytes = mapping_->bytes();
  std::vector<Digest128> chunks((bytes.size() + chunk_bytes - 1) / chunk_bytes);
  parallel.run(chunks.size(), [&](std::size_t chunk, std::size_t) {
    const std::size_t first = chunk * chunk_bytes;
    chunks[chunk] = hash_bytes(bytes.subspan(first, std::min(chunk_bytes, bytes.size() - first)));
  });
  return hash_bytes(std::as_bytes(std::span(chunks)));
}

}  // namespace headrace
