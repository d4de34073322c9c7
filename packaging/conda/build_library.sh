#!/usr/bin/env bash
# One output of recipe.yaml: the C++ library and the command. MPI's standard ABI needs nothing here.
set -euo pipefail
# shellcheck disable=SC2086  # CMAKE_ARGS are words
cmake -S . -B build -G Ninja -DCMAKE_PREFIX_PATH="$PREFIX" -DCMAKE_INSTALL_PREFIX="$PREFIX" \
  -DSEGFUSE_TESTS=OFF -DSEGFUSE_MPI=OFF -DSEGFUSE_CLANG=ON \
  -DSEGFUSE_LLVM_INCLUDE="$PREFIX/include" -DSEGFUSE_LLVM_LIBRARY="$PREFIX/lib/libLLVM.so.19.1" \
  -DSEGFUSE_CLANG_LIBRARY="$PREFIX/lib/libclang-cpp.so.19.1" ${CMAKE_ARGS-}
cmake --build build --parallel "$CPU_COUNT"
cmake --install build
