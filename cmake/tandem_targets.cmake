# tandem_library, tandem_binary, tandem_tests and others. Every target of the project is declared with these functions, so
# that warnings, include directories and labels are the same everywhere.

set(TANDEM_SANITIZER "" CACHE STRING "address (with undefined), thread, fuzzer (clang), or empty")
option(TANDEM_WERROR "Warnings are errors" ON)

find_program(CCACHE ccache)
if(CCACHE)
  # The sloppiness is what ccache asks for to cache files with precompiled headers (libtorch.cmake). With
  # CCACHE_DEPEND, it reads the dependencies that the compiler writes, and does not run the preprocessor first.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 ${CCACHE})
endif()

add_library(tandem_flags INTERFACE)
if(TANDEM_SANITIZER)
  # Names and lines are all that the reports of sanitizers show. Debug info of variables would make the build slower.
  target_compile_options(tandem_flags INTERFACE -g1)
endif()
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
# --as-needed: a program loads only the shared libraries that its code calls, and not all libraries of its DEPS.
target_link_options(tandem_flags INTERFACE -Wl,-z,relro,-z,now -Wl,--as-needed)

# For programs and their libraries, but not for tests: calls of libc with a known size are checked. Not with sanitizers,
# which check more, and not without optimisation, where it has no effect.
set(TANDEM_FORTIFY "")
if(TANDEM_SANITIZER STREQUAL "")
  set(TANDEM_FORTIFY $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE> $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
endif()

# Flags for code whose speed does not matter, which then compiles in two thirds of the time. -Warray-bounds and
# -Wstringop-overflow have the same false positive as -Wrestrict there.
set(TANDEM_LIGHT_OPTIMISATION $<$<NOT:$<CONFIG:Debug>>:-O1>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds> $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>)

if(TANDEM_SANITIZER STREQUAL "thread")
  # These tests wait for threads more than they compute.
  target_compile_options(tandem_flags INTERFACE ${TANDEM_LIGHT_OPTIMISATION})
endif()

# Tests are linked by gold where there is one, because it takes a quarter of the time of ld; programs by ld.
find_program(TANDEM_GOLD ld.gold)
set(TANDEM_TEST_LINKER "")
if(TANDEM_GOLD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU AND NOT TANDEM_CUDA AND NOT TANDEM_SANITIZER)
  set(TANDEM_TEST_LINKER -fuse-ld=gold)
endif()

# Unity builds: twelve files of a target compile as one, because most of the time goes to headers and templates of other
# libraries, which they share. So two files of a target must not define the same name, even in anonymous namespaces. The
# dev preset compiles each file alone, and finds files that depend on the includes of another.
option(TANDEM_UNITY "Compile files of a target together" ON)
function(tandem_unity target)
  if(TANDEM_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
    # In a unity build, gcc takes the .cc files for headers and warns about classes with members from anonymous namespaces.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# tandem_sources(OUT [FOLDERS ...] [EXCEPT ...] [SRCS ...]): sets OUT to the .cc files of the folders (without subfolders),
# except those of EXCEPT, and SRCS.
function(tandem_sources out)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "FOLDERS;EXCEPT;SRCS")
  set(found "")
  foreach(folder IN LISTS ARG_FOLDERS)
    cmake_path(ABSOLUTE_PATH folder NORMALIZE OUTPUT_VARIABLE folder)
    file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${folder}/*.cc)
    list(APPEND found ${sources})
  endforeach()
  foreach(source IN LISTS ARG_EXCEPT)
    if(NOT source IN_LIST found)
      message(FATAL_ERROR "${CMAKE_CURRENT_SOURCE_DIR}: EXCEPT ${source}: no such file in ${ARG_FOLDERS}")
    endif()
    list(REMOVE_ITEM found ${source})
  endforeach()
  set(${out} ${found} ${ARG_SRCS} PARENT_SCOPE)
endfunction()

# tandem_library(NAME <name> [FOLDERS ...] [EXCEPT ...] [SRCS ...] [DEPS ...] [TORCH] [CUDA] [LIGHT] [APART])
# Makes the library tandem::<name> of a folder, of a few related folders, or of a part of a folder that another library
# must not load. Include paths start at the top folder ("trainer/loss/policy_loss.h"), and
# tests/structure/include_rules_test.py checks which folder may include which. DEPS are the libraries to link, which also
# bring the include directories of external libraries. TORCH links LibTorch, PRIVATE and with -idirafter, because its
# include directory has other versions of the protobuf and fmt headers. CUDA also links its CUDA part. LIGHT is for code
# whose speed does not matter. APART compiles each file alone, so that what a kernel inlines, and with it its bits, does
# not depend on other files.
function(tandem_library)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "TORCH;CUDA;LIGHT;APART" "NAME" "FOLDERS;EXCEPT;SRCS;DEPS")
  if(ARG_UNPARSED_ARGUMENTS OR NOT ARG_NAME)
    message(FATAL_ERROR "tandem_library(${ARG_NAME}): ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  tandem_sources(sources FOLDERS ${ARG_FOLDERS} EXCEPT ${ARG_EXCEPT} SRCS ${ARG_SRCS})
  add_library(tandem_${ARG_NAME} STATIC ${sources})
  target_link_libraries(tandem_${ARG_NAME} PUBLIC tandem_flags ${ARG_DEPS})
  target_compile_options(tandem_${ARG_NAME} PRIVATE ${TANDEM_FORTIFY})
  if(ARG_TORCH)
    tandem_torch_headers(tandem_${ARG_NAME} libraries)
  endif()
  if(ARG_CUDA)
    target_link_libraries(tandem_${ARG_NAME} PRIVATE torch::cuda)
  endif()
  if(ARG_LIGHT)
    target_compile_options(tandem_${ARG_NAME} PRIVATE ${TANDEM_LIGHT_OPTIMISATION})
  endif()
  if(NOT ARG_APART)
    tandem_unity(tandem_${ARG_NAME})
  endif()
  add_library(tandem::${ARG_NAME} ALIAS tandem_${ARG_NAME})
endfunction()

# All programs without tests: `cmake --build ... --target tandem_binaries`.
add_custom_target(tandem_binaries)
# The tests that the sanitizer runs of .ci/run build and run: those with the label asan or tsan.
add_custom_target(tandem_asan_tests)
add_custom_target(tandem_tsan_tests)

# tandem_binary(NAME <name> SRCS ... DEPS ... [TORCH]): a program in build/<preset>/bin.
function(tandem_binary)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "TORCH" "NAME" "SRCS;DEPS")
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE tandem_flags ${ARG_DEPS})
  target_compile_options(${ARG_NAME} PRIVATE ${TANDEM_FORTIFY})
  if(ARG_TORCH)
    tandem_torch_headers(${ARG_NAME} libraries)
  endif()
  add_dependencies(tandem_binaries ${ARG_NAME})
endfunction()

# tandem_test_driver(NAME <name> SRCS ... DEPS ... [TORCH]): a program that Python tests
# start, in build/<preset>/tests.
function(tandem_test_driver)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "TORCH" "NAME" "SRCS;DEPS")
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE tandem_flags ${ARG_DEPS})
  target_compile_options(${ARG_NAME} PRIVATE ${TANDEM_LIGHT_OPTIMISATION})
  target_link_options(${ARG_NAME} PRIVATE ${TANDEM_TEST_LINKER})
  if(ARG_TORCH)
    tandem_torch_headers(${ARG_NAME} tests)
  endif()
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endfunction()

# A test that runs longer counts as hanging. tandem_test_timeout sets another limit.
set(TANDEM_TEST_SECONDS 60)
# Sanitizers make tests a few times slower.
if(NOT TANDEM_SANITIZER STREQUAL "")
  set(TANDEM_TEST_SECONDS 240)
endif()

# tandem_tests(NAME <name> [FOLDERS ...] [EXCEPT ...] [SRCS ...] [DEPS ...] [TORCH] [CUDA] [WHOLE] [APART] [LABELS ...]
#              [VARIANT word] [TIMEOUT s])
# Makes one program of the test files of one kind. Each TEST is a ctest case of its own, found when ctest runs. With WHOLE,
# each file is one case with the name of the file (x_test, or x_word_test with a VARIANT). This is for tests that are
# cheaper than a process (LibTorch takes half a second to load, a program with sanitizers a third; a model is written once
# per file). With TORCH, which implies WHOLE as sanitizers do, the files may include LibTorch. Labels: cpu (default;
# `make test`), full (only `make check-full`), gpu. In addition to cpu, asan and tsan add the tests to the sanitizer runs of
# .ci/run (tsan: only tests that link neither LibTorch nor gRPC).
function(tandem_tests)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "TORCH;CUDA;WHOLE;APART" "NAME;VARIANT;TIMEOUT"
                        "FOLDERS;EXCEPT;SRCS;DEPS;LABELS")
  if(ARG_UNPARSED_ARGUMENTS OR NOT ARG_NAME)
    message(FATAL_ERROR "tandem_tests(${ARG_NAME}): ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT ${TANDEM_TEST_SECONDS})
  endif()
  tandem_sources(sources FOLDERS ${ARG_FOLDERS} EXCEPT ${ARG_EXCEPT} SRCS ${ARG_SRCS})
  add_executable(${ARG_NAME} ${sources})
  target_link_libraries(${ARG_NAME} PRIVATE tandem_flags ${ARG_DEPS} tandem::test_main tandem::test_support
                        GTest::gmock)
  target_compile_definitions(${ARG_NAME} PRIVATE
    TANDEM_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TANDEM_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
    TANDEM_PYTHON="${TANDEM_VENV}/bin/python")
  target_compile_options(${ARG_NAME} PRIVATE ${TANDEM_LIGHT_OPTIMISATION})
  target_link_options(${ARG_NAME} PRIVATE ${TANDEM_TEST_LINKER})
  if(ARG_TORCH)
    tandem_torch_headers(${ARG_NAME} tests)
  endif()
  if(ARG_CUDA)
    target_link_libraries(${ARG_NAME} PRIVATE torch::cuda)
  endif()
  if(NOT ARG_APART)
    tandem_unity(${ARG_NAME})
  endif()
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  foreach(sanitizer IN ITEMS asan tsan)
    if(sanitizer IN_LIST ARG_LABELS)
      add_dependencies(tandem_${sanitizer}_tests ${ARG_NAME})
    endif()
  endforeach()
  # One label such as cpu+asan, because gtest_discover_tests cannot pass on a list. `ctest -L asan` matches it.
  string(JOIN "+" labels ${ARG_LABELS})
  if(ARG_TORCH OR ARG_WHOLE OR NOT TANDEM_SANITIZER STREQUAL "")
    foreach(source IN LISTS sources)
      if(source MATCHES "([^/]*)_test\\.cc$")
        set(file ${CMAKE_MATCH_1})
        string(JOIN "_" case ${file} ${ARG_VARIANT} test)
        tandem_test_case(NAME ${case} PROGRAM ${ARG_NAME} FILE ${file}_test.cc LABELS ${labels})
        tandem_test_timeout(${ARG_TIMEOUT} ${case})
      endif()
    endforeach()
  else()
    gtest_discover_tests(${ARG_NAME} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                         PROPERTIES LABELS "${labels}" TIMEOUT ${ARG_TIMEOUT})
  endif()
endfunction()

# The instruction sets of lesser machines, on which tests of kernels run again. Without AVX-512 the machine's own is AVX2.
set(TANDEM_LESSER_SETS scalar avx2)
file(READ /proc/cpuinfo cpuinfo LIMIT 8192)
if(NOT cpuinfo MATCHES " avx512f ")
  list(REMOVE_ITEM TANDEM_LESSER_SETS avx2)
endif()

# tandem_test_case(NAME <case> PROGRAM <name of tandem_tests> FILE <file>_test.cc [LABELS ...] [ENVIRONMENT ...]): runs
# the tests of one file as one ctest case, for example a second time with other environment variables.
function(tandem_test_case)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "" "NAME;PROGRAM;FILE" "LABELS;ENVIRONMENT")
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_PROGRAM} --tests_of=${ARG_FILE})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${TANDEM_TEST_SECONDS}
                       ENVIRONMENT "OMP_WAIT_POLICY=passive;GOMP_SPINCOUNT=0;${ARG_ENVIRONMENT}")
endfunction()

# tandem_test_timeout(SECONDS case ...): sets another time limit than TANDEM_TEST_SECONDS for ctest cases.
function(tandem_test_timeout seconds)
  set_tests_properties(${ARGN} PROPERTIES TIMEOUT ${seconds})
endfunction()

# tandem_python_test(NAME <name> SCRIPT <file> [LABELS ...] [TIMEOUT s]): runs a pytest file
# with the project's venv as one ctest case. TANDEM_BIN, TANDEM_TESTS and TANDEM_SOURCE are the paths that it needs.
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
    ENVIRONMENT "TANDEM_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};TANDEM_TESTS=${PROJECT_BINARY_DIR}/tests;TANDEM_SOURCE=${PROJECT_SOURCE_DIR};PYTHONDONTWRITEBYTECODE=1;OMP_WAIT_POLICY=passive")
endfunction()
