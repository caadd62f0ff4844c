# SPDX-License-Identifier: Apache-2.0
# XGrammar's C++ core, which holds answers to grammars: the sources of its release on PyPI, by version and hash, compiled to the
# objects `xgrammar`. Where they cannot be had (no network, no pip) the build goes on without them, says so, and refuses
# structured output by name. src/text/grammar/ has the wrapper.
set(COLUBER_GRAMMAR AUTO CACHE STRING "structured output by XGrammar: ON, OFF, or AUTO (where its sources can be had)")
set(COLUBER_DEPS_DIR "$ENV{HOME}/.cache/coluber/deps" CACHE PATH "where sources of third parties are unpacked, for all build folders")
set_property(CACHE COLUBER_GRAMMAR PROPERTY STRINGS AUTO ON OFF)

# Puts the folder of the unpacked source archive into `out`; empty where it could not be had. ARGN: patterns to unpack.
function(coluber_pypi_source out name version sha256)
  set(dir "${COLUBER_DEPS_DIR}/${name}-${version}")
  set(${out} "" PARENT_SCOPE)
  if(NOT EXISTS "${dir}/.ok")
    find_package(Python3 3.9 COMPONENTS Interpreter)
    if(NOT Python3_FOUND)
      message(STATUS "${name} ${version} needs python3 with pip to be downloaded")
      return()
    endif()
    # Another build may be at the same; what is complete is put into place in one move.
    string(RANDOM LENGTH 8 mark)
    set(part "${dir}.${mark}")
    file(WRITE "${part}/requirements.txt" "${name}==${version} --hash=sha256:${sha256}\n")
    message(STATUS "downloading ${name} ${version}")
    execute_process(COMMAND ${Python3_EXECUTABLE} -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes
                            --no-binary ${name} -r ${part}/requirements.txt -d ${part}
                    RESULT_VARIABLE failed OUTPUT_VARIABLE told ERROR_VARIABLE told TIMEOUT 120)
    file(GLOB archive "${part}/*.tar.gz")
    if(failed OR NOT archive)
      file(REMOVE_RECURSE "${part}")
      string(STRIP "${told}" told)
      message(STATUS "pip could not download it (${failed}): ${told}")
      return()
    endif()
    file(ARCHIVE_EXTRACT INPUT "${archive}" DESTINATION "${part}" PATTERNS ${ARGN})
    file(REMOVE "${archive}")
    file(TOUCH "${part}/.ok")
    if(NOT EXISTS "${dir}/.ok")
      file(REMOVE_RECURSE "${dir}")
      file(RENAME "${part}" "${dir}" RESULT moved)
    endif()
    file(REMOVE_RECURSE "${part}")
  endif()
  set(${out} "${dir}/${name}-${version}" PARENT_SCOPE)
endfunction()

if(COLUBER_GRAMMAR)
  coluber_pypi_source(COLUBER_XGRAMMAR xgrammar 0.2.8 8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
                      "*/cpp/*" "*/include/*" "*/3rdparty/picojson/*" "*/3rdparty/dlpack/include/*" "*/LICENSE" "*/NOTICE")
  if(NOT COLUBER_XGRAMMAR AND COLUBER_GRAMMAR STREQUAL "ON")
    message(FATAL_ERROR "XGrammar could not be downloaded (above); with -DCOLUBER_GRAMMAR=OFF there is no structured output")
  elseif(NOT COLUBER_XGRAMMAR)
    message(WARNING "XGrammar could not be downloaded (above): this build refuses structured output. "
                    "Configure again with -DCOLUBER_GRAMMAR=ON once there is a network")
  endif()
endif()
if(COLUBER_XGRAMMAR)
  file(GLOB sources ${COLUBER_XGRAMMAR}/cpp/*.cc ${COLUBER_XGRAMMAR}/cpp/support/*.cc ${COLUBER_XGRAMMAR}/cpp/converter_ext/*.cc)
  add_library(xgrammar OBJECT ${sources})
  target_include_directories(xgrammar SYSTEM PUBLIC ${COLUBER_XGRAMMAR}/include ${COLUBER_XGRAMMAR}/3rdparty/dlpack/include
                                      PRIVATE ${COLUBER_XGRAMMAR}/3rdparty/picojson)
  target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
                                              XGRAMMAR_LOG_CUSTOMIZE=1)  # the wrapper hears its warnings
  target_compile_options(xgrammar PRIVATE -O2 -g0 -w -ffile-prefix-map=${COLUBER_XGRAMMAR}/=)
  set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 CXX_VISIBILITY_PRESET hidden)
endif()

# The wrapper, or what stands in its place.
set(COLUBER_TEXT_EXCLUDED "/no_xgrammar\\.cc$")
set(COLUBER_TEXT_LIBS PkgConfig::pcre2 PkgConfig::utf8proc)
if(COLUBER_XGRAMMAR)
  list(APPEND COLUBER_TEXT_LIBS xgrammar)
else()
  set(COLUBER_TEXT_EXCLUDED "/xgrammar\\.cc$")
endif()
