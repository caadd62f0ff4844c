# What `cmake --install` puts into a prefix: the library as a static archive, the public headers, a package configuration
# (find_package(coluber) -> coluber::coluber), the command with its built-in model, and the command as an archive
# (coluber::cli), for programs that add layers and models of their own to it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Objects of every module. Own code is compiled with hidden visibility, so a shared library would export nothing yet: the
# archive is the form that is installed.
get_property(COLUBER_ALL_MODULES GLOBAL PROPERTY COLUBER_MODULES)
add_library(coluber_archive STATIC)
set_target_properties(coluber_archive PROPERTIES OUTPUT_NAME coluber LINKER_LANGUAGE CXX)
set(COLUBER_PACKAGE_LIBS fmt::fmt Threads::Threads)
foreach(module ${COLUBER_ALL_MODULES})
  target_sources(coluber_archive PRIVATE $<TARGET_OBJECTS:coluber_${module}>)
  get_property(libs GLOBAL PROPERTY COLUBER_LIBS_${module})
  list(APPEND COLUBER_PACKAGE_LIBS ${libs})
endforeach()
list(REMOVE_DUPLICATES COLUBER_PACKAGE_LIBS)
if(TARGET xgrammar)
  target_sources(coluber_archive PRIVATE $<TARGET_OBJECTS:xgrammar>)
endif()
# Headers alone, which nothing needs once the archive is compiled, and what is in the archive itself.
list(REMOVE_ITEM COLUBER_PACKAGE_LIBS nlohmann_json::nlohmann_json PkgConfig::xxhash xgrammar)
list(JOIN COLUBER_PACKAGE_LIBS " " COLUBER_PACKAGE_LIBS)

install(TARGETS coluber_archive ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/coluber DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
if(TARGET coluber_cli)
  # The objects of the command with its main: a program without a main of its own takes that one from the archive.
  add_library(coluber_cli_archive STATIC $<TARGET_OBJECTS:coluber_cli>)
  set_target_properties(coluber_cli_archive PROPERTIES OUTPUT_NAME coluber_cli LINKER_LANGUAGE CXX)
  add_dependencies(coluber_archive coluber_cli_archive)
  install(TARGETS coluber_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(TARGETS coluber_cli_archive ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
# What the program says of its own options, for man and the shells.
if(TARGET coluber_cli)
  set(pages ${PROJECT_BINARY_DIR}/pages)
  install(FILES ${pages}/coluber.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${pages}/coluber DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${pages}/_coluber DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${pages}/coluber.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
if(TARGET coluber_conformance)
  install(TARGETS coluber_conformance RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/models/asp-7m)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/asp-7m DESTINATION ${CMAKE_INSTALL_DATADIR}/coluber/models
          FILES_MATCHING PATTERN "*.json" PATTERN "*.jinja" PATTERN "*.safetensors" PATTERN "*.md" PATTERN "scripts" EXCLUDE)
endif()

set(COLUBER_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/coluber)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/coluberConfig.cmake.in ${PROJECT_BINARY_DIR}/coluberConfig.cmake
                              INSTALL_DESTINATION ${COLUBER_PACKAGE_DIR}
                              PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_BINDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/coluberConfigVersion.cmake VERSION ${PROJECT_VERSION}
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/coluberConfig.cmake ${PROJECT_BINARY_DIR}/coluberConfigVersion.cmake
        DESTINATION ${COLUBER_PACKAGE_DIR})
# Not with sanitizers, whose flags the example would have to share.
if(COLUBER_TESTS AND TARGET coluber_cli AND NOT COLUBER_SANITIZE)
  add_test(NAME install COMMAND ${PROJECT_SOURCE_DIR}/tests/install/run.sh ${PROJECT_BINARY_DIR})
  set_tests_properties(install PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77)
endif()
