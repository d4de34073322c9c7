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
