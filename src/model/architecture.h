// The parts that describe one architecture. Each is a short file; architecture.cc lists them.
#pragma once

#include "model/model.h"

namespace headrace {

/// How an architecture differs from Llama. decoder.cc reads keys and binds tensors accordingly.
struct Architecture {
  const char* name;  ///< general.architecture of the file, and the first part of its keys
  RopePairs rope_pairs = RopePairs::neighbours;
  Activation activation = Activation::silu;
  bool partial_rotation = false;  ///< a file may rotate the first dims of a head only
  bool head_norms = false;        ///< attn_q_norm, attn_k_norm
  bool post_norms = false;        ///< post_attention_norm, post_ffw_norm
  bool fused_gate_up = false;     ///< ffn_up holds the gate's rows, then its own
  /// Reads what else the architecture has into `shape`; null if there is nothing.
  Result<void> (*read_more)(const GgufFile& file, ModelShape& shape) = nullptr;
};

extern const Architecture llama_architecture;
extern const Architecture qwen2_architecture;
extern const Architecture qwen3_architecture;
extern const Architecture gemma3_architecture;
extern const Architecture phi3_architecture;
extern const Architecture granite_architecture;
extern const Architecture smollm3_architecture;

/// The keys that all architectures have. Errors: corrupt, unsupported.
Result<ModelShape> read_decoder_shape(const GgufFile& file, const Architecture& architecture);
/// The tensors of a model of that shape.
Result<Model> load_decoder(const GgufFile& file, const Architecture& architecture,
                           const ModelShape& shape, std::uint32_t context);

// Helpers for architecture files.

/// Finds a matrix of that shape. Errors: corrupt (missing, other shape), unsupported (a type that
/// cannot be read).
Result<kernel::WeightMatrix> bind_matrix(const GgufFile& file, const std::string& name,
                                         std::uint64_t width, std::uint64_t outputs);
/// bind_matrix() of `name`.weight with `name`.bias where there is one.
Result<Linear> bind_linear(const GgufFile& file, const std::string& name, std::uint64_t width,
                           std::uint64_t outputs);
/// Rows [first, first + outputs) of a matrix and of its bias.
Linear rows_of(const Linear& linear, std::uint32_t first, std::uint32_t outputs);
/// Finds an f32 vector; null if it is missing and not `required`.
Result<const float*> bind_vector(const GgufFile& file, const std::string& name, std::uint64_t width,
                                 bool required);
/// Frequencies of `dims` rotated dims from the file's base, scaling and factor tensors.
Result<RopeSpec> read_rope(const GgufFile& file, const std::string& prefix, std::uint32_t dims,
                           std::uint32_t trained_context, std::uint32_t context);
/// Those of layers with a window: a base of their own, and no scaling.
Result<RopeSpec> read_window_rope(const GgufFile& file, const std::string& prefix,
                                  std::uint32_t dims);
/// What the kernels need of a geometry, whatever the architecture.
Result<void> check_shape(const GgufFile& file, const ModelShape& shape);

}  // namespace headrace
