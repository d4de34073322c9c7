#include "learn/data/splits/splits.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/code/fnv.h"
#include "base/rng.h"
#include "learn/data/text.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

constexpr std::int64_t kBins = 10;  // a test set is one of so many, and so is a development set

std::vector<std::string> groups_of(std::span<const Recording> recordings) {
  std::vector<std::string> groups;
  for (const Recording& recording : recordings) groups.push_back(recording.group);
  if (!groups.empty() && groups[0].empty()) groups.clear();
  return groups;
}

std::int64_t count_of(std::span<const std::string> groups) {
  return std::ssize(std::set<std::string>(groups.begin(), groups.end()));
}

/// Gives the smallest bins of those that may be trained on to the splits that are wanted, in their
/// order; one bin at least is left to train on.
void deal_whole(std::span<std::optional<Split>> splits, std::span<const std::string> groups,
                std::span<const Split> wanted) {
  std::vector<std::size_t> open;
  std::vector<std::string> their;
  for (std::size_t i = 0; i < splits.size(); ++i) {
    if (splits[i] != Split::kTrain) continue;
    open.push_back(i);
    their.push_back(groups[i]);
  }
  const std::int64_t bins = std::min(kBins, count_of(their));
  const std::vector<std::int64_t> bin_of = deal_groups(their, bins);
  std::vector<std::pair<std::int64_t, std::int64_t>> order;  // recordings of a bin, and its number
  for (std::int64_t bin = 0; bin < bins; ++bin)
    order.emplace_back(std::ranges::count(bin_of, bin), bin);
  std::ranges::sort(order);
  for (std::size_t w = 0; w < wanted.size() && w + 1 < order.size(); ++w)
    for (std::size_t i = 0; i < open.size(); ++i)
      if (bin_of[i] == order[w].second) splits[open[i]] = wanted[w];
}

}  // namespace

std::vector<std::int64_t> deal_groups(std::span<const std::string> groups, std::int64_t bins) {
  std::map<std::string, std::int64_t> sizes;
  for (const std::string& group : groups) ++sizes[group];
  std::vector<std::pair<std::int64_t, std::string>> order;
  for (const auto& [group, size] : sizes) order.emplace_back(-size, group);
  std::ranges::sort(order);
  std::vector<std::int64_t> filled(static_cast<std::size_t>(bins), 0);
  std::map<std::string, std::int64_t> bin_of;
  for (const auto& [less, group] : order) {
    const auto emptiest = std::ranges::min_element(filled);
    *emptiest -= less;
    bin_of[group] = emptiest - filled.begin();
  }
  std::vector<std::int64_t> out;
  for (const std::string& group : groups) out.push_back(bin_of[group]);
  return out;
}

bool deal_splits(std::span<std::optional<Split>> splits, std::span<const std::string> groups) {
  const bool given = std::ranges::any_of(splits, [](const auto& split) { return !!split; });
  const bool has_dev = std::ranges::find(splits, Split::kDev) != splits.end();
  for (std::optional<Split>& split : splits) split = split.value_or(Split::kTrain);
  if (!groups.empty()) {
    if (!given && count_of(groups) == 1)
      throw UsageError(
          fmt::format("all {} recordings are of one group, {}, which cannot be both trained and "
                      "tested on; mark the test recordings, or leave the groups out",
                      groups.size(), shown(groups[0])));
    std::vector<Split> wanted;
    if (!given) wanted.push_back(Split::kTest);
    if (!has_dev) wanted.push_back(Split::kDev);
    deal_whole(splits, groups, wanted);
    return given;
  }
  std::size_t index = 0;
  for (std::optional<Split>& split : splits) {
    if (split != Split::kTrain) continue;
    const std::size_t digit = index++ % kBins;
    if (digit == 5 && !has_dev) split = Split::kDev;
    if (digit == 0 && !given) split = Split::kTest;
  }
  return given;
}

void deal_folds(std::span<Recording> recordings, std::int64_t folds, std::int64_t test_fold) {
  const std::vector<std::string> groups = groups_of(recordings);
  const std::int64_t units = groups.empty() ? std::ssize(recordings) : count_of(groups);
  if (units < folds)
    throw UsageError(
        fmt::format("there are {} {} for {} folds; every fold needs at least one; use fewer folds",
                    units, groups.empty() ? "recordings" : "groups of recordings", folds));
  const std::vector<std::int64_t> fold_of = deal_groups(groups, folds);
  std::vector<std::optional<Split>> splits(recordings.size());
  for (std::size_t i = 0; i < splits.size(); ++i) {
    const std::int64_t fold = groups.empty() ? static_cast<std::int64_t>(i) % folds : fold_of[i];
    if (fold == test_fold - 1) splits[i] = Split::kTest;
  }
  deal_splits(splits, groups);
  for (std::size_t i = 0; i < splits.size(); ++i) recordings[i].split = *splits[i];
}

void keep_share(std::vector<Recording>& recordings, double share, std::uint64_t seed) {
  std::vector<std::pair<std::uint32_t, std::string>> order;
  for (const Recording& recording : recordings)
    if (recording.split == Split::kTrain)
      order.emplace_back(philox(fnv1a(recording.id), seed)[0], recording.id);
  std::ranges::sort(order);
  const double kept = std::round(share * static_cast<double>(order.size()));
  std::set<std::string> dropped;
  for (std::size_t i = std::max<std::size_t>(1, static_cast<std::size_t>(kept)); i < order.size();
       ++i)
    dropped.insert(order[i].second);
  std::erase_if(recordings, [&](const Recording& recording) {
    return recording.split == Split::kTrain && dropped.contains(recording.id);
  });
}

std::int64_t count_groups(std::span<const Recording> recordings) {
  return count_of(groups_of(recordings));
}

std::string torn_groups(std::span<const Recording> recordings) {
  std::map<std::string, std::set<Split>> splits;
  for (const Recording& recording : recordings)
    if (!recording.group.empty()) splits[recording.group].insert(recording.split);
  std::vector<std::string> torn;
  for (const auto& [group, sets] : splits)
    if (sets.size() > 1) torn.push_back(group);
  if (torn.empty()) return {};
  const std::set<Split>& sets = splits[torn[0]];
  return fmt::format(
      "the given split separates recordings of one group: {} is in the {} set and in the {} set{}",
      shown(torn[0]), name_of(*sets.begin()), name_of(*sets.rbegin()),
      torn.size() > 1 ? fmt::format(", and likewise {} more", torn.size() - 1) : "");
}

}  // namespace segfuse::data
