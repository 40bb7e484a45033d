# Tests of kernels run twice, of one source: on the CPU, thread by thread, everywhere; on the GPU in the cuda preset.

# tandem_emulated_kernels(NAME <name> SRCS file.cu ... DEPS ...): the kernels compiled for the CPU (cuda_emulator.h).
function(tandem_emulated_kernels)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "" "NAME" "SRCS;DEPS")
  set_source_files_properties(${ARG_SRCS} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
    "-include;${PROJECT_SOURCE_DIR}/tests/support/cuda_emulator.h;-Wno-unknown-pragmas")
  tandem_library(NAME ${ARG_NAME} SRCS ${ARG_SRCS} DEPS tandem::cuda_emulator ${ARG_DEPS})
endfunction()

# tandem_kernel_test(SRCS <test>_test.cc ... EMULATED lib ... DEVICE lib ... DEPS ... [TORCH]): <test>_emulated_test over
# the libraries of EMULATED, once with threads in rising and once in falling order, and in the cuda preset
# <test>_gpu_test over those of DEVICE.
function(tandem_kernel_test)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "TORCH" "" "SRCS;EMULATED;DEVICE;DEPS")
  set(torch "")
  if(ARG_TORCH)
    set(torch TORCH)
  endif()
  foreach(source IN LISTS ARG_SRCS)
    string(REPLACE _test.cc "" test ${source})
    tandem_test(NAME ${test}_emulated_test SRCS ${source} WHOLE ${torch} DEPS ${ARG_DEPS} ${ARG_EMULATED})
    add_test(NAME ${test}_emulated_falling COMMAND ${test}_emulated_test)
    set_tests_properties(${test}_emulated_falling PROPERTIES LABELS cpu TIMEOUT 300
                         ENVIRONMENT "EMULATED_ORDER=falling")
    if(TANDEM_CUDA)
      tandem_test(NAME ${test}_gpu_test SRCS ${source} WHOLE ${torch} LABELS gpu DEPS ${ARG_DEPS} ${ARG_DEVICE})
      target_link_libraries(${test}_gpu_test PRIVATE torch::cudart)
      target_compile_definitions(${test}_gpu_test PRIVATE TANDEM_ON_GPU)
    endif()
  endforeach()
endfunction()
