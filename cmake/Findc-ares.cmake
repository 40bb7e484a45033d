# Finds c-ares for gRPC's CMake package. The search in that package says "Could NOT find c-ares" before it finds it, because
# the c-ares of Debian 12 has no CMake package. This module comes first in CMAKE_MODULE_PATH, searches in the same places
# in the same order, and reports only a library that is missing.
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
