#include <algorithm>
#include <bit>

#include "compiler/schedule/choose.h"

namespace segfuse::compiler {

namespace {

// Memory is busy when a multiprocessor waits for 40 to 64 KiB at a time; there are 80 to 150 of
// them.
constexpr std::int64_t kBlock = 256;  // threads that run together well
constexpr std::int64_t kLargestBlock = 1024;
constexpr std::int64_t kAlone = 4;              // elements of a lane that takes them one by one
constexpr std::int64_t kBlocks = 512;           // that keep all multiprocessors busy
constexpr std::int64_t kCudaFewRows = 128;      // less than this leaves multiprocessors idle
constexpr std::int64_t kCudaLongRow = 1 << 15;  // elements worth splitting
constexpr std::int64_t kHeldWords = 32;         // registers of a lane that hold rows
constexpr std::int64_t kRegisters = 1 << 16;    // of a multiprocessor
constexpr std::int64_t kResident = 1024;        // threads of one that are enough
constexpr std::int64_t kBesides = 48;           // registers of a lane besides those that hold rows
constexpr std::int64_t kBesidesWide = 56;       // the same with eight elements at a time
constexpr std::int64_t kBesidesF64 = 112;       // the same for f64, whose functions need more
constexpr std::int64_t kColumnsJoined = 64;     // columns of a block that joins chunks
constexpr std::int64_t kPartsJoined = 512;      // that one lane joins while others wait little
constexpr std::int64_t kThin = 16;              // side of a matrix that no tile is made for
constexpr std::int64_t kProcessors = 128;       // multiprocessors, about
constexpr std::int64_t kShared = 100 * 1024;    // bytes of shared memory, for two blocks

std::int64_t power_below(std::int64_t value) {
  return static_cast<std::int64_t>(
      std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, value))));
}
std::int64_t power_above(std::int64_t value) {
  return static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(1, value))));
}
/// The next of four numbers between powers of two.
std::int64_t class_above(std::int64_t value) {
  const std::int64_t step = std::max<std::int64_t>(1, power_below(value) / 4);
  return (value + step - 1) / step * step;
}
std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

class CudaChooser {
 public:
  CudaChooser(const Space& space, std::span<const std::int64_t> lengths) : space_(space) {
    for (std::size_t axis = 0; axis < space.axes.size(); ++axis) {
      const std::int64_t length = std::max<std::int64_t>(1, lengths[axis]);
      if (static_cast<int>(axis) == space.inner) inner_ = length;
      if (static_cast<int>(axis) == space.cross) cross_ = length;
      if (space.axes[axis].role == SpaceAxis::Role::kParallel) {
        parallel_ *= length;
      } else {
        reduced_ *= length;
        // What a split cuts: the outermost reduced axis that lanes do not run along.
        if (first_ == 0 && static_cast<int>(axis) != space.inner) first_ = length;
      }
      if (space.axes[axis].role == SpaceAxis::Role::kColumn) {
        columns_ *= length;
      } else if (space.axes[axis].role == SpaceAxis::Role::kReduced) {
        ++row_axes_;
      }
    }
    if (first_ == 0) first_ = reduced_;
    vector_ = std::max<std::int64_t>(1, 16 / std::max(space.widest, 2));
    s_.target = Target::kCuda;
    s_.threads = static_cast<int>(kBlock);
    // 128 bytes of a lane are on their way at most.
    s_.unroll = static_cast<int>(std::clamp<std::int64_t>(8 / std::max(space.loads, 1), 1, 4));
  }

  Schedule run() {
    switch (space_.kind) {
      case GroupKind::kTiledTranspose: transpose(); return s_;
      case GroupKind::kRowCol: rows_and_columns(); return s_;
      case GroupKind::kReduce:
      case GroupKind::kRowNorm:
      case GroupKind::kColNorm: break;
      default: plain(); return s_;
    }
    const bool lane_reduced =
        space_.inner >= 0 &&
        space_.axes[static_cast<std::size_t>(space_.inner)].role == SpaceAxis::Role::kReduced;
    lane_reduced ? rows() : columns();
    return s_;
  }

