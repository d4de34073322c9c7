#pragma once
// Which recordings are trained on, chosen by and measured on.
//
// Recordings may be of groups: speakers, animals, days. Then a group is dealt as one, and what is
// learnt of it in training is of no use in a test.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "segfuse/data.h"

namespace segfuse::data {

/// Puts groups into bins, the one with most recordings first (of equals the first by name), each
/// into the bin with the fewest (of equals the first); the bin of each recording. A function of the
/// names and the number of recordings of each alone. Where every group has one recording, and they
/// are sorted, number i is in bin i mod bins.
std::vector<std::int64_t> deal_groups(std::span<const std::string> groups, std::int64_t bins);

/// Deals those without a split, by their places; returns whether any had one. Recordings of a group
/// stay together, where there are groups, one for each recording: they come into ten bins (fewer
/// where there are fewer groups), of which the smallest is the test set and the next the
/// development set. UsageError where there is one group and nothing else says what the test is.
bool deal_splits(std::span<std::optional<Split>> splits, std::span<const std::string> groups = {});

/// Deals recordings again, whatever their splits were: number i is in fold i mod folds + 1, or each
/// group in one of the folds as deal_groups() has it. One fold is the test set, the others are
/// dealt as deal_splits() deals them. UsageError where there are less recordings, or groups, than
/// folds.
void deal_folds(std::span<Recording> recordings, std::int64_t folds, std::int64_t test_fold);

/// Leaves so many of the training recordings, at least one: those of a smaller share are among
/// those of a larger one with the same seed.
void keep_share(std::vector<Recording>& recordings, double share, std::uint64_t seed);

/// How many there are; 0: the recordings are of none.
std::int64_t count_groups(std::span<const Recording> recordings);
/// A sentence about groups that a split as it is given tears apart; empty where there are none.
std::string torn_groups(std::span<const Recording> recordings);

}  // namespace segfuse::data
