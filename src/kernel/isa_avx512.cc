// The kernels compiled for avx512. Flags: src/CMakeLists.txt.
#define HEADRACE_ISA avx512
#define HEADRACE_ISA_AVX512
#define HEADRACE_ISA_NAME "avx512"
#include "kernel/table-inl.h"
