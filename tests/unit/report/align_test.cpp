#include "learn/report/align.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace segfuse::learn {
namespace {

std::vector<ReportSegment> segments(const std::vector<int>& labels, double length = 1) {
  std::vector<ReportSegment> out;
  for (const int l : labels) {
    const double start = length * static_cast<double>(out.size());
    out.push_back({start, start + length, l, kNoValue});
  }
  return out;
}

/// Least edits by trying everything.
std::int64_t edits(const std::vector<int>& a, const std::vector<int>& b, std::size_t i = 0,
                   std::size_t j = 0) {
  if (i == a.size()) return static_cast<std::int64_t>(b.size() - j);
  if (j == b.size()) return static_cast<std::int64_t>(a.size() - i);
  return std::min({edits(a, b, i + 1, j + 1) + (a[i] != b[j]), edits(a, b, i + 1, j) + 1,
                   edits(a, b, i, j + 1) + 1});
}

TEST(ReportAlign, LeastEditsAndConsistentMarks) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<int> a(random() % 7), b(random() % 7);
    for (int& v : a) v = static_cast<int>(random() % 3);
    for (int& v : b) v = static_cast<int>(random() % 3);
    const Alignment m = align_segments(segments(a), segments(b));
    ASSERT_EQ(m.errors(), edits(a, b));
    ASSERT_EQ(m.gold.size(), a.size());
    ASSERT_EQ(m.decoded.size(), b.size());
    for (const char mark : {'=', '~'}) {
      ASSERT_EQ(std::count(m.gold.begin(), m.gold.end(), mark),
                std::count(m.decoded.begin(), m.decoded.end(), mark));
    }
    std::vector<int> kept_gold, kept_decoded;  // the matched ones agree in order
    for (std::size_t i = 0; i < a.size(); ++i)
      if (m.gold[i] == '=') kept_gold.push_back(a[i]);
    for (std::size_t j = 0; j < b.size(); ++j)
      if (m.decoded[j] == '=') kept_decoded.push_back(b[j]);
    ASSERT_EQ(kept_gold, kept_decoded);
  }
}

TEST(ReportAlign, AmongEqualEditsTimeDecides) {
  // One "0" was lost; the decoded one lies where the second gold one is.
  const auto gold = segments({0, 0});
  const std::vector<ReportSegment> late = {{1, 2, 0, kNoValue}};
  EXPECT_EQ(align_segments(gold, late).gold, "-=");
  const std::vector<ReportSegment> early = {{0, 1, 0, kNoValue}};
  EXPECT_EQ(align_segments(gold, early).gold, "=-");
}

TEST(ReportAlign, UnknownLabelsAreNeverRight) {
  EXPECT_EQ(align_segments(segments({-1}), segments({-1})).decoded, "~");
}

TEST(ReportAlign, EmptySides) {
  EXPECT_EQ(align_segments({}, segments({1, 2})).decoded, "++");
  EXPECT_EQ(align_segments(segments({1, 2}), {}).gold, "--");
  EXPECT_EQ(align_segments({}, {}).errors(), 0);
}

}  // namespace
}  // namespace segfuse::learn
