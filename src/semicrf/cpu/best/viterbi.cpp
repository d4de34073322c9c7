#include "semicrf/cpu/best/viterbi.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/thread_pool.h"

namespace segfuse::semicrf {
namespace {

constexpr std::int64_t kShortestPart = 2048;
constexpr std::int64_t kWindowsInPart = 32;
constexpr std::int64_t kWindowsToForget = 4;
constexpr int kParallelRounds = 2;  // then wrong parts are done one after the other
constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

std::int64_t part_length(const Dims& dims) {
  return std::max(kShortestPart, kWindowsInPart * dims.max_duration);
}

struct Search {
  const Model& model;
  const Row& row;
  ViterbiState& state;
  ThreadPool& pool;
  std::int64_t stride = model.dims.stride;
  std::int64_t classes = model.dims.classes;
  std::int64_t longest = model.dims.max_duration;

  BestLattice lattice() const {
    return {state.value.data(), state.source.data(), state.base.data(), 0};
  }
  BestPart& part(std::int64_t i) const { return *state.parts[static_cast<std::size_t>(i)]; }
};

/// The grid of the row, and the shared scores on it.
void make_grid(const Search& x) {
  const std::int64_t size = x.row.length * x.stride;
  double largest = 0.0;
  for (const double* frames : {x.row.emission, x.row.start, x.row.end})
    if (frames != nullptr) largest = std::max(largest, largest_size(frames, size));
  for (const AlignedDoubles* shared :
       {&x.model.transition, &x.model.duration, &x.model.initial, &x.model.final})
    largest = std::max(largest, largest_size(shared->data(), shared->size()));
  x.state.grid = grid_of(largest, x.longest);
  const auto copy = [&](const AlignedDoubles& from, AlignedDoubles& to) {
    to.resize(from.size());
    for (std::int64_t i = 0; i < from.size(); ++i) to[i] = x.state.grid(from[i]);
  };
  copy(x.model.transition, x.state.transition);
  copy(x.model.duration, x.state.duration);
  copy(x.model.final, x.state.final);
  x.state.into.assign(x.classes * x.stride, kNegInf);
  for (std::int64_t from = 0; from < x.classes; ++from)
    for (std::int64_t to = 0; to < x.classes; ++to)
      x.state.into[to * x.stride + from] = x.state.transition[from * x.stride + to];
  x.state.value.resize((x.row.length + 1) * x.stride);
  x.state.source.resize((x.row.length + 1) * x.stride);
  x.state.base.resize(x.row.length + 1);
  for (std::int64_t c = 0; c < x.stride; ++c) x.state.source[c] = x.state.grid(x.model.initial[c]);
  x.state.base[0] = 0.0;
}

void set_up(const Search& x, BestPass& pass) {
  pass.row = &x.row;
  pass.dims = &x.model.dims;
  pass.transition = x.state.transition.data();
  pass.duration = x.state.duration.data();
  pass.grid = x.state.grid;
}

void search_in_one_piece(const Search& x) {
  x.state.cut = false;
  set_up(x, x.state.pass);
  open_pass(x.state.pass, x.lattice(), 0);
  advance_pass(x.state.pass, x.lattice(), 0, x.row.length);
  if (x.state.pass.least < x.state.grid.least) x.state.grid.exact = false;
}

/// Part i from the row's start, or from a guess.
void start_part(const Search& x, std::int64_t i, const BestCut& cut) {
  BestPart& part = x.part(i);
  part.begin = x.row.length * i / cut.parts;
  part.end = x.row.length * (i + 1) / cut.parts;
  set_up(x, part.pass);
  if (i == 0) {
    open_pass(part.pass, x.lattice(), 0);
  } else {
    const std::int64_t frames = std::min(part.begin, cut.warm_up);
    part.value.resize((frames + 1) * x.stride);
    part.source.resize((frames + 1) * x.stride);
    part.base.resize(frames + 1);
    part.incoming = {part.value.data(), part.source.data(), part.base.data(), part.begin - frames};
    for (std::int64_t c = 0; c < x.stride; ++c) part.source[c] = c < x.classes ? 0.0 : kNegInf;
    part.base[0] = 0.0;
    open_pass(part.pass, part.incoming, part.incoming.first);
    advance_pass(part.pass, part.incoming, part.incoming.first, part.begin);
    part.pass.least = 0.0;
  }
  advance_pass(part.pass, x.lattice(), part.begin, part.end);
}

PartDifference compare(const Search& x, std::int64_t i) {
  const BestPart& part = x.part(i);
  const std::int64_t first = std::max(part.incoming.first, part.begin - x.longest + 1);
  PartDifference result;
  result.base = x.state.base[part.begin] - part.incoming.base[part.begin - part.incoming.first];
  bool known = false;
  for (std::int64_t s = part.begin; s >= first; --s) {
    const std::int64_t at = s - part.incoming.first;
    const double base = x.state.base[s] - part.incoming.base[at] - result.base;
    for (std::int64_t c = 0; c < x.classes; ++c) {
      const double theirs = x.state.source[s * x.stride + c];
      const double mine = part.incoming.source[at * x.stride + c];
      if (theirs == kNegInf && mine == kNegInf) continue;
      if (theirs == kNegInf || mine == kNegInf) return result;
      if (!std::exchange(known, true)) result.fine = theirs - mine + base;
      if (theirs - mine + base != result.fine) return result;
    }
  }
  result.same = true;
  return result;
}

/// Part i is to start from what its neighbour has found.
void hand_over(const Search& x, std::int64_t i) {
  BestPart& part = x.part(i);
  const std::int64_t rows = std::min(x.longest, part.begin + 1);
  const std::int64_t first = part.begin - rows + 1;
  part.incoming.first = first;
  std::copy_n(x.state.source.data() + first * x.stride, rows * x.stride, part.source.data());
  std::copy_n(x.state.base.data() + first, rows, part.base.data());
}

void do_again(const Search& x, std::int64_t i) {
  BestPart& part = x.part(i);
  open_pass(part.pass, part.incoming, part.begin);
  advance_pass(part.pass, x.lattice(), part.begin, part.end);
}

/// Until every part has come in with what its neighbour went out with.
void settle(const Search& x, std::int64_t count) {
  for (int round = 0; round < kParallelRounds; ++round) {
    int wrong = 0;
    for (std::int64_t i = 1; i < count; ++i) {
      x.part(i).wrong = !compare(x, i).same;
      wrong += x.part(i).wrong ? 1 : 0;
    }
    if (wrong == 0) return;
    x.state.redone += wrong;
    for (std::int64_t i = 1; i < count; ++i)
      if (x.part(i).wrong) hand_over(x, i);
    const auto task = [&](std::int64_t i) {
      if (x.part(i + 1).wrong) do_again(x, i + 1);
    };
    x.pool.run(count - 1, std::ref(task));
  }
  for (std::int64_t i = 1; i < count; ++i) {
    if (compare(x, i).same) continue;
    hand_over(x, i);
    do_again(x, i);
    ++x.state.redone;
  }
}

/// Bases of all parts become relative to the first's; what they lack goes to `fine`.
void join_parts(const Search& x, std::int64_t count) {
  for (std::int64_t i = 1; i < count; ++i) x.part(i).difference = compare(x, i);
  x.state.fine.resize(x.row.length + 1);
  std::fill_n(x.state.fine.data(), x.part(0).end + 1, 0.0);
  double base = 0.0;
  double fine = 0.0;
  for (std::int64_t i = 1; i < count; ++i) {
    const BestPart& part = x.part(i);
    const double sum = fine + part.difference.fine;
    const double carry = (sum + x.state.grid.base_rounder) - x.state.grid.base_rounder;
    base += part.difference.base + carry;
    fine = sum - carry;
    for (std::int64_t t = part.begin + 1; t <= part.end; ++t) {
      x.state.base[t] += base;
      x.state.fine[t] = fine;
    }
  }
}

/// False when some sum may have been rounded.
bool search_in_parts(const Search& x, const BestCut& cut) {
  x.state.cut = true;
  while (std::ssize(x.state.parts) < cut.parts)
    x.state.parts.push_back(std::make_unique<BestPart>());
  const auto task = [&](std::int64_t i) { start_part(x, i, cut); };
  x.pool.run(cut.parts, std::ref(task));
  settle(x, cut.parts);
  for (std::int64_t i = 0; i < cut.parts; ++i)
    if (x.part(i).pass.least < x.state.grid.least) return false;
  join_parts(x, cut.parts);
  return true;
}

/// Duration of the best segment of label c that ends at t, the shortest of several; in an exact
/// search kNone when it is longer than `most`.
std::int64_t best_duration(const Search& x, std::int64_t t, std::int64_t c, std::int64_t most) {
  const ScoreGrid& grid = x.state.grid;
  const double target = x.state.value[t * x.stride + c];
  const double end = x.row.end == nullptr ? 0.0 : grid(x.row.end[(t - 1) * x.stride + c]);
  double best = kNegInf;
  double content = end;
  std::int64_t found = kNone;
  const std::int64_t longest = std::min({x.longest, t, grid.exact ? most : x.longest});
  for (std::int64_t k = 1; k <= longest; ++k) {
    const std::int64_t s = t - k;
    content += grid(x.row.emission[s * x.stride + c]);
    if (content == kNegInf) break;
    double score = x.state.base[s] - x.state.base[t];
    if (x.state.cut) score += x.state.fine[s] - x.state.fine[t];
    score += x.state.source[s * x.stride + c] + content + x.state.duration[(k - 1) * x.stride + c];
    if (x.row.start != nullptr) score += grid(x.row.start[s * x.stride + c]);
    if (grid.exact && score == target) return k;
    if (grid.exact || !(score > best)) continue;
    best = score;
    found = k;
  }
  return found;
}

/// The best label of those that end at boundary t, `following` added to their values; of several
/// that with the shortest last segment. -1 if none is possible.
std::int64_t best_label(const Search& x, std::int64_t t, const double* following) {
  const double* value = x.state.value.data() + t * x.stride;
  const double best = largest_sum(value, following, x.stride);
  std::int64_t label = -1;
  std::int64_t duration = kNone;  // of label, once it is needed
  for (std::int64_t c = 0; c < x.classes && best > kNegInf; ++c) {
    if (value[c] + following[c] != best) continue;
    if (label < 0) {
      label = c;
      continue;
    }
    if (duration == kNone) duration = best_duration(x, t, label, x.longest);
    const std::int64_t other = best_duration(x, t, c, duration - 1);
    if (other >= duration) continue;
    label = c;
    duration = other;
  }
  return label;
}

bool trace_back(const Search& x, std::vector<Segment>& path) {
  std::int64_t label = -1;
  for (std::int64_t t = x.row.length; t > 0;) {
    label = best_label(
        x, t, t == x.row.length ? x.state.final.data() : x.state.into.data() + label * x.stride);
    if (label < 0) return false;
    const std::int64_t duration = best_duration(x, t, label, x.longest);
    SEGFUSE_CHECK(duration <= t, "a possible label has a segment, here at boundary {}", t);
    t -= duration;
    path.push_back({static_cast<std::int32_t>(t), static_cast<std::int32_t>(duration),
                    static_cast<std::int32_t>(label)});
  }
  std::reverse(path.begin(), path.end());
  return true;
}

}  // namespace

bool can_cut_best(const Dims& dims, std::int64_t length) {
  return !dims.by_duration && length >= 2 * part_length(dims);
}

BestCut cut_best(const Dims& dims, std::int64_t length, int threads) {
  if (threads == 1 || !can_cut_best(dims, length)) return {};
  return {length / part_length(dims), kWindowsToForget * dims.max_duration};
}

bool viterbi_row(const Model& model, const Row& row, const BestCut& cut, ViterbiState& state,
                 ThreadPool& pool, std::vector<Segment>& path) {
  const Search x{model, row, state, pool};
  path.clear();
  state.redone = 0;
  make_grid(x);
  if (cut.parts < 2 || !state.grid.exact || !search_in_parts(x, cut)) search_in_one_piece(x);
  return trace_back(x, path);
}

bool viterbi_row(const Model& model, const Row& row, ViterbiState& state, ThreadPool& pool,
                 std::vector<Segment>& path) {
  if (model.dims.by_duration) return viterbi_by_duration(model, row, state, path);
  return viterbi_row(model, row, cut_best(model.dims, row.length, pool.size()), state, pool, path);
}

}  // namespace segfuse::semicrf
