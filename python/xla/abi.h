#pragma once
// The part of XLA's FFI that a handler needs: how XLA calls it, what it may ask of XLA, and how it
// reports an error. XLA promises that this layout stays within major version 0, and that what
// grows, grows at the ends of structures. So the package needs no header of jaxlib when it is
// built, and one build serves every jaxlib.

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

struct MessageArguments {
  std::size_t size;
  Extension* extensions;
  Error* error;
  const char* message;  ///< out; of the error
};

struct DestroyArguments {
  std::size_t size;
  Extension* extensions;
  Error* error;
};

struct StreamArguments {
  std::size_t size;
  Extension* extensions;
  void* context;
  void* stream;  ///< out: a CUstream
};

struct AllocateArguments {
  std::size_t size;
  Extension* extensions;
  void* context;
  std::size_t bytes;
  std::size_t alignment;
  void* data;  ///< out
};

struct FreeArguments {
  std::size_t size;
  Extension* extensions;
  void* context;
  std::size_t bytes;
  void* data;
};

struct OrdinalArguments {
  std::size_t size;
  Extension* extensions;
  void* context;
  std::int32_t ordinal;  ///< out
};

/// Functions return null, or an error that the caller destroys.
template <class Arguments>
using Function = Error*(Arguments*);
using Unused = void (*)();

struct Api {
  std::size_t size;
  Extension* extensions;
  ApiVersion version;
  const void* internal;
  Function<ErrorArguments>* create_error;
  void (*message)(MessageArguments*);
  void (*destroy)(DestroyArguments*);
  Unused register_handler;
  Function<StreamArguments>* stream;
  Unused register_type;
  Unused execution_context;
  Unused set_state;
  Unused state;
  Function<AllocateArguments>* allocate;
  Function<FreeArguments>* free;
  Unused schedule;
  Unused thread_count;
  Unused create_future;
  Unused set_available;
  Unused set_error;
  Unused run_id;
  Function<OrdinalArguments>* device_ordinal;  ///< since a later minor version than the others
};

enum class Type : std::int32_t {
  kPred = 1,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 16
};

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
