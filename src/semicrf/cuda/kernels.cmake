# Builds the device code's text into the library. Included by src/CMakeLists.txt after module semicrf.
set(kernel_dir ${CMAKE_CURRENT_LIST_DIR})
file(GLOB kernel_files CONFIGURE_DEPENDS ${kernel_dir}/kernels/*.cuh ${kernel_dir}/kernels/*.h)
set(kernels_cpp ${CMAKE_CURRENT_BINARY_DIR}/semicrf_kernels.cpp)
add_custom_command(
  OUTPUT ${kernels_cpp}
  COMMAND ${CMAKE_COMMAND} -DOUTPUT=${kernels_cpp} "-DFILES=${kernel_files}"
          -P ${kernel_dir}/embed_kernels.cmake
  DEPENDS ${kernel_files} ${kernel_dir}/embed_kernels.cmake
  COMMENT "Embedding the device code"
  VERBATIM)
target_sources(segfuse_semicrf PRIVATE ${kernels_cpp})