 private:
  /// Small blocks: one loads while others store. With few rows or columns neighbours share what is
  /// loaded, and nothing goes through shared memory.
  void transpose() {
    if (cross_ <= kThin && cross_ <= inner_) {  // lanes write rows that are long
      s_.cross = kThin;
      s_.tile = kBlock * vector_;
      return;
    }
    if (inner_ <= kThin) {  // neighbours of a warp write neighbouring rows
      s_.cross = 1;
      s_.tile = kThin;
      s_.unroll = 1;
      share_block(inner_, 1);
      return;
    }
    s_.hold = Hold::kScratch;
    constexpr std::int64_t kSide = 64;
    s_.tile = kSide;
    s_.cross = kSide;
    s_.threads = 128;
    // 64 bytes of a lane are on their way, also where it takes elements one by one.
    std::int64_t vector = vector_;
    while (inner_ % vector != 0 || cross_ % vector != 0) vector /= 2;
    s_.unroll = static_cast<int>(std::clamp<std::int64_t>(
        64 / (vector * std::max(space_.widest, 2)), 1, kSide * kSide / (s_.threads * vector)));
  }

  /// Lanes for `elements` that are taken together, the rest of a block beside each other.
  void share_block(std::int64_t elements, std::int64_t of_lane) {
    const std::int64_t threads =
        std::clamp<std::int64_t>(power_above(ceil_divide(elements, of_lane)), 1, kBlock);
    s_.threads = static_cast<int>(threads);
    // More than a warp to a row: the block is the row's, barriers cost less.
    s_.rows_at_once = static_cast<int>(threads <= 32 ? kBlock / threads : 1);
  }

  void plain() {
    s_.tile = kBlock * vector_ * s_.unroll;
    if (inner_ < s_.tile) share_block(inner_, vector_ * s_.unroll);
  }

  /// Cuts rows in parts of at least so many elements: about `wanted` blocks, where there are
  /// `blocks` without that.
  void split(std::int64_t least, std::int64_t blocks, std::int64_t wanted = kBlocks) {
    const std::int64_t others = std::max<std::int64_t>(1, reduced_ / first_);
    s_.split = std::max(ceil_divide(least, others),
                        power_below(first_ * blocks / (wanted * s_.rows_at_once)));
  }

  void rows() {
    const std::int64_t of_lane = space_.widest <= 2 ? 32 : 16;
    if (parallel_ < kCudaFewRows && reduced_ >= kCudaLongRow && first_ > 1) {
      split(kBlock * of_lane, parallel_);
      s_.staged = space_.kind != GroupKind::kReduce;
      s_.tile = kBlock * vector_ * s_.unroll;
      return;
    }
    // Rows of less than a vector are a lane's own; it takes several.
    const bool short_row = row_axes_ == 1 && reduced_ * std::max(space_.widest, 2) < 16;
    share_block(reduced_, rows_aligned() || short_row ? of_lane : kAlone);
    if (space_.phases > 1) hold();
    // Rows that are read again are few at a time: those that run fit the second-level cache.
    if (space_.phases > 1 && s_.hold == Hold::kReread && reduced_ >= kCudaLongRow &&
        reduced_ <= 2 * kCudaLongRow) {
      s_.threads = static_cast<int>(vector_ > 2 ? kLargestBlock : kLargestBlock / 2);
      // A lane has 64 registers.
      s_.unroll = space_.loads > 1 ? 1 : 2;
    }
  }

  /// Whether lanes can take vectors of every row.
  bool rows_aligned() const { return inner_ % vector_ == 0; }

  /// Rows are read once if there is room for them.
  void hold() {
    const std::int64_t step = std::max<std::int64_t>(1, power_above(reduced_) / 8);
    const std::int64_t capacity = ceil_divide(reduced_, step) * step;
    const std::int64_t loads = std::max(space_.loads, 1);
    if (row_axes_ == 1) {
      std::int64_t threads = s_.threads;
      auto words = [&] {
        return ceil_divide(capacity, threads * vector_) * vector_ * loads *
               std::max(space_.widest, 2) / 4;
      };
      while (words() > kHeldWords && threads >= 32 && threads < 512) threads *= 2;
      if (words() <= kHeldWords) {
        if (threads > 32) s_.rows_at_once = 1;
        s_.threads = static_cast<int>(threads);
        s_.hold = Hold::kRegister;
        s_.row = capacity;
        const std::int64_t of_lane = ceil_divide(capacity, threads * vector_) * vector_;
        const std::int64_t of_columns = of_lane * space_.column_sums;
        // What is dear to compute follows what was loaded.
        const std::int64_t computed = space_.expensive ? of_lane : 0;
        keep_resident(std::max(words(), computed) + of_columns);
        return;
      }
    }
    // Beside the states of columns, in f32.
    const std::int64_t states = 4 * capacity * space_.column_sums;
    if (capacity * loads * space_.widest + states > kShared || s_.rows_at_once > 1) return;
    s_.threads = 512;
    s_.hold = Hold::kScratch;
    s_.row = capacity;
    // A lane has 128 registers.
    if (loads > 1 && (vector_ > 4 || space_.expensive)) s_.unroll = std::min(s_.unroll, 2);
  }

