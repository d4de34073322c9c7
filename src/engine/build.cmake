# Matrix products through OpenBLAS where it is found, else through loops of our own. It is opened at run time: the Python
# package's wheel needs no package of the distribution, and the command opens it in its own way (engine/exec/blas.cpp).
find_package(OpenBLAS QUIET)
find_library(SEGFUSE_OPENBLAS_LIBRARY NAMES ${OpenBLAS_LIBRARIES} openblas)
if(SEGFUSE_PYTHON)
  target_compile_definitions(segfuse_engine PRIVATE SEGFUSE_OPENBLAS=1 SEGFUSE_PYTHON_PACKAGE=1)
elseif(SEGFUSE_OPENBLAS_LIBRARY)
  target_compile_definitions(segfuse_engine PRIVATE SEGFUSE_OPENBLAS=1)
  get_filename_component(folder ${SEGFUSE_OPENBLAS_LIBRARY} DIRECTORY)
  if(NOT folder IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)  # where the system's loader does not look
    target_link_options(segfuse_engine INTERFACE -Wl,-rpath,${folder})
  endif()
else()
  message(STATUS "OpenBLAS was not found: matrix products use built-in loops")
endif()

# The table of back ends: one row for each file of engine/backends.
file(GLOB backends CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/engine/backends
     ${CMAKE_CURRENT_SOURCE_DIR}/engine/backends/*.cpp)
list(SORT backends)
list(TRANSFORM backends REPLACE "(.*)[.]cpp" "SEGFUSE_BACKEND(\\1)\n" OUTPUT_VARIABLE rows)
string(JOIN "" rows ${rows})
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/engine_backends.inc CONTENT "${rows}" @ONLY)
target_include_directories(segfuse_engine PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/generated)

# Selections between computed values vectorise only where comparisons may not trap. No result depends on it.
file(GLOB kernels ${CMAKE_CURRENT_SOURCE_DIR}/engine/kernels/*.cpp)
set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS -fno-trapping-math)
