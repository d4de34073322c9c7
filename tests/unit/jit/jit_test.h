#pragma once
// What the tests of generated code share.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "jit/cpu_compiler.h"
#include "support/files.h"

namespace segfuse::jit {

/// Skips where the module was not built; where it was built it has to open.
class JitTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (open_cpu_compiler(&reason) != nullptr) return;
#ifdef SEGFUSE_WITH_CLANG
    FAIL() << reason;
#else
    GTEST_SKIP() << reason;
#endif
  }

  /// Nothing on disk.
  static std::shared_ptr<CpuCompiler> in_memory(std::size_t capacity = 16) {
    return open_cpu_compiler(nullptr, {.capacity = capacity});
  }
  static std::shared_ptr<CpuCompiler> on_disk(const std::filesystem::path& folder) {
    return open_cpu_compiler(nullptr, {.store = std::make_shared<const CodeStore>(folder)});
  }
};

/// void NAME(...): y[i] = factor * x[i] for i in [begin, end).
inline CSource scaling(const std::string& name, int factor) {
  return {name, "void " + name +
                    "(void *const *b, const long *s, long begin, long end, void *scratch) {\n"
                    "  const float *x = b[0];\n  float *y = b[1];\n"
                    "  for (long i = begin; i < end; ++i) y[i] = " +
                    std::to_string(factor) + ".0f * x[i];\n}\n"};
}

/// What the function makes of 3: 3 * factor.
inline float scaled(const CpuCode& code, const std::string& name) {
  float x[2] = {0, 3};
  float y[2] = {-1, -1};
  void* buffers[] = {x, y};
  code.function(name)(buffers, nullptr, 1, 2, nullptr);
  EXPECT_EQ(y[0], -1) << "outside of the range";
  return y[1];
}

}  // namespace segfuse::jit
