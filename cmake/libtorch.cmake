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
