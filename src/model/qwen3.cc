// Architecture `qwen3`: Qwen 3, the dense ones. Each head of queries and keys is normed.
#include "model/architecture.h"

namespace headrace {

const Architecture qwen3_architecture = {
    .name = "qwen3", .rope_pairs = RopePairs::halves, .head_norms = true};

}  // namespace headrace
