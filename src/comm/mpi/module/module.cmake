# libsegfuse_mpi: the only thing that is linked with an MPI, the machine's own. It is opened at run time, by ranks that the
# launcher of that MPI started (comm/mpi/choice.h). A library with MPI's standard ABI needs nothing here.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI QUIET COMPONENTS CXX)
# Not kept in the cache unless given, so that MPI is noticed when it is installed later.
if(NOT DEFINED SEGFUSE_MPI)
  set(SEGFUSE_MPI ${MPI_CXX_FOUND})
endif()
if(NOT SEGFUSE_MPI)
  message(STATUS "Without MPI: ranks of mpirun need a library with MPI's standard ABI")
  return()
endif()
if(NOT MPI_CXX_FOUND)
  message(FATAL_ERROR "SEGFUSE_MPI is on, but no MPI was found: install libopenmpi-dev, or set MPI_CXX_COMPILER")
endif()
add_library(segfuse_comm_mpi MODULE ${CMAKE_CURRENT_SOURCE_DIR}/comm/mpi/module/mpi_module.cpp)
set_target_properties(segfuse_comm_mpi PROPERTIES OUTPUT_NAME segfuse_mpi CXX_VISIBILITY_PRESET hidden
                                                  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
target_link_libraries(segfuse_comm_mpi PRIVATE segfuse_options MPI::MPI_CXX)
target_link_options(segfuse_comm_mpi PRIVATE -Wl,--as-needed)  # MPI's C functions alone, and no fmt
# Whoever can be a rank has the module built first.
add_dependencies(segfuse_comm segfuse_comm_mpi)
if(SEGFUSE_INSTALL)
  install(TARGETS segfuse_comm_mpi DESTINATION ${SEGFUSE_LIBRARY_FOLDER})
endif()
