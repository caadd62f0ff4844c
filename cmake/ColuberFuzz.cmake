# SPDX-License-Identifier: Apache-2.0
# coluber_fuzz(sources needed): every x_fuzz.cc of a module defines LLVMFuzzerTestOneInput. With COLUBER_FUZZ it becomes the
# libFuzzer binary x_fuzz (the target `fuzzers` builds all of them); without, x_fuzz_replay, which ctest runs over
# tests/fuzz/corpus/x_fuzz. tests/fuzz/README.md says more.
if(COLUBER_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "COLUBER_FUZZ needs clang: configure with -DCMAKE_CXX_COMPILER=clang++-19 in a build folder of its own")
  endif()
  # The warnings that count are those of g++, in every other build.
  target_compile_options(coluber_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
                                                 -fno-omit-frame-pointer -g -w)
  add_custom_target(fuzzers)
endif()

function(coluber_fuzz sources needed)
  if(COLUBER_FUZZ AND TARGET coluber_kernels)
    # clang does not follow the GCC target regions of the SIMD sources; given here, their intrinsics compile. Fuzzers load
    # models but compute nothing with them.
    set_property(TARGET coluber_kernels PROPERTY COMPILE_OPTIONS -mavx2 -mfma -mf16c -mprfchw -mavx512f -mavx512bw -mavx512vl
                                                                 -mavx512dq -mavx512bf16 -mavx512vnni)
  endif()
  foreach(source ${sources})
    get_filename_component(stem ${source} NAME_WE)
    if(COLUBER_FUZZ)
      add_executable(${stem} ${source})
      target_link_options(${stem} PRIVATE -fsanitize=fuzzer,address,undefined)
      set_target_properties(${stem} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
      target_compile_definitions(${stem} PRIVATE COLUBER_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
      coluber_link(${stem} ${needed})
      add_dependencies(fuzzers ${stem})
    elseif(COLUBER_TESTS)
      add_executable(${stem}_replay ${source} ${PROJECT_SOURCE_DIR}/tests/fuzz/replay_main.cc)
      set_target_properties(${stem}_replay PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
      target_compile_definitions(${stem}_replay PRIVATE COLUBER_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
      coluber_link(${stem}_replay ${needed})
      add_test(NAME ${stem}_replay COMMAND ${stem}_replay ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${stem})
    endif()
  endforeach()
endfunction()
