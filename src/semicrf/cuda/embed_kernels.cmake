# cmake -DOUTPUT=x.cpp "-DFILES=a;b" -P embed_kernels.cmake: kernel_source() over the files' texts.
# A file becomes raw string literals of at most `piece` bytes each, cut at ends of lines.
set(piece 15000)
set(body "")
foreach(file IN LISTS FILES)
  file(READ "${file}" rest)
  string(REPLACE "#pragma once\n" "" rest "${rest}")
  get_filename_component(name "${file}" NAME)
  string(APPEND body "  if (name == \"${name}\") {\n")
  string(LENGTH "${rest}" left)
  while(left GREATER 0)
    set(take ${left})
    if(left GREATER piece)
      string(SUBSTRING "${rest}" 0 ${piece} part)
      string(FIND "${part}" "\n" last REVERSE)
      math(EXPR take "${last} + 1")
    endif()
    string(SUBSTRING "${rest}" 0 ${take} part)
    string(SUBSTRING "${rest}" ${take} -1 rest)
    string(LENGTH "${rest}" left)
    string(APPEND body "    out += R\"embed(${part})embed\";\n")
  endwhile()
  string(APPEND body "    return out;\n  }\n")
endforeach()
file(WRITE "${OUTPUT}" "// Written by embed_kernels.cmake.\n#include \"semicrf/cuda/sources.h\"\n\n"
     "#include \"segfuse/error.h\"\n\nnamespace segfuse::semicrf::gpu {\n\n"
     "std::string kernel_source(std::string_view name) {\n  std::string out;\n${body}"
     "  throw InternalError(\"there is no kernel file \" + std::string(name));\n}\n\n"
     "}  // namespace segfuse::semicrf::gpu\n")
