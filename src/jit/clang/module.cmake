# libsegfuse_clang: the only thing that is linked with clang and LLVM. It is opened at run time (src/jit/clang_module.h),
# so all the rest is built and runs without them.
find_path(SEGFUSE_LLVM_INCLUDE llvm/Config/llvm-config.h PATHS /usr/lib/llvm-19/include NO_DEFAULT_PATH)
find_library(SEGFUSE_LLVM_LIBRARY NAMES LLVM-19 libLLVM.so.19.1 PATHS /usr/lib/llvm-19/lib NO_DEFAULT_PATH)
find_library(SEGFUSE_CLANG_LIBRARY NAMES libclang-cpp.so.19.1 clang-cpp PATHS /usr/lib/llvm-19/lib NO_DEFAULT_PATH)
set(found OFF)
if(SEGFUSE_LLVM_LIBRARY AND SEGFUSE_CLANG_LIBRARY AND EXISTS ${SEGFUSE_LLVM_INCLUDE}/clang/Frontend/CompilerInstance.h)
  set(found ON)
endif()
# Not kept in the cache unless given, so that clang is noticed when it is installed later.
if(NOT DEFINED SEGFUSE_CLANG)
  set(SEGFUSE_CLANG ${found})
endif()
if(NOT SEGFUSE_CLANG)
  message(STATUS "Without clang 19: no CPU code is generated, and its tests are skipped")
  return()
endif()
if(NOT found)
  message(FATAL_ERROR "SEGFUSE_CLANG is on, but clang 19 was not found: install libclang-19-dev and llvm-19-dev, or set "
                      "SEGFUSE_LLVM_INCLUDE, SEGFUSE_LLVM_LIBRARY and SEGFUSE_CLANG_LIBRARY")
endif()
add_library(segfuse_jit_clang MODULE ${CMAKE_CURRENT_SOURCE_DIR}/jit/clang/clang_module.cpp)
set_target_properties(segfuse_jit_clang PROPERTIES OUTPUT_NAME segfuse_clang CXX_VISIBILITY_PRESET hidden
                                                   LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
target_include_directories(segfuse_jit_clang SYSTEM PRIVATE ${SEGFUSE_LLVM_INCLUDE})
target_link_libraries(segfuse_jit_clang PRIVATE segfuse_options ${SEGFUSE_CLANG_LIBRARY} ${SEGFUSE_LLVM_LIBRARY})
target_link_options(segfuse_jit_clang PRIVATE -Wl,--as-needed)  # it formats no messages: without fmt
# Whoever can compile at run time has the module built first.
add_dependencies(segfuse_jit segfuse_jit_clang)
target_compile_definitions(segfuse_jit INTERFACE SEGFUSE_WITH_CLANG=1)
if(SEGFUSE_INSTALL)
  install(TARGETS segfuse_jit_clang DESTINATION ${SEGFUSE_LIBRARY_FOLDER})
endif()