  /// Blocks beside each other hide what one waits for: as many as have registers for `held` words
  /// and what is computed with them.
  void keep_resident(std::int64_t held) {
    const std::int64_t besides = vector_ > 4 ? kBesidesWide : vector_ > 2 ? kBesides : kBesidesF64;
    const std::int64_t registers = held + besides;
    const std::int64_t block = std::int64_t{s_.threads} * s_.rows_at_once;
    s_.resident = static_cast<int>(std::clamp<std::int64_t>(
        std::min(kRegisters / (block * registers), kResident / block), 1, 8));
  }

  /// Lanes are neighbours that each walk down their own row.
  void columns() {
    constexpr std::int64_t kLanes = 128;
    s_.threads = static_cast<int>(kLanes);
    s_.unroll = vector_ > 4 ? 16 : 8;  // narrow elements: as much on its way
    const std::int64_t of_lane = rows_aligned() ? vector_ : 1;
    if (!rows_aligned()) s_.unroll *= 2;
    // The same bytes of several loads; registers for what is dear to compute, and for more warps.
    if (space_.kind == GroupKind::kReduce)
      s_.unroll = std::max(2, s_.unroll / std::max(space_.loads, 1) / (space_.expensive ? 2 : 1));
    while (s_.threads > 1 && inner_ <= s_.threads * of_lane / 2) s_.threads /= 2;
    if (s_.threads < 32) s_.rows_at_once = static_cast<int>(kLanes / s_.threads);
    s_.tile = s_.threads * of_lane;
    const std::int64_t blocks =
        parallel_ / std::max<std::int64_t>(1, inner_) * ceil_divide(inner_, s_.tile);
    if (blocks >= kBlocks || reduced_ < 128 || first_ < 2) return;
    // Twice as many where lanes take elements one by one.
    split(32, blocks, rows_aligned() ? kBlocks : 2 * kBlocks);
    s_.staged = space_.kind != GroupKind::kReduce;
    join_parts(ceil_divide(first_, s_.split));
  }

  void rows_and_columns() {
    const std::int64_t rows = std::max<std::int64_t>(1, columns_);
    s_.tile = kColumnsJoined;
    s_.unroll = 2;
    reduced_ = std::max<std::int64_t>(1, reduced_ / rows);
    const std::int64_t of_lane = !rows_aligned()                ? kAlone
                                 : reduced_ <= kBlock * vector_ ? vector_
                                                                : 16;
    share_block(reduced_, of_lane);
    if (space_.phases > 1) hold();
    const std::int64_t row = power_above(reduced_);
    if (s_.hold == Hold::kReread && s_.rows_at_once * row * 4 * space_.column_sums <= kShared)
      s_.row = row;
    // As many chunks as run beside each other: each keeps states of all columns.
    const std::int64_t at_once = kProcessors * s_.resident * s_.rows_at_once;
    s_.rows = std::clamp<std::int64_t>(class_above(ceil_divide(rows, at_once)), 4, 4096);
    join_parts(ceil_divide(rows, s_.rows));
  }

  /// Many parts are joined in two steps.
  void join_parts(std::int64_t parts) {
    if (parts <= kPartsJoined) return;
    s_.joined = std::int64_t{1} << (std::bit_width(static_cast<std::uint64_t>(parts)) / 2);
  }

  const Space& space_;
  Schedule s_;
  std::int64_t parallel_ = 1;
  std::int64_t reduced_ = 1;
  std::int64_t columns_ = 1;
  std::int64_t first_ = 0;
  std::int64_t inner_ = 1;
  std::int64_t cross_ = 1;
  std::int64_t vector_ = 1;
  int row_axes_ = 0;
};

}  // namespace

Schedule choose_cuda(const Space& space, std::span<const std::int64_t> lengths) {
  return CudaChooser(space, lengths).run();
}

}  // namespace segfuse::compiler
