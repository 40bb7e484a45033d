# tandem_library / tandem_binary / tandem_test: every target of the project is declared through
# these, so that warnings, includes and labels are the same everywhere.

set(TANDEM_SANITIZER "" CACHE STRING "address (with undefined), thread, fuzzer (clang), or empty")
option(TANDEM_WERROR "Warnings are errors" ON)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(tandem_flags INTERFACE)
# -Wrestrict has a false positive in gcc 12's std::string concatenation (its bug 105651), and
# -Wmaybe-uninitialized in std::optional and std::variant (its bug 80635).
target_compile_options(tandem_flags INTERFACE
  -Wall -Wextra -Wno-missing-field-initializers -fstack-protector-strong
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-maybe-uninitialized>
  $<$<CXX_COMPILER_ID:Clang>:-Wno-missing-braces>)
if(TANDEM_WERROR)
  target_compile_options(tandem_flags INTERFACE -Werror)
endif()
if(TANDEM_SANITIZER STREQUAL "address")
  target_compile_options(tandem_flags INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer)
  target_link_options(tandem_flags INTERFACE -fsanitize=address,undefined)
elseif(TANDEM_SANITIZER STREQUAL "fuzzer")
  set(fuzz_flags -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined)
  target_compile_options(tandem_flags INTERFACE ${fuzz_flags} -fno-omit-frame-pointer)
  target_link_options(tandem_flags INTERFACE ${fuzz_flags})
elseif(TANDEM_SANITIZER STREQUAL "thread")
  target_compile_options(tandem_flags INTERFACE -fsanitize=thread)
  target_link_options(tandem_flags INTERFACE -fsanitize=thread)
endif()
target_include_directories(tandem_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_link_options(tandem_flags INTERFACE -Wl,-z,relro,-z,now)

# What programs are made of, and not tests: calls of libc with a known size are checked. Not under sanitizers,
# which check more, and not without optimisation, where it does nothing.
set(TANDEM_FORTIFY "")
if(TANDEM_SANITIZER STREQUAL "")
  set(TANDEM_FORTIFY $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE> $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
endif()

# tandem_library(NAME <name> [HDRS ...] [SRCS ...] [DEPS ...] [TORCH] [CUDA])
# Makes tandem::<name>. Includes are from the top folder ("trainer/loss/policy_loss.h"). DEPS lists every
# library whose headers the target includes. TORCH links LibTorch, PRIVATE and behind -idirafter
# (its include directory carries foreign protobuf and fmt headers). CUDA links its CUDA half too.
function(tandem_library)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "TORCH;CUDA" "NAME" "HDRS;SRCS;DEPS")
  if(ARG_UNPARSED_ARGUMENTS OR NOT ARG_NAME)
    message(FATAL_ERROR "tandem_library(${ARG_NAME}): ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if(ARG_SRCS)
    add_library(tandem_${ARG_NAME} STATIC ${ARG_SRCS} ${ARG_HDRS})
    target_link_libraries(tandem_${ARG_NAME} PUBLIC tandem_flags ${ARG_DEPS})
    target_compile_options(tandem_${ARG_NAME} PRIVATE ${TANDEM_FORTIFY})
    if(ARG_TORCH)
      target_link_libraries(tandem_${ARG_NAME} PRIVATE torch::cpu)
    endif()
    if(ARG_CUDA)
      target_link_libraries(tandem_${ARG_NAME} PRIVATE torch::cuda)
    endif()
  else()
    add_library(tandem_${ARG_NAME} INTERFACE ${ARG_HDRS})
    target_link_libraries(tandem_${ARG_NAME} INTERFACE tandem_flags ${ARG_DEPS})
  endif()
  add_library(tandem::${ARG_NAME} ALIAS tandem_${ARG_NAME})
endfunction()

# What is built without naming tests: `cmake --build ... --target tandem_binaries`.
add_custom_target(tandem_binaries)
# What the sanitizer runs of .ci/run build and run: tests with the label of the same name.
add_custom_target(tandem_asan_tests)
add_custom_target(tandem_tsan_tests)

# tandem_binary(NAME <name> SRCS ... DEPS ... [TORCH]): a program in build/<preset>/bin.
function(tandem_binary)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "TORCH" "NAME" "SRCS;DEPS")
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE tandem_flags ${ARG_DEPS})
  target_compile_options(${ARG_NAME} PRIVATE ${TANDEM_FORTIFY})
  if(ARG_TORCH)
    target_link_libraries(${ARG_NAME} PRIVATE torch::cpu)
  endif()
  add_dependencies(tandem_binaries ${ARG_NAME})
