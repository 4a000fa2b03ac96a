# Imported target `xxhash`: Debian's package brings no CMake configuration.

if(CMAKE_CROSSCOMPILING)
  # There is no library for the other processor; the header of this one has the code as well.
  find_file(XXHASH_HEADER xxhash.h PATHS /usr/include NO_CMAKE_FIND_ROOT_PATH REQUIRED)
  mark_as_advanced(XXHASH_HEADER)
  configure_file(${XXHASH_HEADER} ${PROJECT_BINARY_DIR}/xxhash/xxhash.h COPYONLY)
  add_library(xxhash INTERFACE IMPORTED)
  target_include_directories(xxhash INTERFACE ${PROJECT_BINARY_DIR}/xxhash)
  target_compile_definitions(xxhash INTERFACE XXH_INLINE_ALL)
  return()
endif()

find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
find_library(XXHASH_LIBRARY xxhash REQUIRED)
mark_as_advanced(XXHASH_INCLUDE_DIR XXHASH_LIBRARY)

add_library(xxhash UNKNOWN IMPORTED)
set_target_properties(
  xxhash
  PROPERTIES IMPORTED_LOCATION ${XXHASH_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${XXHASH_INCLUDE_DIR}
)
