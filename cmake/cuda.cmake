# The CUDA half of LibTorch, and nvcc. Nothing of it is looked for unless TANDEM_CUDA is on: the cuda preset.
# torch::cuda carries c10_cuda, torch_cuda, the CUDA run time and NCCL, all out of wheels; a target that
# names it links torch::cpu too. Kernels (.cu) are compiled by nvcc through tandem_cuda_library: with
# CMake's own CUDA language, its compiler check wants the layout of an installed toolkit, not of wheels.
option(TANDEM_CUDA "Build the CUDA path: deploy/setup/install.sh --cuda first" OFF)
if(NOT TANDEM_CUDA)
  return()
endif()

set(TANDEM_CUDA_VENV ${PROJECT_SOURCE_DIR}/.deps/cuda-venv CACHE PATH "Python environment with nvcc")
set(TANDEM_CUDA_ARCHITECTURES "80;90a" CACHE STRING "compute capabilities that kernels are compiled for")
# PTX too, which a driver compiles for a device that none of them fits: a newer one, when the first kernel is
# loaded. Of a capability without the letter: code of 90a is for that device alone.
set(TANDEM_CUDA_PTX "90" CACHE STRING "compute capability that PTX is kept of")
file(GLOB TANDEM_CUDA_TOOLKIT ${TANDEM_CUDA_VENV}/lib/python3*/site-packages/nvidia/cu13)
file(GLOB TANDEM_CUDA_WHEELS ${TANDEM_VENV}/lib/python3*/site-packages/nvidia)
if(NOT EXISTS ${TANDEM_CUDA_TOOLKIT}/bin/nvcc)
  message(FATAL_ERROR "nvcc not found under ${TANDEM_CUDA_VENV}: run deploy/setup/install.sh --cuda first")
endif()
if(NOT EXISTS ${TORCH_ROOT}/lib/libtorch_cuda.so)
  message(FATAL_ERROR "${TORCH_ROOT} is a LibTorch without CUDA: the cuda preset needs the +cu130 wheel")
endif()

# The run time alone, for kernels and their tests.
add_library(torch::cudart INTERFACE IMPORTED)
target_compile_options(torch::cudart INTERFACE
  "SHELL:-idirafter \"${TANDEM_CUDA_WHEELS}/cu13/include\""
  "SHELL:-idirafter \"${TANDEM_CUDA_TOOLKIT}/include\""
  "SHELL:-idirafter \"${TANDEM_CUDA_TOOLKIT}/include/cccl\"")
target_link_libraries(torch::cudart INTERFACE ${TANDEM_CUDA_WHEELS}/cu13/lib/libcudart.so.13)
# Old tags: a run path that also holds for what the libraries found by it need.
target_link_options(torch::cudart INTERFACE -Wl,--disable-new-dtags
  -Wl,-rpath,${TANDEM_CUDA_WHEELS}/cu13/lib)
# Where deploy/gpu/run.sh puts what a target may lack.
set(CMAKE_BUILD_RPATH "$ORIGIN/../lib")

add_library(torch::cuda INTERFACE IMPORTED)
target_compile_options(torch::cuda INTERFACE "SHELL:-idirafter \"${TANDEM_CUDA_WHEELS}/nccl/include\"")
target_compile_definitions(torch::cuda INTERFACE USE_C10D_NCCL)
# torch_cuda registers its kernels when it is loaded, so it is linked whether or not a symbol is named.
target_link_libraries(torch::cuda INTERFACE torch::cpu torch::cudart
  ${TORCH_ROOT}/lib/libc10_cuda.so -Wl,--no-as-needed,${TORCH_ROOT}/lib/libtorch_cuda.so,--as-needed
  ${TANDEM_CUDA_WHEELS}/nccl/lib/libnccl.so.2)
target_link_options(torch::cuda INTERFACE
  -Wl,-rpath,${TANDEM_CUDA_WHEELS}/nccl/lib
  # What torch_cuda itself needs is found by its own run path when it is loaded.
  -Wl,--allow-shlib-undefined -Wl,-rpath-link,${TORCH_ROOT}/lib)

# --expt-relaxed-constexpr: a kernel may call the CPU's constexpr functions.
set(TANDEM_NVCC_FLAGS -std=c++20 -O3 --expt-relaxed-constexpr -Xcompiler=-fPIC,-Wall,-Wextra,-Wno-unused-parameter
    -Werror=all-warnings -lineinfo -I${PROJECT_SOURCE_DIR} -ccbin ${CMAKE_CXX_COMPILER})
foreach(architecture IN LISTS TANDEM_CUDA_ARCHITECTURES)
  list(APPEND TANDEM_NVCC_FLAGS -gencode arch=compute_${architecture},code=sm_${architecture})
endforeach()
list(APPEND TANDEM_NVCC_FLAGS -gencode arch=compute_${TANDEM_CUDA_PTX},code=compute_${TANDEM_CUDA_PTX})

# tandem_cuda_library(NAME <name> SRCS file.cu ... [DEPS ...]): tandem::<name> of kernels.
function(tandem_cuda_library)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "" "NAME" "SRCS;DEPS")
  set(objects "")
  foreach(source IN LISTS ARG_SRCS)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CCACHE} ${TANDEM_CUDA_TOOLKIT}/bin/nvcc ${TANDEM_NVCC_FLAGS} -MD -MF ${object}.d
              -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} DEPFILE ${object}.d
      COMMENT "Compiling kernels ${source}" VERBATIM COMMAND_EXPAND_LISTS)
    list(APPEND objects ${object})
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  tandem_library(NAME ${ARG_NAME} SRCS ${objects} DEPS ${ARG_DEPS})
  set_target_properties(tandem_${ARG_NAME} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(tandem_${ARG_NAME} PRIVATE torch::cudart)
endfunction()
