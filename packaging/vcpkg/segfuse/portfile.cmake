# An overlay port of the tree that it lies in:
#   vcpkg install segfuse --overlay-ports=packaging/vcpkg --triplet=x64-linux-dynamic
cmake_path(SET SOURCE_PATH NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../../..")
vcpkg_check_features(OUT_FEATURE_OPTIONS features FEATURES command SEGFUSE_COMMAND)
# What is opened at run time (clang's module, MPI's) belongs to the machine: it is left out.
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
                      OPTIONS ${features} -DSEGFUSE_TESTS=OFF -DSEGFUSE_CLANG=OFF -DSEGFUSE_MPI=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/segfuse)
vcpkg_fixup_pkgconfig()
if("command" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES segfuse AUTO_CLEAN)
endif()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
