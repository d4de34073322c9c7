#pragma once
// C text to machine code, each text once: in this process, and on disk for the next ones.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/code/code_store.h"
#include "jit/code.h"

namespace segfuse::jit {

struct CpuCompilerOptions {
  /// Nothing: this machine.
  std::optional<CpuTarget> target = std::nullopt;
  /// Most modules that the compiler itself keeps alive.
  std::size_t capacity = 1024;
  /// Where object files are kept; null: nowhere.
  std::shared_ptr<const CodeStore> store = nullptr;
};

/// Counts of what happened so far.
struct CpuCompilerCounters {
  std::int64_t compiled = 0;   ///< by clang
  std::int64_t hits = 0;       ///< found in memory, or waited for while another thread made it
  std::int64_t disk_hits = 0;  ///< loaded from the folder
  std::int64_t evicted = 0;    ///< dropped because the cache was full
  std::int64_t failed = 0;     ///< texts that did not compile
};

/// Thread-safe. Equal texts give the same code, compiled once; the name of a source plays no part.
class CpuCompiler {
 public:
  virtual ~CpuCompiler() = default;

  /// Throws CompileError; the cache stays as it was, and the next call tries again.
  virtual std::shared_ptr<const CpuCode> compile(const CSource& source) = 0;
  /// The bytes of an object file for any target of this architecture, past all caches. Throws
  /// CompileError.
  virtual std::string compile_object(const CSource& source, const CpuTarget& target) const = 0;
  /// What the vectorisers say of the loops of a text, a line each: "12: loop not vectorized: ...".
  virtual std::string vector_report(const CSource& source) const = 0;

  /// The target of compile().
  virtual const CpuTarget& target() const = 0;
  virtual const CpuTarget& host_target() const = 0;
  /// "clang 19.1.7".
  virtual const std::string& version() const = 0;
  virtual CpuCompilerCounters counters() const = 0;
  /// Where the object file of a text is, or will be; empty without a folder.
  virtual std::filesystem::path object_path(std::string_view text) const = 0;
};

/// Nothing, with the reason, where libsegfuse_clang cannot be used: it was not built, or is not
/// found beside the program (SEGFUSE_CLANG may name its file), or the processor is none of ours.
std::shared_ptr<CpuCompiler> open_cpu_compiler(std::string* reason = nullptr,
                                               CpuCompilerOptions options = {});

}  // namespace segfuse::jit
