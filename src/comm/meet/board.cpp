#include "comm/meet/board.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "comm/meet/wire/message.h"
#include "segfuse/error.h"

namespace segfuse::comm::meet {
namespace {

using Word = std::uint64_t;
constexpr std::size_t kWords = 64;  // of a rank
using Words = std::array<Word, kWords>;
constexpr std::size_t kSlot = kWords * sizeof(Word);
// Word 0 counts writings, two for each: odd amid one. Then the time, the cause, the bytes of the
// state, the state.
constexpr std::size_t kHead = 4;
constexpr std::size_t kMost = (kWords - kHead) * sizeof(Word);
static_assert(std::atomic_ref<Word>::is_always_lock_free, "processes share these words");

[[noreturn]] void refuse(std::string_view what) {
  throw CommError(fmt::format("the board of this machine's ranks: {}", what));
}

Word* slot(void* at, std::int64_t rank) {
  return static_cast<Word*>(at) + static_cast<std::size_t>(rank) * kWords;
}
std::atomic_ref<Word> shared(Word* words, std::size_t i) { return std::atomic_ref<Word>(words[i]); }

}  // namespace

Board::Board(std::int64_t ranks)
    : memory_(::memfd_create("segfuse:ranks", MFD_CLOEXEC)), ranks_(ranks) {
  const std::size_t bytes = static_cast<std::size_t>(ranks) * kSlot;
  if (memory_.get() < 0 || ::ftruncate(memory_.get(), static_cast<off_t>(bytes)) != 0)
    refuse(std::generic_category().message(errno));
  map(bytes);
}

Board::Board(Descriptor memory) : memory_(std::move(memory)) {
  struct stat status{};
  if (::fstat(memory_.get(), &status) != 0) refuse(std::generic_category().message(errno));
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || bytes == 0 || bytes % kSlot != 0)
    refuse("what was inherited is none");
  ranks_ = static_cast<std::int64_t>(bytes / kSlot);
  map(bytes);
}

Board::Board(Board&& other) noexcept
    : memory_(std::move(other.memory_)),
      at_(std::exchange(other.at_, nullptr)),
      ranks_(other.ranks_) {}

Board::~Board() {
  if (at_ != nullptr) ::munmap(at_, static_cast<std::size_t>(ranks_) * kSlot);
}

void Board::map(std::size_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  if (at == MAP_FAILED) refuse(std::generic_category().message(errno));
  at_ = at;
}

void Board::write(std::int64_t rank, const Entry& entry) noexcept {
  State state = entry.state;
  state.doing.resize(std::min(state.doing.size(), kLongestDoing));
  const std::string bytes = encode(state);
  Words words{};
  words[1] = static_cast<Word>(entry.written.time_since_epoch().count());
  words[2] = static_cast<Word>(entry.cause);
  words[3] = bytes.size();
  if (bytes.size() > kMost) return;
  std::memcpy(&words[kHead], bytes.data(), bytes.size());
  Word* const at = slot(at_, rank);
  const Word count = shared(at, 0).load(std::memory_order_relaxed) | 1;
  shared(at, 0).store(count, std::memory_order_relaxed);
  // Every word is released, so a reader of a new one sees the odd count before it.
  for (std::size_t i = 1; i < kWords; ++i) shared(at, i).store(words[i], std::memory_order_release);
  shared(at, 0).store(count + 1, std::memory_order_release);
}

std::optional<Board::Entry> Board::read(std::int64_t rank) const {
  Word* const at = slot(at_, rank);
  Words words{};
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const Word before = shared(at, 0).load(std::memory_order_acquire);
    if (before == 0) return {};
    for (std::size_t i = 1; i < kWords; ++i)
      words[i] = shared(at, i).load(std::memory_order_acquire);
    if (before % 2 != 0 || shared(at, 0).load(std::memory_order_relaxed) != before) continue;
    if (words[3] > kMost) return {};
    std::string bytes(words[3], '\0');
    std::memcpy(bytes.data(), &words[kHead], bytes.size());
    try {
      return Entry{decode_state(bytes), Time(Duration(static_cast<Duration::rep>(words[1]))),
                   static_cast<std::int64_t>(words[2])};
    } catch (const DataError&) {
      return {};
    }
  }
  return {};
}

}  // namespace segfuse::comm::meet
