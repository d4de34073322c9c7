#pragma once
// How a group becomes kernels: the choices that change speed and last digits, never the meaning.

#include <compare>
#include <cstdint>
#include <string>

namespace segfuse::compiler {

enum class Target : std::uint8_t { kCpu, kCuda };

/// Where a value over a row is kept between two walks over that row.
enum class Hold : std::uint8_t {
  kReread,    ///< nowhere: it is loaded and computed again
  kScratch,   ///< memory of the thread (CPU), of the block (CUDA, shared)
  kRegister,  ///< registers; the row has a constant bound (CUDA)
};

/// Plain data beside the graph; two groups with equal schedules and equal loop IR are one kernel.
struct Schedule {
  Target target = Target::kCpu;
  /// Elements that a lane takes from memory at once: 1, 2, 4, 8 (CUDA); the CPU's are fixed.
  int vector = 1;
  /// Vectors that are in flight in a lane loop.
  int unroll = 4;
  /// Axis of the Space that lanes run along; -1: the innermost in memory (CPU).
  int lanes = -1;
  /// Elements of the lane axis that one outer iteration takes, when that axis is not reduced.
  std::int64_t tile = 4096;
  /// Elements of the second innermost axis of a transposition's tile.
  std::int64_t cross = 32;
  Hold hold = Hold::kReread;
  /// Longest row that is held, in elements; sizes the memory or the registers. Of a RowCol on CUDA
  /// that holds nothing: the columns' states are in shared memory, 0: in that of the device.
  std::int64_t row = 0;
  /// Elements of the reduced axes that one outer iteration takes before partial results are joined
  /// by a second kernel; 0: all.
  std::int64_t split = 0;
  /// Rows that one outer iteration of a RowCol kernel takes.
  std::int64_t rows = 64;
  /// Parts or chunks that a kernel between joins first, where there are many; 0: there is none.
  std::int64_t joined = 0;
  /// Every reduction becomes kernels of its own and what follows another: few long rows.
  bool staged = false;

  // CUDA only.
  int threads = 256;     ///< of a block, that share a row or tile
  int rows_at_once = 1;  ///< outer iterations that one block runs beside each other
  int resident = 1;      ///< blocks of a multiprocessor that registers are kept for
  bool narrow = false;   ///< positions fit 32 bits
  bool filled = false;   ///< rows in registers fill them
  int strip = 1;         ///< rows that a lane takes together, to move whole vectors of them
  int strip_row = 0;     ///< elements of such a row; 0: there is no strip

  friend auto operator<=>(const Schedule&, const Schedule&) = default;
};

/// For a kernel whose registers ran out (CUDA): the same results with fewer. False: there is
/// nothing left to change.
bool spare_registers(Schedule& schedule);

/// "cpu unroll 4 tile 4096 hold scratch row 8192": fields that differ from those of the target's
/// plain schedule, in the order of the struct.
std::string to_string(const Schedule& schedule);

}  // namespace segfuse::compiler
