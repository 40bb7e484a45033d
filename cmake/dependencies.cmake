# Libraries from Debian packages, which deploy/setup/install.sh installs.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)             # status, strings, time; gRPC uses them too
# Messages. A current gRPC uses the targets of protobuf's own CMake package, which Debian 12 does not have.
find_package(protobuf CONFIG QUIET)
if(NOT protobuf_FOUND)
  find_package(Protobuf REQUIRED)
endif()
find_package(gRPC CONFIG REQUIRED)      # the rollout and weight services
find_package(OpenSSL 3 REQUIRED)        # certificates, behind common/rpc/tls_directory.h
find_package(yaml-cpp REQUIRED)         # run files, with line numbers for error messages
find_package(nlohmann_json REQUIRED)    # JSON lines, config.json
find_package(CLI11 REQUIRED)            # command lines
find_package(spdlog REQUIRED)           # log sinks and rotation, behind common/base/log.h
find_package(prometheus-cpp REQUIRED)   # counters and their text form, behind common/observe/metrics.h
find_package(civetweb REQUIRED)         # HTTP, behind common/observe/observe_server.h
find_package(CURL REQUIRED)            # HTTP to reward services and judges: connections, TLS and proxies are not ours to write
find_package(SQLite3 REQUIRED)         # answers of judges that a resumed run need not pay for again: one file, safe in a crash
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)   # XXH3-128, fast enough for the digests of every push
find_library(XXHASH_LIBRARY xxhash REQUIRED)
add_library(xxhash::xxhash INTERFACE IMPORTED)
target_include_directories(xxhash::xxhash INTERFACE ${XXHASH_INCLUDE_DIR})
target_link_libraries(xxhash::xxhash INTERFACE ${XXHASH_LIBRARY})
# Servers of HTTP, behind common/http/http_server.h: of Debian's libraries the one that is asynchronous, speaks TLS with
# client certificates, and whose limits on headers, bodies and times are options.
find_path(BOOST_BEAST_INCLUDE_DIR boost/beast/http.hpp REQUIRED)
add_library(boost_asio INTERFACE IMPORTED)
target_include_directories(boost_asio SYSTEM INTERFACE ${BOOST_BEAST_INCLUDE_DIR})
target_compile_definitions(boost_asio INTERFACE BOOST_ASIO_NO_DEPRECATED BOOST_ERROR_CODE_HEADER_ONLY)
if(TANDEM_SANITIZER STREQUAL "thread")
  # TSan knows no fences. They order what Asio's locks order too.
  target_compile_definitions(boost_asio INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()
find_path(BOOST_MATH_INCLUDE_DIR boost/math/distributions.hpp REQUIRED)  # quantiles of the t and beta distributions
