// The kernels compiled for avx2. Flags: src/CMakeLists.txt.
#define HEADRACE_ISA avx2
#define HEADRACE_ISA_AVX2
#define HEADRACE_ISA_NAME "avx2"
#include "kernel/table-inl.h"
