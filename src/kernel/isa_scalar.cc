// The kernels compiled for scalar. Flags: src/CMakeLists.txt.
#define HEADRACE_ISA scalar
#define HEADRACE_ISA_SCALAR
#define HEADRACE_ISA_NAME "scalar"
#include "kernel/table-inl.h"
