# Imported target `sodium`: Debian's package brings no CMake configuration.

find_path(SODIUM_INCLUDE_DIR sodium.h REQUIRED)
find_library(SODIUM_LIBRARY sodium REQUIRED)
mark_as_advanced(SODIUM_INCLUDE_DIR SODIUM_LIBRARY)

add_library(sodium UNKNOWN IMPORTED)
set_target_properties(
  sodium
  PROPERTIES IMPORTED_LOCATION ${SODIUM_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${SODIUM_INCLUDE_DIR}
)
