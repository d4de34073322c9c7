# Language, warnings and sanitizers: the same for every target of ours. A project that adds this one as a folder keeps its
# own build type, flags and launcher.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()
  # O2 for quick builds; the modules with hot loops add O3 (src/CMakeLists.txt).
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
  find_program(SEGFUSE_CCACHE ccache)
  if(SEGFUSE_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${SEGFUSE_CCACHE})
  endif()
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
include(cmake/audio.cmake)

# segfuse_flags: for all code of ours. gcc 12 sees overlapping copies in "literal" + std::string that are not there (its
# bug 105329). No contraction of a*b+c: the same source gives the same bits in every function it is inlined into.
add_library(segfuse_flags INTERFACE)
target_compile_options(segfuse_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  $<$<BOOL:${SEGFUSE_WERROR}>:-Werror> -fno-math-errno -ffp-contract=off)
# segfuse_options: for code that sees the private headers.
add_library(segfuse_options INTERFACE)
target_include_directories(segfuse_options INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(segfuse_options INTERFACE segfuse_flags fmt::fmt Threads::Threads)
# From fmt 12.2 on, fmt/core.h has fmt::format on demand only.
if(fmt_VERSION VERSION_GREATER_EQUAL 12.2)
  target_compile_definitions(segfuse_options INTERFACE FMT_DEPRECATED_HEAVY_CORE)
endif()
if(SEGFUSE_SANITIZE)
  # Targets whose own code is not what is tested go without the slower one.
  target_compile_options(segfuse_flags INTERFACE
    -fsanitize=${SEGFUSE_SANITIZE} $<$<BOOL:$<TARGET_PROPERTY:SEGFUSE_WITHOUT_UNDEFINED>>:-fno-sanitize=undefined>
    -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(segfuse_flags INTERFACE -fsanitize=${SEGFUSE_SANITIZE})
endif()
