# segfuse_embed(TARGET FUNCTION function HEADER header FOLDER folder FILES files...): builds texts into a library.
# `function`, which HEADER declares as std::string(std::string_view name), gives the text of a file by its path in FOLDER,
# after the files that it includes, each once. Only embedded files may be included, by their paths below src/.
function(segfuse_embed target)
  cmake_parse_arguments(ARG "" "FUNCTION;HEADER;FOLDER" "FILES" ${ARGN})
  string(MAKE_C_IDENTIFIER "${ARG_FUNCTION}" name)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  set(script ${PROJECT_SOURCE_DIR}/cmake/embed.cmake)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DFUNCTION=${ARG_FUNCTION} -DHEADER=${ARG_HEADER} -DFOLDER=${ARG_FOLDER}
            -DROOT=${PROJECT_SOURCE_DIR}/src "-DFILES=${ARG_FILES}" -P ${script}
    DEPENDS ${ARG_FILES} ${script}
    COMMENT "Embedding ${ARG_FOLDER}"
    VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()

if(NOT CMAKE_SCRIPT_MODE_FILE)
  return()
endif()

# From here on: cmake -P, once a library.
cmake_minimum_required(VERSION 3.25)
set(piece 16000) # bytes of a literal, at most; it ends at the end of a line

# A function of the generated file that appends the text of `file`, which is `number`.
function(write_text file number)
  file(READ "${file}" rest)
  string(REGEX MATCHALL "#include \"[^\"\n]*\"" includes "${rest}")
  string(REGEX REPLACE "#include \"([^\"\n]*)\"" "${ROOT}/\\1" includes "${includes}")
  set("includes_${file}" "${includes}" PARENT_SCOPE)
  string(REPLACE "#pragma once\n" "" rest "${rest}")
  string(REGEX REPLACE "\n?(#include \"[^\"\n]*\"\n)+\n?" "" rest "${rest}")
  set(body "void text_${number}([[maybe_unused]] std::string& out) {\n")
  string(LENGTH "${rest}" left)
  while(left GREATER 0)
    set(take ${left})
    if(left GREATER piece)
      string(SUBSTRING "${rest}" 0 ${piece} part)
      string(FIND "${part}" "\n" last REVERSE)
      if(last LESS 0)
        message(FATAL_ERROR "${file} has a line of more than ${piece} bytes; break it")
      endif()
      math(EXPR take "${last} + 1")
    endif()
    string(SUBSTRING "${rest}" 0 ${take} part)
    string(SUBSTRING "${rest}" ${take} -1 rest)
    string(LENGTH "${rest}" left)
    string(APPEND body "  out += R\"embed(${part})embed\";\n")
  endwhile()
  set(texts "${texts}${body}}\n" PARENT_SCOPE)
endfunction()

# Appends to `order` what `file` includes and `file`, where they are not in it.
function(visit file)
  if(NOT file IN_LIST order)
    foreach(included IN LISTS "includes_${file}")
      if(NOT included IN_LIST FILES)
        message(FATAL_ERROR "${file} includes ${included}, which is not embedded")
      endif()
      visit("${included}")
    endforeach()
    set(order "${order};${file}" PARENT_SCOPE)
  endif()
endfunction()

set(texts "")
foreach(file IN LISTS FILES)
  list(FIND FILES "${file}" number)
  write_text("${file}" ${number})
endforeach()
set(choices "")
foreach(file IN LISTS FILES)
  file(RELATIVE_PATH name "${ROOT}/${FOLDER}" "${file}")
  string(APPEND choices "  if (name == \"${name}\") {\n")
  set(order "")
  visit("${file}")
  foreach(needed IN LISTS order)
    if(needed)
      list(FIND FILES "${needed}" number)
      string(APPEND choices "    text_${number}(out);\n")
    endif()
  endforeach()
  string(APPEND choices "    return out;\n  }\n")
endforeach()
file(WRITE "${OUTPUT}"
     "// Written by cmake/embed.cmake.\n#include \"${HEADER}\"\n\n#include \"segfuse/error.h\"\n\n"
     "namespace {\n\n${texts}\n}  // namespace\n\n"
     "std::string ${FUNCTION}(std::string_view name) {\n  std::string out;\n${choices}"
     "  throw segfuse::InternalError(\"${FOLDER} has no file \" + std::string(name));\n}\n")
