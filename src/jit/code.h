#pragma once
// Machine code in this process: what it is made from, what for, and how it is called.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "segfuse/error.h"

namespace segfuse::jit {

/// A text in C (clang's: vector types, __builtin functions, no #include). What it wants to be found
/// are its functions with external linkage.
struct CSource {
  std::string name;  ///< for messages; not part of any key
  std::string text;
};

/// A processor to compile for, and what of it may be used.
struct CpuTarget {
  std::string cpu;       ///< LLVM's name: "znver4", "x86-64-v3"
  std::string features;  ///< "+avx2,-avx512f", sorted by name; overrides what `cpu` implies
  int vector_bits = 0;   ///< widest vectors to make of loops: 512, 256, 128; 0: what LLVM prefers
  /// One line; equal texts, equal code.
  std::string text() const;
  friend bool operator==(const CpuTarget&, const CpuTarget&) = default;
};

/// How generated functions are called. `buffers` are base addresses, `sizes` extents, strides and
/// the like, [begin, end) is the part of the outer loop to do, `scratch` is memory for one thread.
using CpuFunction = void (*)(void* const* buffers, const std::int64_t* sizes, std::int64_t begin,
                             std::int64_t end, void* scratch);

/// A text did not compile. The message names the source, the line and what the compiler said first.
class CompileError : public InternalError {
 public:
  CompileError(const CSource& source, unsigned line, std::string message);
  unsigned line() const noexcept { return line_; }  ///< from 1; 0: no place
  const std::string& message() const noexcept { return message_; }
  /// The whole text, for a report.
  const std::string& text() const noexcept { return text_; }

 private:
  unsigned line_;
  std::string message_;
  std::string text_;
};

/// An object file placed into memory, ready to run. Its functions may be called from any thread, as
/// long as somebody holds it.
class CpuCode {
 public:
  /// Places a relocatable ELF file for x86-64. What the object does not define is looked for in
  /// this process, libm and libgcc. Throws InternalError when the object is none that we can place,
  /// or needs a function that nobody has; `name` is for the message.
  CpuCode(std::string_view name, std::string_view object);
  ~CpuCode();
  CpuCode(const CpuCode&) = delete;
  CpuCode& operator=(const CpuCode&) = delete;

  /// The address of a function or variable with external linkage. Throws InternalError with its
  /// name when there is none.
  void* symbol(std::string_view name) const;
  CpuFunction function(std::string_view name) const {
    return reinterpret_cast<CpuFunction>(symbol(name));
  }
  /// Names of all symbols, sorted.
  std::vector<std::string> symbols() const;
  /// Memory taken, in bytes.
  std::size_t bytes() const noexcept { return size_; }

 private:
  std::string name_;
  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
  std::vector<std::pair<std::string, void*>> symbols_;  // sorted
};

}  // namespace segfuse::jit
