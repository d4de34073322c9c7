# The report's page. Included by src/CMakeLists.txt after module learn.
file(GLOB assets CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/assets/*)
segfuse_embed(segfuse_learn FUNCTION segfuse::learn::report_asset HEADER learn/report/assets.h
              FOLDER learn/report/assets FILES ${assets})
