#pragma once
// Where the ranks of one launcher write what they are doing, in memory that outlives them: when one
// is killed, the launcher reads where it was. The memory is a file without a name.

#include <cstdint>
#include <optional>

#include "base/os/descriptor.h"
#include "comm/meet/clock.h"
#include "comm/meet/state.h"

namespace segfuse::comm::meet {

class Board {
 public:
  /// A new one. Throws CommError.
  explicit Board(std::int64_t ranks);
  /// One that was inherited; takes the descriptor. Throws CommError for what is no board.
  explicit Board(Descriptor memory);
  ~Board();
  Board(Board&& other) noexcept;
  Board& operator=(Board&&) = delete;

  int descriptor() const noexcept { return memory_.get(); }
  std::int64_t ranks() const noexcept { return ranks_; }

  static constexpr std::int64_t kNone = -1;
  static constexpr std::int64_t kNobody = -2;
  struct Entry {
    State state;
    Time written{};
    /// The rank of which this one learnt that it failed first and ended all; kNobody where that was
    /// no single one's fault, kNone where it learnt of no end.
    std::int64_t cause = kNone;
    /// This rank ended by what lies in itself (its device, its memory), so another start would not
    /// mend it.
    bool own_fault = false;
  };
  /// By the rank itself, one thread at a time.
  void write(std::int64_t rank, const Entry& entry) noexcept;
  /// The next that writes there is another process. Nobody writes meanwhile.
  void forget(std::int64_t rank) noexcept;
  /// By anybody: the last entry that was written whole, also where the rank died while it wrote
  /// another. Nothing where none was.
  std::optional<Entry> read(std::int64_t rank) const;

 private:
  void map(std::size_t bytes);

  Descriptor memory_;
  void* at_ = nullptr;
  std::int64_t ranks_ = 0;
};

}  // namespace segfuse::comm::meet
