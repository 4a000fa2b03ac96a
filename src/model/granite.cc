// Architecture `granite`: Granite 3, the dense ones. Llama with a factor on embeddings, scores,
// residuals and logits.
#include "model/architecture.h"

namespace headrace {
namespace {

Result<void> read_more(const GgufFile& file, ModelShape& shape) {
  HEADRACE_TRY_ASSIGN(const float divisor, file.require_float("granite.logit_scale"));
  if (!(divisor > 0.0F)) {
    return Error{ErrorCode::corrupt,
                 "'" + file.path() + "': 'granite.logit_scale' is not positive"};
  }
  shape.logit_scale = 1.0F / divisor;
  // In the other three 0 means that there is none.
  HEADRACE_TRY_ASSIGN(const auto embedding, file.get_float("granite.embedding_scale"));
  if (embedding.value_or(0.0) != 0.0) shape.embedding_scale = static_cast<float>(*embedding);
  HEADRACE_TRY_ASSIGN(const auto residual, file.get_float("granite.residual_scale"));
  if (residual.value_or(0.0) != 0.0) shape.residual_scale = static_cast<float>(*residual);
  HEADRACE_TRY_ASSIGN(const auto attention, file.get_float("granite.attention.scale"));
  shape.attention_scale = attention.value_or(0.0);
  // This key turns rope off altogether.
  HEADRACE_TRY_ASSIGN(const auto has_rope, file.get_bool("granite.rope.scaling.finetuned"));
  if (!has_rope.value_or(true)) shape.unrotated_step = 1;
  return {};
}

}  // namespace

const Architecture granite_architecture = {.name = "granite", .read_more = read_more};

}  // namespace headrace
