#pragma once
// Lists of segmentations, made row by row and then packed.

#include <vector>

#include "segfuse/semicrf_tools.h"
#include "semicrf/exact/lattice.h"

namespace segfuse::semicrf {

struct Piece {
  std::int32_t start;
  std::int32_t duration;
  std::int32_t label;
};

/// The best segmentation of a row, ties as in Engine::viterbi; empty without a path.
std::vector<Piece> best_path(const LatticeInput& input, Lattice& lattice);

/// The segmentations of one row.
struct RowList {
  Segmentations segmentations;
  std::vector<double> score;
  void append(const std::vector<Piece>& path, double path_score) {
    for (const Piece& s : path) segmentations.append(s.start, s.duration, s.label);
    segmentations.end_row();
    score.push_back(path_score);
  }
};

inline double score_of(const LatticeInput& input, const std::vector<Piece>& path) {
  Segmentations packed;
  for (const Piece& s : path) packed.append(s.start, s.duration, s.label);
  return lattice_score(input, packed.view(), 0, packed.segments());
}

/// All rows in one, replacing `out`.
inline void collect(const std::vector<RowList>& rows, SegmentationLists& out) {
  const auto extend = [](auto& into, const auto& from) {
    into.insert(into.end(), from.begin(), from.end());
  };
  out = {};
  Segmentations& all = out.segmentations;
  for (const RowList& row : rows) {
    const std::int64_t before = all.segments();
    extend(all.start, row.segmentations.start);
    extend(all.duration, row.segmentations.duration);
    extend(all.label, row.segmentations.label);
    for (std::int64_t i = 1; i <= row.segmentations.rows(); ++i)
      all.row_pointer.push_back(before +
                                row.segmentations.row_pointer[static_cast<std::size_t>(i)]);
    extend(out.score, row.score);
    out.list_pointer.push_back(static_cast<std::int64_t>(out.score.size()));
  }
}

}  // namespace segfuse::semicrf
