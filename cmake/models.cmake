# The pretrained models (models/) where the command and the library look for them: ../share/segfuse/models of their folder,
# in the build a link. In the Python package they are a wheel of their own (packaging/models).
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/share/segfuse)
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/models ${PROJECT_BINARY_DIR}/share/segfuse/models SYMBOLIC)
if(SEGFUSE_INSTALL)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/models DESTINATION share/segfuse)
endif()
