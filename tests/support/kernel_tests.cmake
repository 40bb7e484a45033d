# tandem_kernel_tests(NAME <area> SRCS <x>_test.cc ... DEPS ... DEVICE lib ... [TORCH]): tests of kernels, which run
# several times from one source: on the CPU, with threads in rising (<x>_emulated_test) and in falling order
# (<x>_emulated_falling), and in the cuda preset on the GPU, with the libraries of DEVICE (<x>_gpu_test).
function(tandem_kernel_tests)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "TORCH" "NAME" "SRCS;DEVICE;DEPS")
  set(torch "")
  if(ARG_TORCH)
    set(torch TORCH)
  endif()
  tandem_tests(NAME ${ARG_NAME}_kernel_tests VARIANT emulated SRCS ${ARG_SRCS} WHOLE APART ${torch}
               DEPS ${ARG_DEPS} tandem::emulated_kernels)
  foreach(source IN LISTS ARG_SRCS)
    string(REGEX REPLACE "^(.*/)?([^/]*)_test\\.cc$" "\\2" test ${source})
    tandem_test_case(NAME ${test}_emulated_falling PROGRAM ${ARG_NAME}_kernel_tests FILE ${test}_test.cc
                     ENVIRONMENT EMULATED_ORDER=falling)
  endforeach()
  if(TANDEM_CUDA)
    tandem_tests(NAME ${ARG_NAME}_kernel_gpu_tests VARIANT gpu SRCS ${ARG_SRCS} WHOLE APART ${torch} LABELS gpu
                 DEPS ${ARG_DEPS} ${ARG_DEVICE} torch::cudart)
    target_compile_definitions(${ARG_NAME}_kernel_gpu_tests PRIVATE TANDEM_ON_GPU)
  endif()
endfunction()
