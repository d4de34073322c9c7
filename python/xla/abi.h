#pragma once
// The part of XLA's FFI that a handler on the CPU needs: how XLA calls it, and how it reports an
// error. XLA promises that this layout stays within major version 0, and that what grows, grows at
// the ends of structures. So the package needs no header of jaxlib when it is built, and one build
// serves every jaxlib.

#include <cstddef>
#include <cstdint>

namespace segfuse::python::xla {

struct Extension {
  std::size_t size;
  std::int32_t type;
  Extension* next;
};
inline constexpr std::int32_t kMetadataExtension = 1;

struct ApiVersion {
  std::size_t size;
  Extension* extensions;
  std::int32_t major;
  std::int32_t minor;
};

struct Metadata {
  std::size_t size;
  ApiVersion version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

enum class ErrorCode : std::int32_t { kInvalidArgument = 3, kInternal = 13 };

struct Error;

struct ErrorArguments {
  std::size_t size;
  Extension* extensions;
  const char* message;  ///< copied
  ErrorCode code;
};

struct Api {
  std::size_t size;
  Extension* extensions;
  ApiVersion version;
  const void* internal;
  Error* (*create_error)(ErrorArguments*);
};

enum class Type : std::int32_t { kS32 = 4, kS64 = 5, kF32 = 11, kF64 = 12 };

/// A dense array, row by row.
struct Buffer {
  std::size_t size;
  Extension* extensions;
  Type type;
  void* data;
  std::int64_t rank;
  std::int64_t* extents;
};

/// Arguments, or results.
struct Buffers {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  const std::int32_t* kinds;
  Buffer* const* values;
};

struct Text {
  const char* data;
  std::size_t size;
};

struct Scalar {
  Type type;
  const void* value;
};

struct Attributes {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  const std::int32_t* kinds;
  const Text* const* names;
  const void* const* values;
};
inline constexpr std::int32_t kScalarAttribute = 3;

inline constexpr std::int32_t kExecute = 3;

struct CallFrame {
  std::size_t size;
  Extension* extensions;
  const Api* api;
  void* context;
  std::int32_t stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

using Handler = Error*(CallFrame*);

}  // namespace segfuse::python::xla
