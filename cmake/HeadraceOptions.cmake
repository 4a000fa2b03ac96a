# Options of the build and `headrace_settings`, the compile settings that every target of ours has.

option(HEADRACE_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(HEADRACE_KERNELS_ONLY "Build the kernels and what they use, for another processor" OFF)
option(HEADRACE_WERROR "Warnings are errors" OFF)
set(HEADRACE_SANITIZE "" CACHE STRING "Sanitizers: 'address,undefined' or 'thread'")
set(
  HEADRACE_TEST_MODEL
  ${PROJECT_SOURCE_DIR}/build/models/SmolLM2-135M-Instruct.Q4_1.gguf
  CACHE FILEPATH
  "The model that tests read; tools/setup.sh puts it there"
)
set(
  HEADRACE_TEST_GEMMA
  ${PROJECT_SOURCE_DIR}/build/models/gemma-3-270m-q4_k_m.gguf
  CACHE FILEPATH
  "A model with windows that tests read; tools/setup.sh gemma puts it there"
)

if(NOT CMAKE_CONFIGURATION_TYPES AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(HEADRACE_CCACHE ccache)
mark_as_advanced(HEADRACE_CCACHE)
if(HEADRACE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${HEADRACE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HEADRACE_CCACHE})
endif()

add_library(headrace_settings INTERFACE)
target_compile_options(
  headrace_settings
  INTERFACE
    -Wall
    -Wextra
    -Wshadow
    -Wconversion
    -Wold-style-cast
    # Row invariance must not depend on which expressions a compiler contracts; kernels that want a
    # fused multiply-add say so.
    -ffp-contract=off
    # GCC leaves sign conversions out of -Wconversion, clang does not: treat both alike.
    $<$<CXX_COMPILER_ID:Clang,AppleClang>:-Wthread-safety;-Wno-sign-conversion>
    # False alarms about std::string, GCC bug 105651.
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
    $<$<BOOL:${HEADRACE_WERROR}>:-Werror>
)

if(CMAKE_CROSSCOMPILING)
  # Tests cannot start themselves anew under an emulator: see src/kernel/kernel_test.h.
  target_compile_definitions(headrace_settings INTERFACE HEADRACE_EMULATED)
endif()

if(HEADRACE_SANITIZE)
  set(sanitizer_flags -fsanitize=${HEADRACE_SANITIZE} -fno-sanitize-recover=all)
  # More than lines in debug information and more than the first level of optimisation make the
  # kernels take three times as long to compile, under a sanitizer.
  target_compile_options(
    headrace_settings
    INTERFACE ${sanitizer_flags} -fno-omit-frame-pointer -O1 -g1
  )
  target_link_options(headrace_settings INTERFACE ${sanitizer_flags})
endif()
