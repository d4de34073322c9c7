#pragma once
// What is to be done, as plain data: the only thing that a compiler hands to a runtime. A plan says
// which steps there are and what each reads and writes, in an order that is right when steps run
// one after the other. Streams, waits, the memory of scratch buffers and when it is free follow
// from that and are not written down (plan/placement.h derives them).

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace segfuse::plan {

struct BufferId {
  std::uint32_t index = 0;
  auto operator<=>(const BufferId&) const = default;
};

struct BufferSpec {
  enum class Kind : std::uint8_t {
    kInput,     ///< given to a run, only read
    kOutput,    ///< given to a run, written by it
    kInOut,     ///< given to a run, read and written
    kConstant,  ///< given once
    kScratch,   ///< the run's own; written before it is read
  };
  Kind kind = Kind::kScratch;
  std::string name;  ///< for reports
  std::size_t bytes = 0;
};

struct Step {
  enum class Kind : std::uint8_t {
    kCall,        ///< function `function` of those that come with the plan: kernels, library calls
    kCopy,        ///< reads[0] to writes[0], all bytes of the smaller one
    kFill,        ///< writes[0] with `value`
    kCollective,  ///< as kCall; never beside another collective
  };
  Kind kind = Kind::kCall;
  std::string name;  ///< for reports: "matmul", "norm at encoder.sf:12"
  std::uint32_t function = 0;
  std::uint8_t value = 0;
  std::vector<BufferId> reads;
  /// Also what is read and written. A buffer occurs once in reads and writes together.
  std::vector<BufferId> writes;
};

/// Device code that functions of the plan come from, for dumps and caches.
struct SourceUnit {
  std::string name;
  std::string language;  ///< "c", "cuda"
  std::string text;
};

struct Plan {
  std::string name;
  std::vector<BufferSpec> buffers;
  std::vector<Step> steps;
  std::vector<SourceUnit> sources;
};

/// Throws InternalError naming the first step that cannot be: an id that is not there, an input or
/// constant that is written, scratch that is read before it is written, a buffer named twice, a
/// copy or fill of the wrong form.
void verify(const Plan& plan);

/// One line a buffer, one line a step.
std::string to_string(const Plan& plan);

}  // namespace segfuse::plan
