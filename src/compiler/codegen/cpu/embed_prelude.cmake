# cmake -DOUTPUT=x.cpp "-DFILES=a;b" -P embed_prelude.cmake: prelude_source() of the files' texts, as raw string
# literals (compilers need to take no more than 64 KiB in one).
set(body "")
foreach(file IN LISTS FILES)
  file(READ "${file}" text)
  string(REPLACE "#pragma once\n" "" text "${text}")
  string(APPEND body "  out += R\"embed(${text})embed\";\n")
endforeach()
file(WRITE "${OUTPUT}" "// Written by embed_prelude.cmake.\n#include \"compiler/codegen/cpu/prelude.h\"\n\n"
     "namespace segfuse::compiler::cpu {\n\nstd::string prelude_source() {\n  std::string out;\n${body}"
     "  return out;\n}\n\n}  // namespace segfuse::compiler::cpu\n")
