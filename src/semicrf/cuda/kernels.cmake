# The device code's text. Included by src/CMakeLists.txt after module semicrf.
file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/kernels/*.cuh ${CMAKE_CURRENT_LIST_DIR}/kernels/*.h)
segfuse_embed(segfuse_semicrf FUNCTION segfuse::semicrf::gpu::kernel_source HEADER semicrf/cuda/sources.h
              FOLDER semicrf/cuda/kernels FILES ${kernels})
