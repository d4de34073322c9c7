# Language, warnings and sanitizers: the same for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# O2 for quick builds; the modules with hot loops add O3 (src/CMakeLists.txt).
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

find_program(SEGFUSE_CCACHE ccache)
if(SEGFUSE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SEGFUSE_CCACHE})
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
if(NOT SEGFUSE_PYTHON)
  find_package(nlohmann_json REQUIRED)
  include(cmake/audio.cmake)
endif()

add_library(segfuse_options INTERFACE)
target_include_directories(segfuse_options INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
# -Wrestrict warns falsely about std::string in GCC 12.
# No contraction of a*b+c: the same source gives the same bits in every function it is inlined into.
target_compile_options(segfuse_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wno-restrict
                                                 -Werror -fno-math-errno -ffp-contract=off)
# gcc 12 sees overlapping copies in "literal" + std::string that are not there (its bug 105329).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(segfuse_options INTERFACE -Wno-restrict)
endif()
target_compile_definitions(segfuse_options INTERFACE SEGFUSE_VERSION="${PROJECT_VERSION}")
target_link_libraries(segfuse_options INTERFACE fmt::fmt Threads::Threads)
if(SEGFUSE_SANITIZE)
  # Targets whose own code is not what is tested go without the slower one.
  target_compile_options(segfuse_options INTERFACE
    -fsanitize=${SEGFUSE_SANITIZE} $<$<BOOL:$<TARGET_PROPERTY:SEGFUSE_WITHOUT_UNDEFINED>>:-fno-sanitize=undefined>
    -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(segfuse_options INTERFACE -fsanitize=${SEGFUSE_SANITIZE})
endif()
