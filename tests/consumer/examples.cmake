# Every example, as a stranger builds and runs it: with warnings, flags and a standard of its own.
set(root ${CMAKE_CURRENT_LIST_DIR}/../..)
enable_testing()
add_compile_options(-Wall -Wextra -Wconversion -Wshadow -Werror -fno-strict-aliasing)

# consumer(NAME SOURCE arguments...): a program that links segfuse, and its run.
function(consumer name source)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE segfuse::segfuse)
  target_compile_options(${name} PRIVATE -fno-rtti)
  add_test(NAME ${name} COMMAND ${name} ${ARGN} WORKING_DIRECTORY ${root})
endfunction()
file(GLOB examples ${root}/examples/*.cpp)
foreach(example ${examples})
  get_filename_component(name ${example} NAME_WE)
  consumer(${name} ${example})
endforeach()
consumer(context ${CMAKE_CURRENT_LIST_DIR}/context.cpp)
consumer(doctor ${CMAKE_CURRENT_LIST_DIR}/doctor.cpp)
target_link_libraries(doctor PRIVATE segfuse::doctor)

# The program in C is written by the command, and needs nothing of segfuse from then on.
add_custom_command(
  OUTPUT layer_norm.c layer_norm.h
  COMMAND ${SEGFUSE_COMMAND_FILE} compile ${root}/examples/layer_norm.sf --emit=c --overwrite
          --out ${CMAKE_CURRENT_BINARY_DIR}/layer_norm.c
  DEPENDS ${root}/examples/layer_norm.sf)
add_executable(ahead_of_time ${root}/examples/ahead_of_time.c layer_norm.c)
target_include_directories(ahead_of_time PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
target_link_libraries(ahead_of_time PRIVATE m)
add_test(NAME ahead_of_time COMMAND ahead_of_time 2 3 /dev/zero ${CMAKE_CURRENT_BINARY_DIR}/y.bin)

# Every public header by itself.
file(GLOB_RECURSE headers RELATIVE ${root}/include ${root}/include/*.h)
foreach(header ${headers})
  string(MAKE_C_IDENTIFIER ${header} name)
  file(CONFIGURE OUTPUT headers/${name}.cpp CONTENT "#include \"${header}\"\n")
  list(APPEND alone ${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cpp)
endforeach()
add_library(headers OBJECT ${alone})
target_link_libraries(headers PRIVATE segfuse::segfuse)
