#include "learn/model/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

constexpr double kRounding = 1e-9;  // frames

std::size_t number_of(const Alphabet& labels, const std::string& name, const std::string& key) {
  if (const auto label = labels.find(name)) return static_cast<std::size_t>(*label);
  throw DataError(fmt::format("{}: the training recordings have no label '{}'; {}", key, name,
                              suggestion(name, labels.labels())));
}

std::vector<bool> chosen(const Alphabet& labels, const std::vector<std::string>& names,
                         const std::string& key) {
  std::vector<bool> out(static_cast<std::size_t>(labels.size()), names.empty());
  for (const std::string& name : names) out[number_of(labels, name, key)] = true;
  return out;
}

std::string at_text(const std::string& id, const Alphabet& labels, const FrameSegment& s,
                    double hop) {
  return fmt::format("{}: the segment '{}' at {:.4g} s", id, labels.label(s.label),
                     static_cast<double>(s.start) * hop);
}

Tensor table_of(const std::vector<bool>& allowed, const Shape& shape) {
  Tensor table = Tensor::zeros(DType::kF32, shape);
  for (std::size_t i = 0; i < allowed.size(); ++i)
    if (!allowed[i]) table.span<float>()[i] = -std::numeric_limits<float>::infinity();
  return table;
}

}  // namespace

Rules rules_of(const Grammar& grammar, const Alphabet& labels, double hop_seconds, bool joined) {
  const auto classes = static_cast<std::size_t>(labels.size());
  Rules rules{std::vector<std::int64_t>(classes, 1), std::vector<std::int64_t>(classes, 0),
              std::vector<std::vector<bool>>(classes, std::vector<bool>(classes, true)),
              chosen(labels, grammar.first, "grammar.first"),
              chosen(labels, grammar.last, "grammar.last")};
  for (const auto& [name, seconds] : grammar.shortest)
    rules.shortest[number_of(labels, name, "grammar.shortest")] = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(std::floor(seconds / hop_seconds + kRounding)));
  for (const auto& [name, seconds] : grammar.longest) {
    const std::size_t label = number_of(labels, name, "grammar.longest");
    rules.longest[label] = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(std::ceil(seconds / hop_seconds - kRounding)));
    if (const auto least = grammar.shortest.find(name);
        least != grammar.shortest.end() && least->second > seconds)
      throw DataError(
          fmt::format("grammar.longest: '{}' lasts at most {} s here and at least {} s "
                      "in grammar.shortest",
                      name, seconds, least->second));
  }
  for (const auto& [name, followers] : grammar.next) {
    std::vector<bool>& next = rules.next[number_of(labels, name, "grammar.next")];
    next.assign(classes, false);
    for (const std::string& follower : followers)
      next[number_of(labels, follower, "grammar.next." + name)] = true;
  }
  for (std::size_t c = 0; c < classes; ++c)
    if (joined && rules.longest[c] > 0) rules.next[c][c] = false;
  return rules;
}

void check_gold(const Rules& rules, const Alphabet& labels, const std::string& id,
                const std::vector<FrameSegment>& gold, double hop_seconds) {
  const FrameSegment* former = nullptr;
  for (const FrameSegment& s : gold) {
    const FrameSegment* const before = std::exchange(former, &s);
    if (s.label == kUnknownLabel) continue;
    const auto label = static_cast<std::size_t>(s.label);
    const std::string where = at_text(id, labels, s, hop_seconds);
    if (s.duration < rules.shortest[label])
      throw DataError(fmt::format("{} lasts {} frames; grammar.shortest says at least {}", where,
                                  s.duration, rules.shortest[label]));
    if (rules.longest[label] > 0 && s.duration > rules.longest[label])
      throw DataError(fmt::format("{} lasts {} frames; grammar.longest says at most {}", where,
                                  s.duration, rules.longest[label]));
    if (before == nullptr && !rules.first[label])
      throw DataError(
          fmt::format("{} begins the recording; grammar.first does not name it", where));
    if (before != nullptr && before->label != kUnknownLabel &&
        !rules.next[static_cast<std::size_t>(before->label)][label])
      throw DataError(fmt::format(
          "{} follows '{}'; {}", where, labels.label(before->label),
          before->label == s.label && rules.longest[label] > 0
              ? "grammar.longest lets no label follow itself whose pieces are joined "
                "(model.long_segments)"
              : fmt::format("grammar.next.{} does not name it", labels.label(before->label))));
  }
  if (former != nullptr && former->label != kUnknownLabel &&
      !rules.last[static_cast<std::size_t>(former->label)])
    throw DataError(fmt::format("{} ends the recording; grammar.last does not name it",
                                at_text(id, labels, *former, hop_seconds)));
}

OrderLimit order_limit(const Rules& rules, const std::vector<bool>& repeats) {
  const auto classes = static_cast<std::int64_t>(rules.first.size());
  std::vector<bool> allowed;
  for (std::size_t from = 0; from < rules.next.size(); ++from)
    for (std::size_t to = 0; to < rules.next.size(); ++to)
      allowed.push_back(rules.next[from][to] || (from == to && repeats[from]));
  return {table_of(allowed, {1, classes, classes}), table_of(rules.first, {classes}),
          table_of(rules.last, {classes})};
}

std::vector<std::pair<std::string, Tensor>> Limits::named() const {
  std::vector<std::pair<std::string, Tensor>> all;
  if (duration.size() > 0) all.emplace_back("duration_limit", duration);
  if (order.empty()) return all;
  all.emplace_back("transition_limit", order.transition);
  all.emplace_back("initial_limit", order.initial);
  all.emplace_back("final_limit", order.final);
  return all;
}

bool is_limit(const std::string& input) { return input.ends_with("_limit"); }

}  // namespace segfuse::learn
