#include "learn/report/align.h"

#include <algorithm>
#include <cstdint>

namespace segfuse::learn {
namespace {

bool same_label(const ReportSegment& a, const ReportSegment& b) {
  return a.label == b.label && a.label >= 0;
}

/// Edits first, then minus the time in common.
struct Cost {
  std::int64_t edits = 0;
  double apart = 0;
  bool operator<(const Cost& other) const {
    return edits != other.edits ? edits < other.edits : apart < other.apart;
  }
};

Cost pair_cost(const ReportSegment& gold, const ReportSegment& decoded) {
  const double common = std::min(gold.end, decoded.end) - std::max(gold.start, decoded.start);
  return {same_label(gold, decoded) ? 0 : 1, -std::max(0.0, common)};
}

enum Move : std::uint8_t { kPair, kDelete, kInsert };

/// Best last move for every prefix pair, [gold + 1, decoded + 1].
std::vector<std::uint8_t> best_moves(const std::vector<ReportSegment>& gold,
                                     const std::vector<ReportSegment>& decoded) {
  const std::size_t width = decoded.size() + 1;
  std::vector<std::uint8_t> moves((gold.size() + 1) * width, kInsert);
  std::vector<Cost> row(width);
  for (std::size_t j = 1; j < width; ++j) row[j] = {static_cast<std::int64_t>(j), 0};
  for (std::size_t i = 1; i <= gold.size(); ++i) {
    Cost diagonal = row[0];
    row[0] = {static_cast<std::int64_t>(i), 0};
    moves[i * width] = kDelete;
    for (std::size_t j = 1; j < width; ++j) {
      const Cost step = pair_cost(gold[i - 1], decoded[j - 1]);
      Cost best{diagonal.edits + step.edits, diagonal.apart + step.apart};
      Move move = kPair;
      const Cost deleted{row[j].edits + 1, row[j].apart};
      const Cost inserted{row[j - 1].edits + 1, row[j - 1].apart};
      if (deleted < best) best = deleted, move = kDelete;
      if (inserted < best) best = inserted, move = kInsert;
      diagonal = row[j];
      row[j] = best;
      moves[i * width + j] = move;
    }
  }
  return moves;
}

}  // namespace

std::int64_t Alignment::errors() const {
  return std::count(gold.begin(), gold.end(), '-') +
         std::count_if(decoded.begin(), decoded.end(), [](char c) { return c != '='; });
}

Alignment align_segments(const std::vector<ReportSegment>& gold,
                         const std::vector<ReportSegment>& decoded) {
  Alignment out{std::string(gold.size(), '-'), std::string(decoded.size(), '+')};
  const std::vector<std::uint8_t> moves = best_moves(gold, decoded);
  std::size_t i = gold.size();
  std::size_t j = decoded.size();
  while (i > 0 || j > 0) {
    const std::uint8_t move = moves[i * (decoded.size() + 1) + j];
    if (move == kPair) {
      const bool same = same_label(gold[i - 1], decoded[j - 1]);
      out.gold[i - 1] = out.decoded[j - 1] = same ? '=' : '~';
    }
    if (move != kInsert) --i;
    if (move != kDelete) --j;
  }
  return out;
}

}  // namespace segfuse::learn
