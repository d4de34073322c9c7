#!/usr/bin/env bash
# The other output of recipe.yaml: the Python package. Its libraries are conda's, not copies.
set -euo pipefail
# Not among the options: there it would hide the folder of nanobind, which scikit-build-core names.
export CMAKE_PREFIX_PATH=$PREFIX CMAKE_GENERATOR=Ninja CMAKE_BUILD_PARALLEL_LEVEL=$CPU_COUNT
export CMAKE_ARGS="${CMAKE_ARGS-} -DSEGFUSE_REPAIRED_LATER=ON -DSEGFUSE_MPI=OFF -DSEGFUSE_CLANG=ON \
-DSEGFUSE_LLVM_INCLUDE=$PREFIX/include -DSEGFUSE_LLVM_LIBRARY=$PREFIX/lib/libLLVM.so.19.1 \
-DSEGFUSE_CLANG_LIBRARY=$PREFIX/lib/libclang-cpp.so.19.1"
"$PYTHON" -m pip install . --no-deps --no-build-isolation -v
# libsegfuse has the command by this name; two packages cannot have one file.
rm "$PREFIX/bin/segfuse"
