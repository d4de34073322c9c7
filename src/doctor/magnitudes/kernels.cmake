# The device code's text. Included by src/CMakeLists.txt after module doctor.
file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/kernels/*.cuh ${CMAKE_CURRENT_LIST_DIR}/kernels/*.h)
segfuse_embed(segfuse_doctor FUNCTION segfuse::doctor::magnitude_kernel_source HEADER doctor/magnitudes/source.h
              FOLDER doctor/magnitudes/kernels FILES ${kernels})
