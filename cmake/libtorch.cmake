# LibTorch from the Python wheel. find_package(Torch) needs a CUDA toolkit, so the targets are declared here. torch::cpu has
# c10, torch_cpu, OpenMP and the headers, with -idirafter because the wheel's include directory also has protobuf and fmt
# headers, which must not be found first.
set(TANDEM_VENV ${PROJECT_SOURCE_DIR}/.deps/venv CACHE PATH "Python environment with the torch wheel")
file(GLOB TORCH_ROOT ${TANDEM_VENV}/lib/python3*/site-packages/torch)
if(NOT TORCH_ROOT)
  message(FATAL_ERROR "LibTorch not found under ${TANDEM_VENV}: run deploy/setup/install.sh first")
endif()

add_library(torch::cpu INTERFACE IMPORTED)
target_compile_options(torch::cpu INTERFACE
  "SHELL:-idirafter \"${TORCH_ROOT}/include\""
  "SHELL:-idirafter \"${TORCH_ROOT}/include/torch/csrc/api/include\""
  -Wno-unused-parameter -Wno-comment)
target_compile_definitions(torch::cpu INTERFACE AT_PARALLEL_OPENMP=1 USE_DISTRIBUTED USE_C10D_GLOO)
# The wheel has libgomp with its usual soname, so the OpenMP code of the project and of LibTorch share one thread pool.
target_link_libraries(torch::cpu INTERFACE
  ${TORCH_ROOT}/lib/libc10.so ${TORCH_ROOT}/lib/libtorch_cpu.so)
# A flag instead of OpenMP::OpenMP_CXX, whose absolute path to libgomp conflicts with the wheel's rpath.
target_compile_options(torch::cpu INTERFACE -fopenmp)
target_link_options(torch::cpu INTERFACE -fopenmp)
target_link_options(torch::cpu INTERFACE -Wl,-rpath,${TORCH_ROOT}/lib)

# tandem_torch_headers(TARGET tests|libraries): the target may include the headers of LibTorch. Parsing them takes longer
# than the rest of most files, so they are precompiled. There are two precompiled headers, because gcc accepts one only
# with the macros that it was made with, and libraries are fortified while tests are not. The presets dev and cuda and
# the sanitizers parse the headers in each file.
set(TANDEM_TORCH_HEADERS OFF)
if(TANDEM_UNITY AND NOT TANDEM_SANITIZER AND NOT TANDEM_CUDA)
  set(TANDEM_TORCH_HEADERS ON)
  foreach(kind tests libraries)
    add_library(tandem_torch_headers_${kind} OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/torch_headers.cc)
    target_link_libraries(tandem_torch_headers_${kind} PRIVATE tandem_flags torch::cpu)
    target_precompile_headers(tandem_torch_headers_${kind} PRIVATE <ATen/ATen.h>)
  endforeach()
  target_compile_options(tandem_torch_headers_libraries PRIVATE ${TANDEM_FORTIFY})
endif()
function(tandem_torch_headers target kind)
  target_link_libraries(${target} PRIVATE torch::cpu)
  if(TANDEM_TORCH_HEADERS)
    target_precompile_headers(${target} REUSE_FROM tandem_torch_headers_${kind})
    target_compile_options(${target} PRIVATE -fpch-preprocess)  # for ccache
  endif()
endfunction()
