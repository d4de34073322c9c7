#pragma once
// Scores of single segments and of single changes of label: a row's part of the caller's tables,
// read where it lies, a boundary at a time. Nothing here has T K C numbers of its own.

#include <cstdint>

#include "segfuse/semicrf.h"

namespace segfuse::semicrf {

/// n lists of `size` numbers in a table: the first is at `offset`, each is `step` elements behind
/// the one before it, and its numbers are `hop` apart.
struct TableLists {
  std::int64_t offset;
  std::int64_t step;
  std::int64_t hop;
  std::int64_t n;
  std::int64_t size;
};

/// A table of numbers of any type.
struct TableReader {
  const void* data = nullptr;
  /// Adds the lists to rows of `stride` doubles.
  void (*add)(const void* data, const TableLists& lists, std::int64_t stride,
              double* rows) = nullptr;
  /// Whether no number is NaN or +inf.
  bool (*are_scores)(const void* data, const TableLists& lists) = nullptr;
  template <class T>
  static TableReader of(const T* data);
};

/// segment_scores of one row.
class SegmentTable {
 public:
  SegmentTable() = default;
  template <class T>
  SegmentTable(const View<const T, 4>& all, std::int64_t row)
      : table_(TableReader::of(&all(row, 0, 0, 0))),
        classes_(all.extent(3)),
        by_start_(all.stride(1)),
        by_duration_(all.stride(2)),
        by_label_(all.stride(3)) {}

  bool present() const { return table_.data != nullptr; }
  /// The score of k frames of label c from s on; 0 without a table.
  double operator()(std::int64_t s, std::int64_t k, std::int64_t c) const {
    double score = 0.0;
    if (!present()) return score;
    const std::int64_t at = s * by_start_ + (k - 1) * by_duration_ + c * by_label_;
    table_.add(table_.data, {at, 0, 1, 1, 1}, 1, &score);
    return score;
  }
  /// rows[k - 1, c] += the score of k frames from s on, for k = 1 .. n; nothing without a table.
  void add_starting(std::int64_t s, std::int64_t n, std::int64_t stride, double* rows) const {
    if (present()) table_.add(table_.data, starting(s, n), stride, rows);
  }
  /// The same for the k frames before t.
  void add_ending(std::int64_t t, std::int64_t n, std::int64_t stride, double* rows) const {
    const std::int64_t step = by_duration_ - by_start_;
    if (present())
      table_.add(table_.data, {(t - 1) * by_start_, step, by_label_, n, classes_}, stride, rows);
  }
  bool are_scores(std::int64_t s, std::int64_t n) const {
    return table_.are_scores(table_.data, starting(s, n));
  }

 private:
  TableLists starting(std::int64_t s, std::int64_t n) const {
    return {s * by_start_, by_duration_, by_label_, n, classes_};
  }
  TableReader table_;
  std::int64_t classes_ = 0;
  std::int64_t by_start_ = 0;
  std::int64_t by_duration_ = 0;
  std::int64_t by_label_ = 0;
};

/// transition_scores of one row.
class TransitionTable {
 public:
  TransitionTable() = default;
  template <class T>
  TransitionTable(const View<const T, 4>& all, std::int64_t row)
      : table_(TableReader::of(&all(all.extent(0) == 1 ? 0 : row, 0, 0, 0))),
        classes_(all.extent(2)),
        by_time_(all.stride(1)),
        by_from_(all.stride(2)),
        by_to_(all.stride(3)) {}

  bool present() const { return table_.data != nullptr; }
  /// The score of a change where a segment starts at s > 0; 0 without a table.
  double operator()(std::int64_t s, std::int64_t from, std::int64_t to) const {
    double score = 0.0;
    if (!present()) return score;
    const std::int64_t at = s * by_time_ + from * by_from_ + to * by_to_;
    table_.add(table_.data, {at, 0, 1, 1, 1}, 1, &score);
    return score;
  }
  /// matrix[from, to] += the scores at s; nothing without a table.
  void add(std::int64_t s, std::int64_t stride, double* matrix) const {
    if (present()) table_.add(table_.data, at(s), stride, matrix);
  }
  /// matrix[to, from] += the same.
  void add_transposed(std::int64_t s, std::int64_t stride, double* matrix) const {
    if (present())
      table_.add(table_.data, {s * by_time_, by_to_, by_from_, classes_, classes_}, stride, matrix);
  }
  bool are_scores(std::int64_t s) const { return table_.are_scores(table_.data, at(s)); }

 private:
  TableLists at(std::int64_t s) const {
    return {s * by_time_, by_from_, by_to_, classes_, classes_};
  }
  TableReader table_;
  std::int64_t classes_ = 0;
  std::int64_t by_time_ = 0;
  std::int64_t by_from_ = 0;
  std::int64_t by_to_ = 0;
};

/// Takes the expected counts of a row's tables, boundary by boundary, and may change what it gets.
class TableCounts {
 public:
  virtual ~TableCounts() = default;
  bool want_segments = false;
  bool want_transitions = false;
  /// (n, stride): of segments of 1 .. n frames that start at s; longer ones have 0.
  virtual void segments(std::int64_t s, std::int64_t n, double* counts) = 0;
  /// (C, stride): of changes at a segment that starts at s > 0.
  virtual void transitions(std::int64_t s, double* counts) = 0;
};

}  // namespace segfuse::semicrf
