#pragma once
// The best segmentation of one row. The pass keeps values only; decisions are formed again along
// the path. A long row is cut in time: each part starts from a guess some windows before its own
// boundaries, and is done again from its neighbour where the sources of its window do not come out
// as the neighbour's, all shifted by one number. Sums are exact (viterbi_pass.h), so a row gives
// the same path however it is cut.

#include <cstdint>
#include <memory>
#include <vector>

#include "semicrf/cpu/best/viterbi_pass.h"
#include "semicrf/model/problem.h"

namespace segfuse {
class ThreadPool;
}

namespace segfuse::semicrf {

/// How a row is cut.
struct BestCut {
  std::int64_t parts = 1;
  std::int64_t warm_up = 0;  ///< frames, at least K
};

/// Whether cutting rows of this length pays with some threads.
bool can_cut_best(const Dims& dims, std::int64_t length);
/// What viterbi_row does by itself.
BestCut cut_best(const Dims& dims, std::int64_t length, int threads);

/// How a neighbour's sources and bases differ from those that a part came in with.
struct PartDifference {
  bool same = false;  ///< by one number, base + fine
  double base = 0.0;  ///< a multiple of the unit of bases
  double fine = 0.0;
};

/// One part at work.
struct BestPart {
  BestPass pass;
  AlignedDoubles value, source,
      base;  ///< of the boundaries before its own, `incoming.first` the first
  BestLattice incoming;
  std::int64_t begin = 0;  ///< own boundaries are (begin, end]
  std::int64_t end = 0;
  bool wrong = false;
  PartDifference difference;
};

struct ViterbiState {
  AlignedDoubles
      value;  ///< (L+1, stride) best prefix that ends at t with label c, relative to base
  AlignedDoubles source;  ///< (L+1, stride) best entry into label c at t, relative to base
  AlignedDoubles base;    ///< (L+1)
  AlignedDoubles fine;    ///< (L+1) what base lacks where the row is cut
  bool cut = false;
  int redone = 0;  ///< parts that had to be done again
  ScoreGrid grid;
  AlignedDoubles transition, duration, final;  ///< on the grid
  AlignedDoubles into;                         ///< (C, stride) transition, [to, from]
  BestPass pass;
  std::vector<std::unique_ptr<BestPart>> parts;

  // Where transitions depend on duration:
  std::vector<std::int32_t> last;      ///< (L+1, stride) duration of the last segment of value
  std::vector<std::int32_t> previous;  ///< (L+1, stride) label before it
};

struct Segment {
  std::int32_t start;
  std::int32_t duration;
  std::int32_t label;
};

/// Fills `path`, first segment first; false, and an empty path, when no segmentation is possible.
/// row.length > 0. Ties as Engine::viterbi says.
bool viterbi_row(const Model& model, const Row& row, ViterbiState& state, ThreadPool& pool,
                 std::vector<Segment>& path);
/// The same, cut as the caller says; for transitions that do not depend on duration.
bool viterbi_row(const Model& model, const Row& row, const BestCut& cut, ViterbiState& state,
                 ThreadPool& pool, std::vector<Segment>& path);
/// Where transitions depend on duration.
bool viterbi_by_duration(const Model& model, const Row& row, ViterbiState& state,
                         std::vector<Segment>& path);

}  // namespace segfuse::semicrf
