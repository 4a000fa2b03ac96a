// Architecture `llama`: Llama 1 to 3, Mistral, SmolLM2. Pre-norm decoder with grouped-query
// attention, rotary positions on neighbouring pairs, and a SwiGLU feed-forward (Touvron et al.
// 2023).
#include "model/architecture.h"

namespace headrace {

const Architecture llama_architecture = {.name = "llama"};

}  // namespace headrace
