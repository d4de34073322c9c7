#include "comm/meet/agreement.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

namespace segfuse::comm::meet {
namespace {

constexpr std::size_t kNamed = 3;   // ranks that the sentence names
constexpr std::size_t kShown = 80;  // bytes of a value
using Value = std::optional<std::string>;
using Parties = std::map<Value, std::vector<std::int64_t>>;

std::string text_of(const Value& value) {
  if (!value) return "none";
  return value->size() <= kShown ? *value : value->substr(0, kShown - 3) + "...";
}

Parties parties_of(const Roster& roster, const std::string& name) {
  Parties parties;
  for (std::int64_t rank = 0; rank < roster.count(); ++rank) {
    const Values& values = roster.here(rank).values;
    const auto found = values.find(name);
    parties[found == values.end() ? Value() : Value(found->second)].push_back(rank);
  }
  return parties;
}

/// The largest; of equally large ones that with the least rank.
Parties::const_iterator largest(const Parties& parties) {
  return std::max_element(parties.begin(), parties.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.size(), -a.second[0]) < std::pair(b.second.size(), -b.second[0]);
  });
}

Failure failure_of(const Roster& roster, const std::string& name, const Parties& parties) {
  const auto most = largest(parties);
  std::map<std::int64_t, Value> odd;
  for (const auto& [value, ranks] : parties)
    if (value != most->first)
      for (const std::int64_t rank : ranks) odd[rank] = value;
  std::string list;
  std::size_t named = 0;
  for (const auto& [rank, value] : odd) {
    if (named == kNamed) break;
    list += fmt::format("{}{} has {}", named++ == 0 ? "" : ", ", roster.name(rank), text_of(value));
  }
  if (odd.size() > named) list += fmt::format(", {} more differ", odd.size() - named);
  const bool one = most->second.size() == 1;
  return {true, odd.begin()->first,
          fmt::format("the ranks do not agree on {}: {}; {} {} {}", name, list,
                      list_of(most->second), one ? "has" : "have", text_of(most->first))};
}

}  // namespace

std::optional<Failure> difference_in(const Roster& roster) {
  std::set<std::string> names;
  for (std::int64_t rank = 0; rank < roster.count(); ++rank)
    for (const auto& [name, value] : roster.here(rank).values) names.insert(name);
  std::optional<Failure> failure;
  std::string others;
  for (const std::string& name : names) {
    const Parties parties = parties_of(roster, name);
    if (parties.size() == 1) continue;
    if (failure)
      others += (others.empty() ? "" : ", ") + name;
    else
      failure = failure_of(roster, name, parties);
  }
  if (!failure) return {};
  if (!others.empty()) failure->sentence += fmt::format("; nor on {}", others);
  failure->sentence += "; start all ranks with the same";
  return failure;
}

}  // namespace segfuse::comm::meet
