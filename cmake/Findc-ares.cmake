# c-ares for gRPC's package file, which has a search of its own: that one says "Could NOT find c-ares" and then finds it,
# because the c-ares of Debian 12 is a library without a CMake package. This comes first in CMAKE_MODULE_PATH, looks in the
# same places in the same order, and complains only where there is none.
include(FindPackageHandleStandardArgs)
find_package(c-ares CONFIG QUIET)
if(c-ares_FOUND)
  find_package_handle_standard_args(c-ares CONFIG_MODE)
  return()
endif()
find_path(c-ares_INCLUDE_DIR NAMES ares.h)
find_library(c-ares_LIBRARY NAMES cares)
find_package_handle_standard_args(c-ares REQUIRED_VARS c-ares_LIBRARY c-ares_INCLUDE_DIR)
if(c-ares_FOUND AND NOT TARGET c-ares::cares)
  add_library(c-ares::cares UNKNOWN IMPORTED)
  set_target_properties(c-ares::cares PROPERTIES
    IMPORTED_LOCATION "${c-ares_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${c-ares_INCLUDE_DIR}")
endif()
