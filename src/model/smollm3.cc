// Architecture `smollm3`: Llama whose every fourth layer knows no positions.
#include "model/architecture.h"

namespace headrace {
namespace {

Result<void> read_more(const GgufFile& /*file*/, ModelShape& shape) {
  shape.unrotated_step = 4;
  return {};
}

}  // namespace

const Architecture smollm3_architecture = {.name = "smollm3", .read_more = read_more};

}  // namespace headrace
