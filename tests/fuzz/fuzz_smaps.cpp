// What /proc tells of a process, and a heap whose every byte is somebody else's: the input is taken
// as text and as memory.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/memory/headroom.h"
#include "doctor/fork/read/glibc_heap.h"
#include "doctor/fork/read/pins.h"
#include "doctor/fork/read/smaps.h"
#include "doctor/fork/read/software.h"
#include "segfuse/error.h"

namespace {

using namespace segfuse::doctor;

constexpr std::uint64_t kBase = std::uint64_t{3} << 26;

class InputMemory final : public MemoryReader {
 public:
  explicit InputMemory(std::string_view bytes) : bytes_(bytes) {}
  std::size_t read(std::uint64_t address, std::span<std::byte> into) const override {
    if (address < kBase || address - kBase >= bytes_.size()) return 0;
    const std::size_t count = std::min(into.size(), bytes_.size() - (address - kBase));
    std::memcpy(into.data(), bytes_.data() + (address - kBase), count);
    return count;
  }

 private:
  std::string_view bytes_;
};

void check(bool holds) {
  if (!holds) std::abort();
}

void walk(std::string_view bytes) {
  const InputMemory memory(bytes);
  const std::uint64_t end = kBase + bytes.size();
  std::uint64_t at = kBase;
  for (const Chunk& chunk : walk_chunks(memory, kBase, end).chunks) {
    check(chunk.begin == at && chunk.bytes >= 16 && chunk.end() <= end);
    at = chunk.end();
  }
  if (const auto heap = arena_heap_of(memory, kBase + bytes.size() / 2))
    check(heap->end > kBase && heap->end - kBase <= (std::uint64_t{64} << 20));
  MmappedChunks mapped(memory);
  if (const auto chunk = mapped.covering(kBase + bytes.size() / 2, kBase, end))
    check(chunk->begin >= kBase && chunk->end() <= end);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const std::vector<Vma> vmas = parse_smaps(bytes);
    std::size_t next = 0;
    for (const Mapping& mapping : join_mappings(vmas)) {
      check(mapping.first == next && mapping.last < vmas.size());
      check(mapping.begin == vmas[mapping.first].begin && mapping.end == vmas[mapping.last].end);
      next = mapping.last + 1;
    }
    check(next == vmas.size());
  } catch (const segfuse::DataError&) {
  }
  for (const Pin& pin : parse_registered_buffers(bytes, "x")) check(pin.end > pin.begin);
  check(rdma_core_release(std::string(bytes.substr(0, 200))) >= 0);
  parse_kernel(std::string(bytes.substr(0, 200)));
  segfuse::status_value(bytes, "Rss");
  walk(bytes);
  return 0;
}
