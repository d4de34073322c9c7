# segfuse_batches(TARGET): compiles the sources of each folder as one, so that headers are read once: the names that
# anonymous namespaces hold are unique within a folder. Sources that Highway compiles once for each target stay alone.
# -DSEGFUSE_BATCHES=OFF compiles each source by itself.
function(segfuse_batches target)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    file(STRINGS ${source} targets REGEX "define HWY_TARGET_INCLUDE" LIMIT_COUNT 1)
    if(NOT targets)
      cmake_path(GET source PARENT_PATH folder)
      file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${folder})
      string(REPLACE "/" "_" folder ${folder})
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SEGFUSE_BATCHES} UNITY_BUILD_MODE GROUP)
  # A type that a source defines for itself looks to gcc as if a header did.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()

# segfuse_module(NAME DEPENDS modules... LINK libraries... WITHOUT folder): one library from all sources under src/NAME,
# but those in src/NAME/folder.
# The layer table in tools/layers.toml says which modules may depend on which.
function(segfuse_module name)
  cmake_parse_arguments(ARG "" "WITHOUT" "DEPENDS;LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  if(ARG_WITHOUT)
    list(FILTER sources EXCLUDE REGEX "/${name}/${ARG_WITHOUT}/")
  endif()
  add_library(segfuse_${name} STATIC ${sources})
  segfuse_batches(segfuse_${name})
  target_link_libraries(segfuse_${name} PUBLIC segfuse_options ${ARG_LINK})
  foreach(dependency ${ARG_DEPENDS})
    target_link_libraries(segfuse_${name} PUBLIC segfuse_${dependency})
  endforeach()
endfunction()

# segfuse_test_batches(TARGET): compiles the sources of a test program as two, those whose names begin with a to l and the
# others, and each folder in it as one more. So a new file moves no other one, and an edit compiles half a program at most.
function(segfuse_test_batches target)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE path)
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR}/tests/unit ${path})
    if(NOT path MATCHES "^[.][.]/")
      cmake_path(GET path FILENAME name)
      cmake_path(GET path PARENT_PATH folder)
      if(folder MATCHES "/")
        string(REPLACE "/" "_" group ${folder})
      elseif(name MATCHES "^[a-l]")
        set(group ${folder}_a_to_l)
      else()
        set(group ${folder}_m_to_z)
      endif()
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SEGFUSE_BATCHES} UNITY_BUILD_MODE GROUP)
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()

# segfuse_test_options(TARGET): how test programs are compiled: built once and run once, so quickly. The undefined-behaviour
# sanitizer is for the code under test: in the tests' own it would double their time.
function(segfuse_test_options target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  set_target_properties(${target} PROPERTIES SEGFUSE_WITHOUT_UNDEFINED ON)
endfunction()

# segfuse_test(NAME DEPENDS modules... LINK libraries... LABELS labels...): one test program and one ctest entry from
# all sources under tests/unit/NAME. What is labelled "long" runs in make test-long only. UNSANITIZED: make sanitize leaves it
# out; other programs and the command take the same code there.
function(segfuse_test name)
  cmake_parse_arguments(ARG "UNSANITIZED" "" "DEPENDS;LINK;LABELS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/unit/${name}/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(segfuse_test_${name} ${sources})
  target_link_libraries(segfuse_test_${name} PRIVATE GTest::gtest GTest::gmock GTest::gtest_main ${ARG_LINK})
  target_include_directories(segfuse_test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  segfuse_test_options(segfuse_test_${name})
  segfuse_test_batches(segfuse_test_${name})
  target_precompile_headers(segfuse_test_${name} REUSE_FROM segfuse_test_headers)
  foreach(dependency ${ARG_DEPENDS})
    target_link_libraries(segfuse_test_${name} PRIVATE segfuse_${dependency})
  endforeach()
  target_include_directories(segfuse_test_${name} PRIVATE ${PROJECT_BINARY_DIR}/generated)  # support/source_dir.h
  add_test(NAME ${name} COMMAND segfuse_test_${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 1200 LABELS "${ARG_LABELS}")
  if(SEGFUSE_SANITIZE AND ARG_UNSANITIZED)
    set_tests_properties(${name} PROPERTIES LABELS long)
  endif()
  if(SEGFUSE_SANITIZE AND (ARG_UNSANITIZED OR "long" IN_LIST ARG_LABELS))  # make sanitize does not run them
    set_target_properties(segfuse_test_${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
  endif()
endfunction()
