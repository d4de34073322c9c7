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
// A rank has two entries and writes into the older one, so a rank that dies while it writes leaves
// the entry before. Word 0 of an entry is the number of the writing, from 2 on: 0 before the
// first, 1 while the entry is being written. Then the time, the cause, whether it is the rank's own
// fault, the bytes of the state, the state.
constexpr std::size_t kWords = 64;  // of an entry
using Words = std::array<Word, kWords>;
constexpr std::size_t kEntries = 2;
constexpr Word kBusy = 1;
constexpr std::size_t kSlot = kEntries * kWords * sizeof(Word);
constexpr std::size_t kHead = 5;
constexpr std::size_t kMax = (kWords - kHead) * sizeof(Word);
static_assert(std::atomic_ref<Word>::is_always_lock_free, "processes share these words");

[[noreturn]] void refuse(std::string_view what) {
  throw CommError(fmt::format("the board of this machine's ranks: {}", what));
}

Word* entry_of(void* at, std::int64_t rank, std::size_t i) {
  return static_cast<Word*>(at) + (static_cast<std::size_t>(rank) * kEntries + i) * kWords;
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
    refuse("the inherited descriptor is not a board");
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
  words[3] = entry.own_fault ? 1 : 0;
  words[4] = bytes.size();
  if (bytes.size() > kMax) return;
  std::memcpy(&words[kHead], bytes.data(), bytes.size());
  Word newest = kBusy;
  std::size_t oldest = 0;
  for (std::size_t i = 0; i < kEntries; ++i) {
    const Word number = shared(entry_of(at_, rank, i), 0).load(std::memory_order_relaxed);
    if (number <= newest) continue;
    newest = number;
    oldest = 1 - i;
  }
  Word* const at = entry_of(at_, rank, oldest);
  shared(at, 0).store(kBusy, std::memory_order_relaxed);
  // Every word is released, so a reader of a new one sees kBusy before it.
  for (std::size_t i = 1; i < kWords; ++i) shared(at, i).store(words[i], std::memory_order_release);
  shared(at, 0).store(newest + 1, std::memory_order_release);
}

void Board::forget(std::int64_t rank) noexcept {
  for (std::size_t i = 0; i < kEntries; ++i)
    shared(entry_of(at_, rank, i), 0).store(0, std::memory_order_release);
}

std::optional<Board::Entry> Board::read(std::int64_t rank) const {
  // A writer that lives may write both entries while we read; the next attempt finds newer ones.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    Words newest{};
    bool changed = false;
    for (std::size_t i = 0; i < kEntries; ++i) {
      Word* const at = entry_of(at_, rank, i);
      Words words{};
      for (std::size_t w = 0; w < kWords; ++w)
        words[w] = shared(at, w).load(std::memory_order_acquire);
      if (words[0] == kBusy || shared(at, 0).load(std::memory_order_relaxed) != words[0])
        changed = true;
      else if (words[0] > newest[0])
        newest = words;
    }
    if (newest[0] == 0) {
      if (changed) continue;
      return {};
    }
    if (newest[4] > kMax) return {};
    std::string bytes(newest[4], '\0');
    std::memcpy(bytes.data(), &newest[kHead], bytes.size());
    try {
      return Entry{decode_state(bytes), Time(Duration(static_cast<Duration::rep>(newest[1]))),
                   static_cast<std::int64_t>(newest[2]), newest[3] != 0};
    } catch (const DataError&) {
      return {};
    }
  }
  return {};
}

}  // namespace segfuse::comm::meet
