# Builds the report's page into the library. Included by src/CMakeLists.txt after module learn.
set(report_dir ${CMAKE_CURRENT_LIST_DIR})
set(report_assets report.html report.css util.js charts.js tables.js viewer.js report.js)
list(TRANSFORM report_assets PREPEND ${report_dir}/assets/ OUTPUT_VARIABLE report_asset_files)
set(report_assets_cpp ${CMAKE_CURRENT_BINARY_DIR}/report_assets.cpp)
add_custom_command(
  OUTPUT ${report_assets_cpp}
  COMMAND ${CMAKE_COMMAND} -DOUTPUT=${report_assets_cpp} "-DFILES=${report_asset_files}"
          -P ${report_dir}/embed_assets.cmake
  DEPENDS ${report_asset_files} ${report_dir}/embed_assets.cmake
  COMMENT "Embedding the report's page"
  VERBATIM)
target_sources(segfuse_learn PRIVATE ${report_assets_cpp})
