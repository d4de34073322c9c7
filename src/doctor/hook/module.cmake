# libsegfuse_forktrace: preloaded into other people's programs by `segfuse doctor fork --trace`, so it is linked with
# nothing but the C library, and exports only what it stands in front of.
add_library(segfuse_forktrace MODULE ${CMAKE_CURRENT_SOURCE_DIR}/doctor/hook/hook.cpp
                                     ${CMAKE_CURRENT_SOURCE_DIR}/doctor/hook/symbols.cpp
                                     ${CMAKE_CURRENT_SOURCE_DIR}/doctor/hook/teller.cpp)
set_target_properties(segfuse_forktrace PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                                                   LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
target_include_directories(segfuse_forktrace PRIVATE ${PROJECT_SOURCE_DIR}/src)
# Never with sanitizers: it runs in programs that have none.
target_compile_options(segfuse_forktrace PRIVATE -Wall -Wextra -Wpedantic -Wshadow
                                                 $<$<BOOL:${SEGFUSE_WERROR}>:-Werror> -O2 -fno-exceptions -fno-rtti
                                                 -fno-threadsafe-statics -fno-stack-protector)
target_link_options(segfuse_forktrace PRIVATE -Wl,--as-needed -Wl,-z,now)
target_link_libraries(segfuse_forktrace PRIVATE ${CMAKE_DL_LIBS})
if(SEGFUSE_INSTALL)
  install(TARGETS segfuse_forktrace DESTINATION ${SEGFUSE_LIBRARY_FOLDER})
endif()
