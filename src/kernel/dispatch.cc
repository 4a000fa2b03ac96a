#include <cstdlib>
#include <cstring>
#include <string>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

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
#elif defined(__aarch64__)
namespace neon_dotprod {
extern const KernelTable table;
}
namespace neon {
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
#elif defined(__aarch64__)
bool has_dotprod() { return (::getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#endif

/// Best first.
const Candidate candidates[] = {
#if defined(__x86_64__)
    {avx512bf16::table, has_avx512bf16},
    {[]() -> const KernelTable& { return avx512::table; }, has_avx512},
    {[]() -> const KernelTable& { return avx2::table; }, has_avx2},
#elif defined(__aarch64__)
    {[]() -> const KernelTable& { return neon_dotprod::table; }, has_dotprod},
    {[]() -> const KernelTable& { return neon::table; }, [] { return true; }},
#endif
    {[]() -> const KernelTable& { return scalar::table; }, [] { return true; }},
};

/// The name in HEADRACE_FORCE_ISA, or null if none is forced.
const char* forced_name() {
  const char* name = std::getenv("HEADRACE_FORCE_ISA");
  return name != nullptr && *name != '\0' ? name : nullptr;
}

const KernelTable& choose() {
  if (const char* forced = forced_name()) {
    const KernelTable* table = find_kernels(forced);
    HEADRACE_CHECK(table != nullptr, "HEADRACE_FORCE_ISA was not checked");
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

Result<void> check_forced_kernels() {
  const char* forced = forced_name();
  if (forced == nullptr || find_kernels(forced) != nullptr) return {};
  std::string here;
  for (const KernelTable* table : tables_here()) {
    if (!here.empty()) here += ", ";
    here += table->name;
  }
  return Error{ErrorCode::invalid_argument, std::string("HEADRACE_FORCE_ISA is '") + forced +
                                                "', but the kernels of this machine are: " + here};
}

std::vector<const KernelTable*> tables_here() {
  std::vector<const KernelTable*> tables;
  for (const Candidate& candidate : candidates) {
    if (candidate.runs_here()) tables.push_back(&candidate.table());
  }
  return tables;
}

const KernelTable* find_kernels(const char* name) {
  for (const KernelTable* table : tables_here()) {
    if (std::strcmp(table->name, name) == 0) return table;
  }
  return nullptr;
}

void fold_reset(float* state, std::uint32_t head_dim) {
  for (std::size_t i = 0; i < fold_state_floats(head_dim); ++i) state[i] = 0.0F;
  state[0] = -__builtin_inff();
}

}  // namespace headrace::kernel
