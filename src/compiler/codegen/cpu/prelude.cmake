# Builds the C prelude's text into the library. Included by src/CMakeLists.txt after module compiler.
set(prelude_dir ${CMAKE_CURRENT_LIST_DIR})
set(prelude_files "")
foreach(name types memory arithmetic casts math_f32 math_f64 reduce transpose)
  list(APPEND prelude_files ${prelude_dir}/prelude/${name}.h)
endforeach()
set(prelude_cpp ${CMAKE_CURRENT_BINARY_DIR}/cpu_prelude.cpp)
add_custom_command(
  OUTPUT ${prelude_cpp}
  COMMAND ${CMAKE_COMMAND} -DOUTPUT=${prelude_cpp} "-DFILES=${prelude_files}"
          -P ${prelude_dir}/embed_prelude.cmake
  DEPENDS ${prelude_files} ${prelude_dir}/embed_prelude.cmake
  COMMENT "Embedding the C prelude"
  VERBATIM)
target_sources(segfuse_compiler PRIVATE ${prelude_cpp})
