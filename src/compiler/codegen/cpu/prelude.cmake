# The C prelude's text. Included by src/CMakeLists.txt after module compiler.
file(GLOB prelude CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/prelude/*.h)
segfuse_embed(segfuse_compiler FUNCTION segfuse::compiler::cpu::prelude_source HEADER compiler/codegen/cpu/prelude.h
              FOLDER compiler/codegen/cpu/prelude FILES ${prelude})
