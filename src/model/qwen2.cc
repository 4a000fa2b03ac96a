// Architecture `qwen2`: Qwen 2 and 2.5. Llama with biases on queries, keys and values.
#include "model/architecture.h"

namespace headrace {

const Architecture qwen2_architecture = {.name = "qwen2", .rope_pairs = RopePairs::halves};

}  // namespace headrace
