// The parts that describe one architecture. Each is a short file; architecture.cc lists them.
#pragma once

#include "model/model.h"

namespace headrace {

struct Architecture {
  const char* name;  ///< general.architecture of the file
  Result<ModelShape> (*read_shape)(const GgufFile& file);
  Result<Model> (*load)(const GgufFile& file, const ModelShape& shape);
};

/// Llama 1 to 3, Mistral, SmolLM2 and others that share their graph (llama.cc).
extern const Architecture llama_architecture;

// Helpers for architecture files.

/// Finds a matrix of that shape. Errors: corrupt (missing, other shape), unsupported (a type that
/// cannot be read).
Result<kernel::WeightMatrix> bind_matrix(const GgufFile& file, const std::string& name,
                                         std::uint64_t width, std::uint64_t outputs);
/// bind_matrix() of `name`.weight with `name`.bias where there is one.
Result<Linear> bind_linear(const GgufFile& file, const std::string& name, std::uint64_t width,
                           std::uint64_t outputs);
/// Finds an f32 vector; null if it is missing and not `required`.
Result<const float*> bind_vector(const GgufFile& file, const std::string& name, std::uint64_t width,
                                 bool required);
/// Frequencies of `dims` rotated dims from the file's base, scaling and factor tensor.
Result<RopeSpec> read_rope(const GgufFile& file, const std::string& prefix, std::uint32_t dims,
                           std::uint32_t trained_context);
/// What the kernels need of a geometry, whatever the architecture.
Result<void> check_shape(const GgufFile& file, const ModelShape& shape);

}  // namespace headrace
