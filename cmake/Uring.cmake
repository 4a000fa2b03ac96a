# Imported target `uring`: Debian's package brings no CMake configuration.

find_path(URING_INCLUDE_DIR liburing.h REQUIRED)
find_library(URING_LIBRARY uring REQUIRED)
mark_as_advanced(URING_INCLUDE_DIR URING_LIBRARY)

add_library(uring UNKNOWN IMPORTED)
set_target_properties(
  uring
  PROPERTIES IMPORTED_LOCATION ${URING_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${URING_INCLUDE_DIR}
)
