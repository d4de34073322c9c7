# What others link: segfuse::segfuse, all systems in one shared library, and segfuse::doctor beside it. Both are made of
# the modules' objects and show the functions of include/segfuse only; what we use ourselves (fmt, libsndfile, ...) they
# bring along, so that a consumer needs neither its headers nor its name. Libraries that are opened at run time are found
# beside them. The command, tests and the Python module are linked with the modules themselves.
set(map ${PROJECT_SOURCE_DIR}/cmake/segfuse.map)

# segfuse_library(NAME MODULES modules...): lib<NAME>.so from the objects of these modules, as segfuse::NAME.
function(segfuse_library target name)
  cmake_parse_arguments(ARG "" "" "MODULES" ${ARGN})
  list(TRANSFORM ARG_MODULES REPLACE "(.+)" "$<TARGET_OBJECTS:segfuse_\\1>" OUTPUT_VARIABLE objects)
  add_library(${target} SHARED ${objects})
  add_library(segfuse::${name} ALIAS ${target})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>
                                              $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/packaging/rmm>)
  target_link_options(${target} PRIVATE -Wl,--version-script=${map} -Wl,--as-needed)
  set_target_properties(${target} PROPERTIES
    LINKER_LANGUAGE CXX EXPORT_NAME ${name} LINK_DEPENDS ${map} LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} INSTALL_RPATH "$ORIGIN")
endfunction()

segfuse_library(segfuse_library segfuse MODULES base plan runtime semicrf jit ir compiler engine comm learn)
set_target_properties(segfuse_library PROPERTIES OUTPUT_NAME segfuse)
target_link_libraries(segfuse_library PRIVATE segfuse_learn segfuse_comm)
segfuse_library(segfuse_doctor_library doctor MODULES doctor)
set_target_properties(segfuse_doctor_library PROPERTIES OUTPUT_NAME segfuse_doctor)
target_link_libraries(segfuse_doctor_library PUBLIC segfuse_library PRIVATE segfuse_flags $<TARGET_LINKER_FILE:fmt::fmt>)
add_dependencies(segfuse_doctor_library segfuse_forktrace)

if(NOT SEGFUSE_INSTALL)
  return()
endif()
# Into lib, bin and include whatever the distribution calls them: the command looks for libraries in ../lib.
include(CMakePackageConfigHelpers)
install(TARGETS segfuse_library segfuse_doctor_library EXPORT segfuse DESTINATION lib)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/segfuse ${PROJECT_SOURCE_DIR}/packaging/rmm/segfuse DESTINATION include)
install(EXPORT segfuse NAMESPACE segfuse:: FILE segfuseConfig.cmake DESTINATION lib/cmake/segfuse)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/segfuseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/segfuseConfigVersion.cmake DESTINATION lib/cmake/segfuse)
foreach(name segfuse segfuse-doctor)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION lib/pkgconfig)
endforeach()

# `cpack -G TGZ` in the build folder: what cmake --install places, as one archive.
set(CPACK_PACKAGE_VENDOR "The segfuse developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "An engine for segment models")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_FILE_NAME segfuse-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR TGZ)
include(CPack)
