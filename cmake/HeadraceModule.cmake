# One library per folder of src/, whose private links are the arrows between the layers.

if(HEADRACE_BUILD_TESTS)
  if(CMAKE_CROSSCOMPILING)
    # Debian's package of GoogleTest's source.
    set(INSTALL_GTEST OFF)
    set(BUILD_GMOCK OFF)
    add_subdirectory(/usr/src/googletest ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL SYSTEM)
  else()
    find_package(GTest REQUIRED)
  endif()
  include(GoogleTest)
endif()

# headrace_module(
#   NAME <folder> [DEPS <module>...] [LINK <target>...] [TEST_LINK <target>...] [EXCLUDE <regex>])
#
# Makes the static library headrace_<folder> (alias headrace::<folder>) from src/<folder>/*.cc and
# the test program <folder>_test from src/<folder>/*_test.cc. A main.cc is left to its program,
# names that match EXCLUDE are left out, and a folder without sources gives an empty library. Only
# the test program gets TEST_LINK.
function(headrace_module)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;EXCLUDE" "DEPS;LINK;TEST_LINK")
  set(target headrace_${arg_NAME})
  set(folder ${PROJECT_SOURCE_DIR}/src/${arg_NAME})

  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cc)
  set(test_sources ${sources})
  list(FILTER sources EXCLUDE REGEX "(_test|_bench|/main)\\.cc$")
  list(FILTER test_sources INCLUDE REGEX "_test\\.cc$")
  if(arg_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${arg_EXCLUDE}")
  endif()

  list(TRANSFORM arg_DEPS PREPEND headrace::)
  if(sources)
    add_library(${target} STATIC ${sources})
    target_include_directories(
      ${target}
      PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include
    )
    target_link_libraries(${target} PRIVATE headrace_settings ${arg_DEPS} ${arg_LINK})
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${arg_DEPS} ${arg_LINK})
  endif()
  add_library(headrace::${arg_NAME} ALIAS ${target})
  set_property(GLOBAL APPEND PROPERTY HEADRACE_MODULES headrace::${arg_NAME})

  if(HEADRACE_BUILD_TESTS AND test_sources)
    headrace_test(
      NAME ${arg_NAME}_test
      LABEL unit
      TIMEOUT 120
      SOURCES ${test_sources}
      LINK ${target} ${arg_DEPS} ${arg_LINK} ${arg_TEST_LINK}
    )
  endif()
endfunction()

# headrace_test(NAME <program> LABEL <label> TIMEOUT <seconds> SOURCES <file>... LINK <target>...)
#
# One GoogleTest program, each of whose tests is a ctest test. Tests find the models and the command
# in HEADRACE_TEST_MODEL, HEADRACE_TEST_GEMMA and HEADRACE_BINARY.
function(headrace_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;LABEL;TIMEOUT" "SOURCES;LINK")
  add_executable(${arg_NAME} ${arg_SOURCES})
  target_include_directories(
    ${arg_NAME}
    PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include
  )
  target_link_libraries(${arg_NAME} PRIVATE headrace_settings ${arg_LINK} GTest::gtest_main)
  if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    # What is tested is optimised; tests are compiled more often than they run.
    set(level -O1)
    if(HEADRACE_SANITIZE)
      set(level -O0)
    endif()
    target_compile_options(${arg_NAME} PRIVATE ${level} -g1)
  endif()
  gtest_discover_tests(
    ${arg_NAME}
    DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60
    PROPERTIES
      LABELS ${arg_LABEL}
      TIMEOUT ${arg_TIMEOUT}
      # A property each, because a list in one does not survive gtest_discover_tests().
      ENVIRONMENT "HEADRACE_TEST_MODEL=${HEADRACE_TEST_MODEL}"
      ENVIRONMENT_MODIFICATION "HEADRACE_TEST_GEMMA=set:${HEADRACE_TEST_GEMMA}"
      ENVIRONMENT_MODIFICATION "HEADRACE_BINARY=set:${PROJECT_BINARY_DIR}/headrace"
  )
endfunction()
