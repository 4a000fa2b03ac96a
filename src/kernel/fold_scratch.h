// What kernel::fold_page and fold_groups leave in their scratch memory, for those who want to know
// what each token was given.
#pragma once

#include "headrace/types.h"

namespace headrace::kernel {

/// [vector][page.tokens] of the tokens that were read, and to the end of their tile of 16: weights
/// 2^(score - maximum) if this is true, else scores, which are -infinity where nothing was read.
/// fold_page leaves them at the tokens' places, fold_groups one group after the other.
constexpr bool fold_leaves_weights(KvType type) {
  return type == KvType::f32 || type == KvType::f16 || type == KvType::q8;
}

}  // namespace headrace::kernel
