# Matrix products through OpenBLAS where it is found, else through loops of our own. The Python package opens it at run
# time, so that the wheel needs no package of the distribution.
find_package(OpenBLAS QUIET)
find_library(SEGFUSE_OPENBLAS_LIBRARY NAMES ${OpenBLAS_LIBRARIES} openblas)
find_path(SEGFUSE_OPENBLAS_INCLUDE cblas.h HINTS ${OpenBLAS_INCLUDE_DIRS})
if(SEGFUSE_PYTHON)
  target_compile_definitions(segfuse_engine PRIVATE SEGFUSE_OPENBLAS_AT_RUN_TIME=1)
elseif(OpenBLAS_FOUND AND SEGFUSE_OPENBLAS_LIBRARY AND SEGFUSE_OPENBLAS_INCLUDE)
  target_compile_definitions(segfuse_engine PRIVATE SEGFUSE_OPENBLAS=1)
  target_include_directories(segfuse_engine SYSTEM PRIVATE ${SEGFUSE_OPENBLAS_INCLUDE})
  target_link_libraries(segfuse_engine PUBLIC ${SEGFUSE_OPENBLAS_LIBRARY})
else()
  message(STATUS "OpenBLAS was not found: matrix products use built-in loops")
endif()

# Selections between computed values vectorise only where comparisons may not trap. No result depends on it.
file(GLOB kernels ${CMAKE_CURRENT_SOURCE_DIR}/engine/kernels/*.cpp)
set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS -fno-trapping-math)
