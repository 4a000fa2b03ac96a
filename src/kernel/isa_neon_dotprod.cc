// The kernels compiled for AArch64 machines with dot products of bytes. Flags: src/CMakeLists.txt.
#define HEADRACE_ISA neon_dotprod
#define HEADRACE_ISA_NEON
#define HEADRACE_ISA_NAME "neon_dotprod"
#include "kernel/table-inl.h"
