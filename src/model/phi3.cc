// Architecture `phi3`: Phi 3, 3.5 and 4. Queries, keys and values are one tensor, gate and up are
// another; rope has factors for short and for long contexts. A window that the file names is not
// applied, as in llama.cpp, because the conversion script does not say which layers have it.
#include "model/architecture.h"

namespace headrace {

const Architecture phi3_architecture = {.name = "phi3",
                                        .rope_pairs = RopePairs::halves,
                                        .partial_rotation = true,
                                        .fused_gate_up = true};

}  // namespace headrace
