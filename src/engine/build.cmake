# Matrix products are OpenBLAS's where it is found at run time, else loops of our own (engine/exec/blas.cpp). Python's package
# opens it in another way than the command.
if(SEGFUSE_PYTHON)
  target_compile_definitions(segfuse_engine PRIVATE SEGFUSE_PYTHON_PACKAGE=1)
else()
  find_package(OpenBLAS QUIET)
  find_library(SEGFUSE_OPENBLAS_LIBRARY NAMES ${OpenBLAS_LIBRARIES} openblas)
  if(SEGFUSE_OPENBLAS_LIBRARY)
    get_filename_component(folder ${SEGFUSE_OPENBLAS_LIBRARY} DIRECTORY)
    if(NOT folder IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)  # where the system's loader does not look
      target_link_options(segfuse_engine INTERFACE -Wl,-rpath,${folder})
    endif()
  endif()
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
