#pragma once
// What the race checker finds, in words and as a picture.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "segfuse/error.h"

namespace segfuse::runtime {

/// Something that was enqueued. Launches, copies and fills are operations and are counted from 1 on
/// each stream; records and waits are not.
struct Operation {
  enum class Kind { kWork, kRecord, kWait };
  Kind kind = Kind::kWork;
  int stream = 0;               ///< its number: streams are counted from 1 as they are made
  std::uint64_t operation = 0;  ///< of kWork: its own number; else that of the last one before it
  std::string name;             ///< of the work
  // Of kWait: the stream whose record is waited for, and the last operation before the record.
  int from_stream = 0;
  std::uint64_t from_operation = 0;
};

struct Finding {
  enum class Kind {
    kRace,      ///< two uses, one of them a write, and no order between them
    kNoMemory,  ///< a use of reserved addresses without memory
    kReleased,  ///< memory was taken away while it may be in use
    kHost,      ///< the host touches memory while the device may be using it
  };
  struct Use {
    int stream = 0;           ///< 0: the host
    std::string stream_name;  ///< empty: none was given
    std::uint64_t operation = 0;
    std::string work;
    std::string buffer;  ///< empty: not named
    bool write = false;
  };

  Kind kind = Kind::kRace;
  Use earlier;  ///< what was enqueued first; kNoMemory has none
  Use later;    ///< what was found to be wrong: a use, a release, the host's access
  std::uintptr_t address = 0;
  std::size_t bytes = 0;  ///< from the first byte in question to the last
  /// What was enqueued lately, up to `later`; for the first findings only.
  std::vector<Operation> history;

  /// "stream 2 has to wait for an event recorded on stream 1 after 'gather' (its 7th operation)".
  std::string missing() const;
  /// One sentence: the uses, the memory, what is missing.
  std::string describe() const;
};

/// Thrown by a checker that throws.
class RaceFound : public InternalError {
 public:
  explicit RaceFound(Finding found) : InternalError(found.describe()), finding(std::move(found)) {}
  Finding finding;
};

/// A picture of a race (SVG): streams are lanes, operations boxes, waits arrows; the racing pair is
/// red and the missing wait a dashed arrow. Shows the last `most` entries of the history, and the
/// two in any case.
std::string race_picture(const Finding& finding, std::size_t most = 12);

}  // namespace segfuse::runtime
