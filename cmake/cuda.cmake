# The CUDA part of LibTorch, and nvcc. They are searched for only if TANDEM_CUDA is on, as in the cuda preset. torch::cuda
# has c10_cuda, torch_cuda, the CUDA runtime and NCCL, all from wheels; targets that link it also link torch::cpu.
# tandem_cuda_library compiles kernels (.cu) with nvcc, because the compiler check of CMake's CUDA language needs the
# directory layout of an installed toolkit.
option(TANDEM_CUDA "Build the CUDA path: deploy/setup/install.sh --cuda first" OFF)
if(NOT TANDEM_CUDA)
  return()
endif()

set(TANDEM_CUDA_VENV ${PROJECT_SOURCE_DIR}/.deps/cuda-venv CACHE PATH "Python environment with nvcc")
set(TANDEM_CUDA_ARCHITECTURES "80;90a" CACHE STRING "compute capabilities that kernels are compiled for")
# PTX is included too. A driver compiles it for newer devices when the first kernel is loaded. Its capability has no letter,
# because code for 90a runs on that device only.
set(TANDEM_CUDA_PTX "90" CACHE STRING "compute capability that PTX is kept of")
file(GLOB TANDEM_CUDA_TOOLKIT ${TANDEM_CUDA_VENV}/lib/python3*/site-packages/nvidia/cu13)
file(GLOB TANDEM_CUDA_WHEELS ${TANDEM_VENV}/lib/python3*/site-packages/nvidia)
if(NOT EXISTS ${TANDEM_CUDA_TOOLKIT}/bin/nvcc)
  message(FATAL_ERROR "nvcc not found under ${TANDEM_CUDA_VENV}: run deploy/setup/install.sh --cuda first")
endif()
if(NOT EXISTS ${TORCH_ROOT}/lib/libtorch_cuda.so)
  message(FATAL_ERROR "${TORCH_ROOT} is a LibTorch without CUDA: the cuda preset needs the +cu130 wheel")
endif()

# The runtime alone, for kernels and their tests.
add_library(torch::cudart INTERFACE IMPORTED)
target_compile_options(torch::cudart INTERFACE
  "SHELL:-idirafter \"${TANDEM_CUDA_WHEELS}/cu13/include\""
  "SHELL:-idirafter \"${TANDEM_CUDA_TOOLKIT}/include\""
  "SHELL:-idirafter \"${TANDEM_CUDA_TOOLKIT}/include/cccl\"")
target_link_libraries(torch::cudart INTERFACE ${TANDEM_CUDA_WHEELS}/cu13/lib/libcudart.so.13)
# Old dynamic tags (RPATH), because they also apply to the dependencies of the libraries that are found.
target_link_options(torch::cudart INTERFACE -Wl,--disable-new-dtags
  -Wl,-rpath,${TANDEM_CUDA_WHEELS}/cu13/lib)
# deploy/gpu/run.sh puts libraries there that the target may lack.
set(CMAKE_BUILD_RPATH "$ORIGIN/../lib")

add_library(torch::cuda INTERFACE IMPORTED)
target_compile_options(torch::cuda INTERFACE "SHELL:-idirafter \"${TANDEM_CUDA_WHEELS}/nccl/include\"")
target_compile_definitions(torch::cuda INTERFACE USE_C10D_NCCL)
# torch_cuda registers its kernels when it is loaded, so it is linked even if no symbol of it is used.
target_link_libraries(torch::cuda INTERFACE torch::cpu torch::cudart
  ${TORCH_ROOT}/lib/libc10_cuda.so -Wl,--no-as-needed,${TORCH_ROOT}/lib/libtorch_cuda.so,--as-needed
  ${TANDEM_CUDA_WHEELS}/nccl/lib/libnccl.so.2)
target_link_options(torch::cuda INTERFACE
  -Wl,-rpath,${TANDEM_CUDA_WHEELS}/nccl/lib
  # The dependencies of torch_cuda are found by its own run path when it is loaded.
  -Wl,--allow-shlib-undefined -Wl,-rpath-link,${TORCH_ROOT}/lib)

# libcurl asks for symbols of libzstd. With --allow-shlib-undefined the linker does not look into what shared
# libraries need, and would take the hidden copy in the tokenizer crate, which is an error: libzstd comes first.
find_library(TANDEM_ZSTD NAMES zstd libzstd.so.1 REQUIRED)
add_link_options(-Wl,--no-as-needed ${TANDEM_ZSTD} -Wl,--as-needed)

# --expt-relaxed-constexpr: a kernel may call the CPU's constexpr functions. -fmad=false: the compiler may not fuse a
# product and a sum, because it chooses differently in two kernels that have the same source line (seen in the rotary
# embedding of engine and trainer, which then differed in the last bit). Kernels say fmaf where they want it.
set(TANDEM_NVCC_FLAGS -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -Xcompiler=-fPIC,-Wall,-Wextra,-Wno-unused-parameter
    -Werror=all-warnings -lineinfo -I${PROJECT_SOURCE_DIR} -ccbin ${CMAKE_CXX_COMPILER})
foreach(architecture IN LISTS TANDEM_CUDA_ARCHITECTURES)
  list(APPEND TANDEM_NVCC_FLAGS -gencode arch=compute_${architecture},code=sm_${architecture})
endforeach()
list(APPEND TANDEM_NVCC_FLAGS -gencode arch=compute_${TANDEM_CUDA_PTX},code=compute_${TANDEM_CUDA_PTX})

# tandem_cuda_library(NAME <name> SRCS file.cu ... [DEPS ...]): the library tandem::<name> of kernels.
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
