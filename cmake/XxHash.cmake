# Imported target `xxhash`: Debian's package brings no CMake configuration.

find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
find_library(XXHASH_LIBRARY xxhash REQUIRED)
mark_as_advanced(XXHASH_INCLUDE_DIR XXHASH_LIBRARY)

add_library(xxhash UNKNOWN IMPORTED)
set_target_properties(
  xxhash
  PROPERTIES IMPORTED_LOCATION ${XXHASH_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${XXHASH_INCLUDE_DIR}
)
