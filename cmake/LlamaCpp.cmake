# Imported target `llama_cpp::llama_cpp`: llama.cpp's libraries, for GGUF files, weight types,
# vocabularies, chat templates and sampling.
#
# They are built once per machine, while configuring, and shared by all presets. The source is
#   1. HEADRACE_LLAMA_CPP_DIR, a local tree;
#   2. what tools/setup.sh has unpacked into build/deps;
#   3. upstream's repository, at the same commit.

set(HEADRACE_LLAMA_CPP_DIR "" CACHE PATH "A llama.cpp source tree to use")
set(
  HEADRACE_LLAMA_CPP_GIT_REPOSITORY
  "https://github.com/ggml-org/llama.cpp.git"
  CACHE STRING
  "Where llama.cpp is fetched from when there is no local source"
)
set(
  HEADRACE_LLAMA_CPP_GIT_TAG
  "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
  CACHE STRING
  "The commit that is fetched; the one that the pinned source distribution carries"
)
option(HEADRACE_LLAMA_BENCH "Also build llama-bench and llama-server, to measure against" OFF)

set(deps_dir ${PROJECT_SOURCE_DIR}/build/deps)
set(unpacked_dir ${deps_dir}/llama.cpp-0.3.36/src)

if(HEADRACE_LLAMA_CPP_DIR)
  set(source_dir ${HEADRACE_LLAMA_CPP_DIR})
elseif(EXISTS ${unpacked_dir}/CMakeLists.txt)
  set(source_dir ${unpacked_dir})
else()
  include(FetchContent)
  message(STATUS "llama.cpp: fetching ${HEADRACE_LLAMA_CPP_GIT_TAG}")
  FetchContent_Populate(
    llama_cpp
    GIT_REPOSITORY ${HEADRACE_LLAMA_CPP_GIT_REPOSITORY}
    GIT_TAG ${HEADRACE_LLAMA_CPP_GIT_TAG}
    GIT_PROGRESS ON
    SOURCE_DIR ${deps_dir}/llama.cpp-${HEADRACE_LLAMA_CPP_GIT_TAG}/src
    BINARY_DIR ${deps_dir}/llama.cpp-${HEADRACE_LLAMA_CPP_GIT_TAG}/fetch
    SUBBUILD_DIR ${deps_dir}/llama.cpp-${HEADRACE_LLAMA_CPP_GIT_TAG}/fetch
  )
  set(source_dir ${llama_cpp_SOURCE_DIR})
endif()
if(NOT EXISTS ${source_dir}/include/llama.h)
  message(FATAL_ERROR "HEADRACE_LLAMA_CPP_DIR=${source_dir} is not a llama.cpp source tree")
endif()

# One build folder per source, compiler and set of flags, so that changing one of them never meets
# objects of the other.
set(targets llama llama-common)
if(HEADRACE_LLAMA_BENCH)
  list(APPEND targets llama-bench llama-server)
endif()
if(HEADRACE_KERNELS_ONLY)
  set(targets ggml-base)
endif()
set(
  flags
  -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_C_COMPILER=${CMAKE_C_COMPILER}
  -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
  -DBUILD_SHARED_LIBS=OFF
  -DGGML_NATIVE=ON
  -DLLAMA_BUILD_COMMON=ON
  -DLLAMA_BUILD_TOOLS=ON
  -DLLAMA_BUILD_EXAMPLES=OFF
  -DLLAMA_BUILD_SERVER=OFF
  -DLLAMA_BUILD_TESTS=OFF
  -DLLAMA_CURL=OFF
  -DLLAMA_OPENSSL=OFF
  # Its warnings are not for us to read.
  -DCMAKE_C_FLAGS=-w
  -DCMAKE_CXX_FLAGS=-w
)
if(CMAKE_CROSSCOMPILING)
  list(
    APPEND flags
    -DCMAKE_TOOLCHAIN_FILE=${CMAKE_TOOLCHAIN_FILE}
    -DGGML_NATIVE=OFF
    -DGGML_OPENMP=OFF
  )
endif()
cmake_host_system_information(RESULT processor QUERY PROCESSOR_DESCRIPTION)
string(SHA1 key "${source_dir};${CMAKE_CXX_COMPILER_VERSION};${processor};${flags}")
string(SUBSTRING ${key} 0 12 key)
set(build_dir ${deps_dir}/llama.cpp-build-${key})
# Adds targets and leaves the objects of others alone, so it makes no folder of its own.
if(HEADRACE_LLAMA_BENCH)
  list(APPEND flags -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF)
endif()

file(LOCK ${build_dir}.lock TIMEOUT 1800)
list(JOIN targets "+" stamp)
set(stamp ${build_dir}/${stamp}.built)
if(NOT EXISTS ${stamp})
  list(JOIN targets ", " names)
  message(STATUS "llama.cpp: building ${names} once, which takes minutes: ${build_dir}")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -G ${CMAKE_GENERATOR} -S ${source_dir} -B ${build_dir} ${flags}
    OUTPUT_QUIET
    COMMAND_ERROR_IS_FATAL ANY
  )
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  execute_process(
    COMMAND ${CMAKE_COMMAND} --build ${build_dir} --parallel ${cores} --target ${targets}
    COMMAND_ERROR_IS_FATAL ANY
  )
  file(TOUCH ${stamp})
endif()
file(LOCK ${build_dir}.lock RELEASE)
message(STATUS "llama.cpp: ${build_dir}")

find_package(Threads REQUIRED)
add_library(llama_cpp::llama_cpp INTERFACE IMPORTED)
target_include_directories(
  llama_cpp::llama_cpp
  INTERFACE
    ${source_dir}/include
    ${source_dir}/ggml/include
    ${source_dir}/common
    ${source_dir}/vendor
)
if(HEADRACE_KERNELS_ONLY)
  target_link_libraries(
    llama_cpp::llama_cpp
    INTERFACE ${build_dir}/ggml/src/libggml-base.a Threads::Threads m
  )
  return()
endif()

find_package(OpenMP REQUIRED COMPONENTS CXX)
# In the order in which a linker needs them.
target_link_libraries(
  llama_cpp::llama_cpp
  INTERFACE
    ${build_dir}/common/libllama-common.a
    ${build_dir}/common/libllama-common-base.a
    ${build_dir}/vendor/cpp-httplib/libcpp-httplib.a
    ${build_dir}/src/libllama.a
    ${build_dir}/ggml/src/libggml.a
    ${build_dir}/ggml/src/libggml-cpu.a
    ${build_dir}/ggml/src/libggml-base.a
    ${OpenMP_CXX_LIBRARIES}
    Threads::Threads
    ${CMAKE_DL_LIBS}
    m
)
if(HEADRACE_LLAMA_BENCH)
  foreach(peer llama-bench llama-server)
    file(CREATE_LINK ${build_dir}/bin/${peer} ${PROJECT_BINARY_DIR}/${peer} SYMBOLIC)
  endforeach()
endif()
