# The device code's text. Included by src/CMakeLists.txt after module engine.
file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/kernels/*.cuh)
segfuse_embed(segfuse_engine FUNCTION segfuse::engine::attention_kernel_source HEADER engine/attention/gpu/source.h
              FOLDER engine/attention/gpu/kernels FILES ${kernels})
