// The kernels of avx512, with a fold (and a peak) that has the machine's bf16 dot product. Flags:
// src/CMakeLists.txt.
#define HEADRACE_ISA avx512bf16
#define HEADRACE_ISA_AVX512
#define HEADRACE_ISA_BF16

// clang-format off: the kernels come in the order in which they use each other.
#include "kernel/kernels.h"
#include "kernel/simd.h"

#include "kernel/kv_common-inl.h"
#include "kernel/kv_float-inl.h"
#include "kernel/kv_bf16-inl.h"
#include "kernel/kv_i16-inl.h"
#include "kernel/kv_q8-inl.h"
#include "kernel/fold-inl.h"
#include "kernel/peak-inl.h"
// clang-format on

namespace headrace::kernel {

namespace avx512 {
extern const KernelTable table;
}

namespace avx512bf16 {

const KernelTable& table();
const KernelTable& table() {
  static const KernelTable with_bf16 = [] {
    KernelTable result = avx512::table;
    result.name = "avx512bf16";
    result.store_kv = store_kv;
    result.prepare_query = prepare_query;
    result.fold_page = fold_page;
    result.fold_groups = fold_groups;
    result.ask_for_groups = ask_for_groups;
    result.fold_merge = fold_merge;
    result.fold_finish = fold_finish;
    result.int8_peak = int8_peak;
    result.bf16_peak = bf16_peak;
    result.sum_floats = sum_floats;
    return result;
  }();
  return with_bf16;
}

}  // namespace avx512bf16
}  // namespace headrace::kernel
