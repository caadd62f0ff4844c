# SPDX-License-Identifier: Apache-2.0
# Options, language level and warnings that all own code is built with.
option(COLUBER_TESTS "build the tests" ON)
option(COLUBER_BENCH "build the kernel benchmarks" OFF)
option(COLUBER_FUZZ "build the libFuzzer targets (clang)" OFF)
set(COLUBER_SANITIZE "" CACHE STRING "sanitizers for own code, e.g. address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(COLUBER_CCACHE ccache)
if(COLUBER_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${COLUBER_CCACHE})
endif()

add_library(coluber_flags INTERFACE)
target_compile_options(coluber_flags INTERFACE -Wall -Wextra -Werror -fno-math-errno -ffp-contract=off -fvisibility=hidden)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # g++ 12 warns of overlaps that cannot be in `"..." + std::string` at -O3 (its bug 105651).
  target_compile_options(coluber_flags INTERFACE -Wno-restrict)
endif()
target_include_directories(coluber_flags INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
if(COLUBER_SANITIZE)
  # Instrumented code makes g++ 12 warn of values that are set (variants in initializer lists).
  target_compile_options(coluber_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_compile_options(coluber_flags INTERFACE -fsanitize=${COLUBER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  target_link_options(coluber_flags INTERFACE -fsanitize=${COLUBER_SANITIZE})
endif()
