// The f32 twin of a quantised model: the same weights, written out in full. Run with it, neither
// side rounds activations to 8 bits, so it gives what the quantised file means without the noise
// that both sides make on their way.
#pragma once

#include <string>

#include "headrace/result.h"

namespace headrace::test {

/// Reads the GGUF at `path` and writes its twin to `twin_path` (4 bytes a weight).
/// Errors: io, corrupt (not a GGUF file).
Result<void> write_f32_twin(const std::string& path, const std::string& twin_path);

}  // namespace headrace::test
