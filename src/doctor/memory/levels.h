#pragma once
// How much was live, cached and mapped at each moment of a record's history.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "doctor/record.h"

namespace segfuse::doctor {

/// A buffer's place: arena and offset.
using Place = std::pair<int, std::uint64_t>;

struct Held {
  std::uint64_t bytes = 0;
  std::uint64_t requested = 0;
  std::uint32_t stream = 0;
  std::string label;
};
using HeldBuffers = std::map<Place, Held>;

/// Bytes; a history that lost its beginning can make a level that is unknown seem negative, so
/// they are signed.
struct Levels {
  std::int64_t live = 0;
  std::int64_t cached = 0;
  std::int64_t mapped = 0;
};

/// Goes through a history event by event.
class Walk {
 public:
  /// At the moment before the first event: what the snapshot or later frees show to have been
  /// there.
  explicit Walk(const MemoryRecord& record);

  /// A buffer that is handed out where one is held already takes its place: its free is missing.
  void apply(const runtime::HeapEvent& event);

  const Levels& levels() const { return levels_; }
  const HeldBuffers& held() const { return held_; }

 private:
  Levels levels_;
  HeldBuffers held_;
};

}  // namespace segfuse::doctor
