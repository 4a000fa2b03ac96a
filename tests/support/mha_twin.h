// The MHA twin of a model with grouped heads: every query head gets its own copy of the key and
// value head that its group shared. Same outputs, group-size times the KV. Works for every weight
// type, because rows are copied as they are.
#pragma once

#include <string>

#include "headrace/result.h"

namespace headrace::test {

/// Reads the GGUF at `path` and writes its twin to `twin_path`.
/// Errors: io, corrupt (not a GGUF file of architecture `llama`), unsupported (heads that differ by
/// layer).
Result<void> write_mha_twin(const std::string& path, const std::string& twin_path);

}  // namespace headrace::test
