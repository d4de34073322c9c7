#include "learn/train/decode/clean_up.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "base/thread_pool.h"
#include "learn/train/loop/corpus.h"

namespace segfuse::learn {
namespace {

std::vector<std::int32_t> frames_of(const std::vector<FrameSegment>& segments) {
  std::vector<std::int32_t> labels;
  for (const FrameSegment& s : segments)
    labels.insert(labels.end(), static_cast<std::size_t>(s.duration), s.label);
  return labels;
}

/// Segments in a doubly linked list, so that one can be given to a neighbour.
class Neighbours {
 public:
  explicit Neighbours(std::vector<FrameSegment> segments) : segments_(std::move(segments)) {
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      before_.push_back(static_cast<std::int64_t>(i) - 1);
      after_.push_back(i + 1 < segments_.size() ? static_cast<std::int64_t>(i) + 1 : -1);
    }
  }

  std::int64_t duration(std::int64_t i) const { return at(i).duration; }
  std::int64_t before(std::int64_t i) const { return before_[static_cast<std::size_t>(i)]; }
  std::int64_t after(std::int64_t i) const { return after_[static_cast<std::size_t>(i)]; }

  /// Gives i to its longer neighbour; the index of what it is part of now.
  std::int64_t give_away(std::int64_t i) {
    const std::int64_t left = before(i);
    const std::int64_t right = after(i);
    const bool to_left = right < 0 || (left >= 0 && duration(left) >= duration(right));
    at(i).label = at(to_left ? left : right).label;
    std::int64_t whole = i;
    if (left >= 0 && at(left).label == at(i).label) whole = join(left, i);
    if (right >= 0 && at(right).label == at(whole).label) whole = join(whole, right);
    return whole;
  }

  std::vector<FrameSegment> left() const {
    std::vector<FrameSegment> out;
    for (std::int64_t i = segments_.empty() ? -1 : 0; i >= 0; i = after(i)) out.push_back(at(i));
    return out;
  }

 private:
  FrameSegment& at(std::int64_t i) { return segments_[static_cast<std::size_t>(i)]; }
  const FrameSegment& at(std::int64_t i) const { return segments_[static_cast<std::size_t>(i)]; }

  /// The second becomes part of the first, which is before it.
  std::int64_t join(std::int64_t first, std::int64_t second) {
    at(first).duration += at(second).duration;
    at(second).duration = 0;
    const std::int64_t next = after(second);
    after_[static_cast<std::size_t>(first)] = next;
    if (next >= 0) before_[static_cast<std::size_t>(next)] = first;
    return first;
  }

  std::vector<FrameSegment> segments_;  // duration 0: part of another
  std::vector<std::int64_t> before_, after_;
};

/// 1 2 3 4 5 6 8 10 12 16 20 24 32 ... up to the limit: steps of a fifth to a half.
std::vector<std::int64_t> steps_up_to(std::int64_t limit) {
  std::vector<std::int64_t> values;
  std::int64_t step = 1;
  for (std::int64_t value = 1; value <= std::max<std::int64_t>(1, limit); value += step) {
    values.push_back(value);
    if (value >= 6 * step) step *= 2;
  }
  return values;
}

}  // namespace

std::vector<FrameSegment> majority_vote(const std::vector<FrameSegment>& segments,
                                        std::int64_t window) {
  const std::vector<std::int32_t> labels = frames_of(segments);
  std::vector<std::int32_t> voted = labels;
  if (window <= 1 || labels.empty()) return runs_of(voted);
  std::vector<std::int64_t> votes(static_cast<std::size_t>(*std::ranges::max_element(labels)) + 1);
  const auto count = [&](std::int64_t t, std::int64_t change) {
    if (t >= 0 && t < std::ssize(labels))
      votes[static_cast<std::size_t>(labels[static_cast<std::size_t>(t)])] += change;
  };
  const std::int64_t reach = window / 2;
  for (std::int64_t t = 0; t < reach; ++t) count(t, 1);
  for (std::int64_t t = 0; t < std::ssize(labels); ++t) {
    count(t + reach, 1);
    count(t - reach - 1, -1);
    const auto most = std::ranges::max_element(votes);
    std::int32_t& label = voted[static_cast<std::size_t>(t)];
    if (votes[static_cast<std::size_t>(label)] < *most)
      label = static_cast<std::int32_t>(most - votes.begin());
  }
  return runs_of(voted);
}

std::vector<FrameSegment> without_short(const std::vector<FrameSegment>& segments,
                                        std::int64_t shortest) {
  Neighbours list(runs_of(frames_of(segments)));
  using Entry = std::pair<std::int64_t, std::int64_t>;  // duration, index: in order of the starts
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto push = [&](std::int64_t i) {
    if (list.duration(i) < shortest) queue.emplace(list.duration(i), i);
  };
  const std::int64_t count = std::ssize(list.left());
  for (std::int64_t i = 0; i < count; ++i) push(i);
  while (!queue.empty()) {
    const auto [duration, i] = queue.top();
    queue.pop();
    if (list.duration(i) != duration) continue;  // it has grown, or is part of another
    if (list.before(i) < 0 && list.after(i) < 0) break;
    push(list.give_away(i));
  }
  return list.left();
}

std::vector<FrameSegment> clean_up(const std::vector<FrameSegment>& segments, CleanUp setting) {
  return without_short(majority_vote(segments, setting.window), setting.shortest);
}

std::vector<CleanUp> clean_up_candidates(const std::vector<std::vector<FrameSegment>>& gold) {
  std::vector<std::int64_t> durations;
  for (const std::vector<FrameSegment>& row : gold)
    for (const FrameSegment& s : row) durations.push_back(s.duration);
  std::int64_t median = 1;
  if (!durations.empty()) {
    const auto middle = durations.begin() + std::ssize(durations) / 2;
    std::ranges::nth_element(durations, middle);
    median = *middle;
  }
  std::vector<CleanUp> all;
  for (const std::int64_t shortest : steps_up_to(median))
    for (const std::int64_t reach : steps_up_to(median + 1))
      all.push_back({shortest, 2 * (reach - 1) + 1});
  return all;
}

TunedCleanUp tune_clean_up(const std::vector<std::vector<FrameSegment>>& decoded,
                           const std::vector<CleanUp>& candidates, const CleanUpScore& score,
                           bool lower_is_better, ThreadPool& pool) {
  std::vector<double> scores(candidates.size());
  pool.run(std::ssize(candidates), [&](std::int64_t i) {
    std::vector<std::vector<FrameSegment>> cleaned;
    for (const std::vector<FrameSegment>& row : decoded)
      cleaned.push_back(clean_up(row, candidates[static_cast<std::size_t>(i)]));
    scores[static_cast<std::size_t>(i)] = score(cleaned);
  });
  std::size_t best = 0;
  for (std::size_t i = 1; i < scores.size(); ++i)
    if (lower_is_better ? scores[i] < scores[best] : scores[i] > scores[best]) best = i;
  return {candidates.at(best), scores.at(best), std::ssize(candidates)};
}

}  // namespace segfuse::learn
