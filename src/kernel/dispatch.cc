#include <cstdlib>
#include <cstring>
#include <string>

#include "base/check.h"
#include "kernel/kernels.h"

namespace headrace::kernel {

#if defined(__x86_64__)
namespace avx512 {
extern const KernelTable table;
}
namespace avx512bf16 {
const KernelTable& table();
}
namespace avx2 {
extern const KernelTable table;
}
#endif
namespace scalar {
extern const KernelTable table;
}

namespace {

struct Candidate {
  const KernelTable& (*table)();
  bool (*runs_here)();
};

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

/// Best first.
const Candidate candidates[] = {
#if defined(__x86_64__)
    {avx512bf16::table, has_avx512bf16},
    {[]() -> const KernelTable& { return avx512::table; }, has_avx512},
    {[]() -> const KernelTable& { return avx2::table; }, has_avx2},
#endif
    {[]() -> const KernelTable& { return scalar::table; }, [] { return true; }},
};

const KernelTable& choose() {
  if (const char* forced = std::getenv("HEADRACE_FORCE_ISA");
      forced != nullptr && *forced != '\0') {
    const KernelTable* table = find_kernels(forced);
    HEADRACE_CHECK(table != nullptr,
                   "HEADRACE_FORCE_ISA names kernels that cannot run here; use scalar, avx2, "
                   "avx512 or avx512bf16");
    return *table;
  }
  for (const Candidate& candidate : candidates) {
    if (candidate.runs_here()) return candidate.table();
  }
  return scalar::table;
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& chosen = choose();
  return chosen;
}

const KernelTable* find_kernels(const char* name) {
  for (const Candidate& candidate : candidates) {
    const KernelTable& table = candidate.table();
    if (std::strcmp(table.name, name) == 0) return candidate.runs_here() ? &table : nullptr;
  }
  return nullptr;
}

void fold_reset(float* state, std::uint32_t head_dim) {
  for (std::size_t i = 0; i < fold_state_floats(head_dim); ++i) state[i] = 0.0F;
  state[0] = -__builtin_inff();
}

}  // namespace headrace::kernel
