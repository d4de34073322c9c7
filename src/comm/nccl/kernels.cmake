# The device code's text. Included by src/CMakeLists.txt after module comm.
file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/kernels/*.cuh ${CMAKE_CURRENT_LIST_DIR}/kernels/*.h)
segfuse_embed(segfuse_comm FUNCTION segfuse::comm::nccl_kernel_source HEADER comm/nccl/add_nodes.h
              FOLDER comm/nccl/kernels FILES ${kernels})
