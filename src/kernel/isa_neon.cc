// The kernels compiled for every AArch64 machine. Flags: src/CMakeLists.txt.
#define HEADRACE_ISA neon
#define HEADRACE_ISA_NEON
#define HEADRACE_ISA_NAME "neon"
#include "kernel/table-inl.h"
