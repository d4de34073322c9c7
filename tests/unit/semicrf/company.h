#pragma once
// Rows of a problem in other company: alone, in another order, repeated, padded to more frames; and
// the property that none of it shows in what is said of a row.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "problems.h"

namespace segfuse::semicrf::testing {

/// What a call says of each row, and of what rows share.
struct RowFacts {
  std::vector<std::vector<double>> of_row;
  std::vector<double> shared;
  explicit RowFacts(std::int64_t rows) : of_row(static_cast<std::size_t>(rows)) {}
};

inline void add_path(std::vector<double>& facts, const Path& path) {
  for (const Piece& piece : path)
    for (const std::int64_t x : {piece.start, piece.duration, piece.label})
      facts.push_back(static_cast<double>(x));
}

/// Some rows of a problem as a problem.
template <class T>
struct Arranged {
  std::vector<std::int64_t> rows;
  Problem<T> problem;
};

/// Rows of p in this order, with room for `frames` frames; what is past a row's end is NaN.
template <class T>
Arranged<T> arranged(const Problem<T>& p, const std::vector<std::int64_t>& rows,
                     std::int64_t frames) {
  Problem<T> q = p;
  q.B = std::ssize(rows);
  q.T_ = frames;
  q.lengths.clear();
  for (const std::int64_t b : rows) q.lengths.push_back(p.length(b));
  for (auto [from, into] : {std::pair(&p.emission, &q.emission), std::pair(&p.start, &q.start),
                            std::pair(&p.end, &q.end)}) {
    into->assign(static_cast<std::size_t>(q.B * frames * p.C), static_cast<T>(kNaN));
    for (std::int64_t i = 0; i < q.B; ++i) {
      const std::int64_t b = rows[static_cast<std::size_t>(i)];
      std::copy_n(from->begin() + b * p.T_ * p.C, p.length(b) * p.C,
                  into->begin() + i * frames * p.C);
    }
  }
  return {rows, q};
}

inline Segmentations rows_of(const Segmentations& y, const std::vector<std::int64_t>& rows) {
  std::vector<Path> paths;
  for (const std::int64_t b : rows) paths.push_back(unpacked(y, b));
  return packed(paths);
}

/// The company that rows are put into.
struct Company {
  std::vector<std::int64_t> alone = {};       ///< rows that are looked at alone; empty: all
  std::vector<std::int64_t> pads = {1, 900};  ///< frames beyond the longest row
  bool others = true;                         ///< in another order, some twice
};

inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

inline void expect_same_facts(const std::vector<double>& found, const std::vector<double>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_TRUE(same_bits({found[i]}, {wanted[i]}))
        << "fact " << i << " of " << found.size() << ": " << found[i] << " and " << wanted[i]
        << ", " << found[i] - wanted[i] << " apart";
}

/// compute(const Arranged<T>&, std::size_t machine) gives RowFacts. Machines differ in what must
/// not show: multiprocessors, threads.
template <class T, class Compute>
void expect_company_does_not_show(const std::string& what, const Problem<T>& p,
                                  const Company& company, std::int64_t machines,
                                  const Compute& compute) {
  SCOPED_TRACE(what);
  std::vector<std::int64_t> all(static_cast<std::size_t>(p.B));
  for (std::int64_t b = 0; b < p.B; ++b) all[static_cast<std::size_t>(b)] = b;
  const RowFacts wanted = compute(arranged(p, all, p.T_), std::size_t{0});
  const auto expect_rows = [&](const std::vector<std::int64_t>& rows, std::int64_t frames,
                               std::size_t machine, bool same_order) {
    const RowFacts found = compute(arranged(p, rows, frames), machine);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "row " << rows[i] << " at " << i << " of " << rows.size()
                                        << ", " << frames << " frames, machine " << machine);
      expect_same_facts(found.of_row[i], wanted.of_row[static_cast<std::size_t>(rows[i])]);
      if (::testing::Test::HasFatalFailure()) return;
    }
    if (!same_order) return;
    SCOPED_TRACE(::testing::Message() << "shared, " << frames << " frames, machine " << machine);
    expect_same_facts(found.shared, wanted.shared);
  };
  for (std::size_t machine = 1; machine < static_cast<std::size_t>(machines); ++machine)
    expect_rows(all, p.T_, machine, true);
  for (const std::int64_t pad : company.pads) expect_rows(all, p.T_ + pad, 0, true);
  for (const std::int64_t b : company.alone.empty() ? all : company.alone) {
    expect_rows({b}, p.length(b), 0, false);
    if (::testing::Test::HasFatalFailure()) return;
  }
  if (!company.others) return;
  std::vector<std::int64_t> other = all;
  std::rotate(other.begin(), other.begin() + std::min<std::int64_t>(1, p.B), other.end());
  other.insert(other.end(), all.begin(), all.begin() + std::min<std::int64_t>(p.B, 3));
  expect_rows(other, p.T_, static_cast<std::size_t>(machines - 1), false);
}

}  // namespace segfuse::semicrf::testing