endfunction()

# After so long a test hangs. Far more than any takes, so that a machine that is busy fails none.
set(TANDEM_TEST_SECONDS 900)

# tandem_test(NAME <name> SRCS ... DEPS ... [TORCH] [CUDA] [WHOLE] [LABELS ...] [TIMEOUT s])
# One executable per test file. Each TEST is its own ctest case, found when ctest runs; with TORCH or
# WHOLE the executable is one case: a process that loads LibTorch takes half a second to start, so
# say WHOLE for every test whose DEPS link it. With TORCH the test file itself may include LibTorch.
# Labels: cpu (default; `make test`), full (only `make check-full`), gpu. asan or tsan beside cpu adds
# the test to that sanitizer run of .ci/run (tsan: only what links neither LibTorch nor gRPC).
function(tandem_test)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "TORCH;CUDA;WHOLE" "NAME;TIMEOUT" "SRCS;DEPS;LABELS")
  if(ARG_UNPARSED_ARGUMENTS OR NOT ARG_NAME)
    message(FATAL_ERROR "tandem_test(${ARG_NAME}): ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT ${TANDEM_TEST_SECONDS})
  endif()
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE tandem_flags ${ARG_DEPS} GTest::gmock GTest::gmock_main)
  target_compile_definitions(${ARG_NAME} PRIVATE
    TANDEM_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TANDEM_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
    TANDEM_PYTHON="${TANDEM_VENV}/bin/python")
  if(ARG_TORCH)
    target_link_libraries(${ARG_NAME} PRIVATE torch::cpu)
  endif()
  if(ARG_CUDA)
    target_link_libraries(${ARG_NAME} PRIVATE torch::cuda)
  endif()
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  foreach(sanitizer IN ITEMS asan tsan)
    if(sanitizer IN_LIST ARG_LABELS)
      add_dependencies(tandem_${sanitizer}_tests ${ARG_NAME})
    endif()
  endforeach()
  # One label such as cpu+asan: gtest_discover_tests cannot pass a list on. ctest -L asan finds it.
  string(JOIN "+" labels ${ARG_LABELS})
  if(ARG_TORCH OR ARG_WHOLE)
    add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME})
    set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${labels}" TIMEOUT ${ARG_TIMEOUT}
                         ENVIRONMENT "OMP_WAIT_POLICY=passive;GOMP_SPINCOUNT=0")
  else()
    gtest_discover_tests(${ARG_NAME} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                         PROPERTIES LABELS "${labels}" TIMEOUT ${ARG_TIMEOUT})
  endif()
endfunction()

# tandem_python_test(NAME <name> SCRIPT <file> [LABELS ...] [TIMEOUT s]): a pytest file run with the
# project's venv, one ctest case. TANDEM_BIN and TANDEM_SOURCE tell it where things are.
function(tandem_python_test)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "" "NAME;SCRIPT;TIMEOUT" "LABELS")
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT ${TANDEM_TEST_SECONDS})
  endif()
  add_test(NAME ${ARG_NAME}
           COMMAND ${TANDEM_VENV}/bin/python -m pytest -q -x -p no:cacheprovider
                   ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SCRIPT})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "TANDEM_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};TANDEM_SOURCE=${PROJECT_SOURCE_DIR};PYTHONDONTWRITEBYTECODE=1;OMP_WAIT_POLICY=passive")
endfunction()
