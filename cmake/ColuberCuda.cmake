# SPDX-License-Identifier: Apache-2.0
# With COLUBER_CUDA (preset `cuda`) the kernels in src/**/*_cuda.cu become libcoluber_cuda.so. Nothing else looks for the toolkit.
option(COLUBER_CUDA "compile the CUDA kernels (needs nvcc)" OFF)
if(NOT COLUBER_CUDA)
  return()
endif()
find_program(COLUBER_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT COLUBER_NVCC)
  message(FATAL_ERROR "COLUBER_CUDA needs nvcc, which is neither on PATH nor in CUDA_HOME/bin nor in /usr/local/cuda/bin. "
                      "Install the CUDA toolkit, or leave COLUBER_CUDA off for a build that runs on the CPU.")
endif()
set(CMAKE_CUDA_COMPILER ${COLUBER_NVCC})
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
enable_language(CUDA)
# CMake 3.25 emits nothing for CMAKE_CUDA_STANDARD 20.
string(APPEND CMAKE_CUDA_FLAGS " -std=c++20 --expt-relaxed-constexpr")

# Programs look for libraries beside themselves, so that they can be carried to a machine without these packages.
set(CMAKE_BUILD_RPATH "$ORIGIN")
add_link_options(LINKER:--disable-new-dtags)

# The runtime is linked in: the library needs the driver alone, and finds that while the program runs.
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
file(GLOB_RECURSE COLUBER_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*_cuda.cu)
add_library(coluber_cuda SHARED ${COLUBER_CUDA_SOURCES})
target_include_directories(coluber_cuda PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
set_target_properties(coluber_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} CUDA_STANDARD_REQUIRED OFF)
