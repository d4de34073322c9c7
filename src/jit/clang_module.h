#pragma once
// The one door between segfuse and libsegfuse_clang: plain C types, so that the library can be
// opened at run time and nothing else needs LLVM to be built or to run.

#include <cstddef>
#include <cstdint>

extern "C" {

/// What is compiled, and for what. Texts end with a zero; all are read during the call only.
struct SegfuseClangRequest {
  const char* text;
  std::size_t size;
  const char* cpu;       ///< LLVM's name of the processor
  const char* features;  ///< "+avx2,-avx512f,..." as LLVM spells them; may be empty
  int vector_bits;       ///< the widest vectors to make of loops; 0: as LLVM prefers
  int remarks;           ///< not 0: also say which loops the vectoriser left alone, and why
};

enum SegfuseClangKind { kSegfuseClangError = 0, kSegfuseClangRemark = 1 };

/// Where results go; called before compile() returns, one call at a time, from a thread of the
/// library's. `sink` is handed back.
struct SegfuseClangSink {
  void* sink;
  void (*object)(void* sink, const char* bytes, std::size_t size);
  /// Lines count from 1; 0: no place.
  void (*message)(void* sink, int kind, unsigned line, const char* text, std::size_t size);
};

/// Version 2. All functions may be called from any thread.
struct SegfuseClangTable {
  std::uint32_t version;
  /// "clang 19.1.7".
  const char* (*compiler)();
  /// What every text is compiled with; part of every key, as is the compiler.
  const char* (*flags)();
  /// This machine: both texts live as long as the process.
  const char* (*host_cpu)();
  const char* (*host_features)();
  /// Not 0 on success: object() was called once. Otherwise message() was called with an error.
  int (*compile)(const SegfuseClangRequest* request, const SegfuseClangSink* results);
};

inline constexpr std::uint32_t kSegfuseClangVersion = 2;

/// The only symbol of the library.
using SegfuseClangEntry = const SegfuseClangTable* (*)();
}
