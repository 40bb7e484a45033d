# The tokenizer crate (common/tokenizer/ffi) as one static library with a C ABI.
find_program(CARGO cargo HINTS ${PROJECT_SOURCE_DIR}/.deps/cargo/bin $ENV{HOME}/.cargo/bin REQUIRED)
set(TANDEM_RUST_DIR ${PROJECT_SOURCE_DIR}/common/tokenizer/ffi)
# All presets share it, because the crate does not depend on them and takes a minute to build.
set(TANDEM_RUST_TARGET ${PROJECT_SOURCE_DIR}/build/rust)
set(TANDEM_RUST_LIB ${TANDEM_RUST_TARGET}/release/libtandem_tokenizer.a)
file(GLOB TANDEM_RUST_SOURCES CONFIGURE_DEPENDS ${TANDEM_RUST_DIR}/src/*.rs)
add_custom_command(
  OUTPUT ${TANDEM_RUST_LIB}
  COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${TANDEM_RUST_TARGET}
          ${CARGO} build --release --locked --quiet --manifest-path ${TANDEM_RUST_DIR}/Cargo.toml
  DEPENDS ${TANDEM_RUST_SOURCES} ${TANDEM_RUST_DIR}/Cargo.toml ${TANDEM_RUST_DIR}/Cargo.lock
  COMMENT "Building the tokenizer crate" USES_TERMINAL)
add_custom_target(tandem_rust_build DEPENDS ${TANDEM_RUST_LIB})
add_library(tandem_rust INTERFACE)
add_dependencies(tandem_rust tandem_rust_build)
target_link_libraries(tandem_rust INTERFACE ${TANDEM_RUST_LIB} Threads::Threads dl m)
