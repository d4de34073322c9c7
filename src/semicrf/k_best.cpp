// The n best segmentations, lazily: the best scores come from one max pass; beyond it only the
// states that some listed path goes through keep a list of their own best prefixes, made longer
// when it is asked for (recursive enumeration, Jimenez and Marzal 1999).

#include <algorithm>
#include <unordered_map>

#include "segfuse/error.h"
#include "semicrf/inference.h"
#include "semicrf/segment_list.h"

namespace segfuse::semicrf {
namespace {

enum class Kind : std::int64_t {
  kArrive,  ///< segments of label c end at t; choices: their duration, K for those through kOpen
  kOpen,    ///< a segment of c has K frames or more up to t; choices: 0 it has K, 1 it goes on
  kEnter,   ///< a segment of c starts at t; choices: the label before
  kFinal,   ///< the row ends; choices: the last label
};

struct State {
  Kind kind;
  std::int64_t t;
  std::int64_t k;  ///< of kEnter, where transitions depend on duration
  std::int64_t c;
};

/// One way into a state: a choice, and which of the best ways into the state before it.
struct Way {
  double score;
  double edge;  ///< score less that of the state before
  std::int32_t choice;
  std::int32_t rank;
};

struct Node {
  std::vector<Way> found;       ///< best first
  std::vector<Way> candidates;  ///< a heap: one for every choice that has more
  bool follows_up = false;      ///< whether the successor of found.back() is among the candidates
};

class Search {
 public:
  Search(const LatticeInput& input, const Lattice& lattice)
      : x_(input),
        lattice_(lattice),
        stride_(input.model.dims.stride),
        classes_(input.model.dims.classes),
        longest_(input.model.dims.max_duration) {}

  /// Whether there is an n-th best path (from 0); makes it.
  bool find(std::int64_t n) { return extend({Kind::kFinal, x_.row.length, 0, 0}, n); }
  /// The n-th best path, last segment first.
  std::vector<Piece> path(std::int64_t n);

 private:
  Node& node(const State& state);
  void open_up(const State& state, Node& node);
  bool extend(const State& state, std::int64_t rank);
  bool step(const State& state, Node& node);
  State before(const State& state, std::int32_t choice) const;
  std::int64_t last_duration(State state, std::int64_t rank);
  bool is_after(const State& state, const Way& a, const Way& b);
  double base(std::int64_t t) const { return lattice_.base[static_cast<std::size_t>(t)]; }
  State enter(std::int64_t t, std::int64_t k, std::int64_t c) const {
    return {Kind::kEnter, t, x_.model.dims.by_duration ? k : 0, c};
  }

  const LatticeInput& x_;
  const Lattice& lattice_;
  std::int64_t stride_;
  std::int64_t classes_;
  std::int64_t longest_;
  std::unordered_map<std::int64_t, Node> nodes_;
  std::vector<std::pair<State, std::int64_t>> pending_;
};

State Search::before(const State& s, std::int32_t choice) const {
  switch (s.kind) {
    case Kind::kArrive:
      if (x_.tail != nullptr && choice == longest_) return {Kind::kOpen, s.t, 0, s.c};
      return enter(s.t - choice, choice, s.c);
    case Kind::kOpen:
      if (choice == 1) return {Kind::kOpen, s.t - 1, 0, s.c};
      return enter(s.t - longest_, longest_, s.c);
    default: return {Kind::kArrive, s.t, 0, choice};
  }
}

/// Duration of the last segment in a way into a kArrive state.
std::int64_t Search::last_duration(State s, std::int64_t rank) {
  const std::int64_t end = s.t;
  while (true) {
    const Way way = node(s).found[static_cast<std::size_t>(rank)];
    const State previous = before(s, way.choice);
    if (previous.kind == Kind::kEnter) return end - previous.t;
    s = previous;
    rank = way.rank;
  }
}

/// Order of a heap whose top is the best way: score, then the documented ties.
bool Search::is_after(const State& state, const Way& a, const Way& b) {
  if (a.score != b.score) return a.score < b.score;
  if (state.kind == Kind::kEnter || state.kind == Kind::kFinal) {
    const std::int64_t of_a = last_duration(before(state, a.choice), a.rank);
    const std::int64_t of_b = last_duration(before(state, b.choice), b.rank);
    if (of_a != of_b) return of_a > of_b;
  }
  return a.choice > b.choice;
}

/// All choices into a state, each by its best way.
void Search::open_up(const State& s, Node& n) {
  const auto add = [&](double score_before, double edge, std::int64_t choice) {
    if (score_before + edge > kNegInf)
      n.candidates.push_back({score_before + edge, edge, static_cast<std::int32_t>(choice), 0});
  };
  const double end = s.kind == Kind::kArrive && x_.row.end != nullptr
                         ? x_.row.end[(s.t - 1) * stride_ + s.c]
                         : 0.0;
  if (s.kind == Kind::kFinal) {
    for (std::int64_t c = 0; c < classes_; ++c)
      add(lattice_.value[s.t * stride_ + c], x_.model.final[c], c);
  } else if (s.kind == Kind::kEnter && s.t > 0) {
    const double* matrix = x_.model.transition_slice(std::max<std::int64_t>(s.k, 1) - 1);
    const double start = x_.row.start == nullptr ? 0.0 : x_.row.start[s.t * stride_ + s.c];
    for (std::int64_t from = 0; from < classes_; ++from)
      add(lattice_.value[s.t * stride_ + from], matrix[from * stride_ + s.c] + start, from);
  } else if (s.kind == Kind::kEnter) {
    n.found.push_back(
        {lattice_enter(x_, lattice_, 0, std::max<std::int64_t>(s.k, 1), s.c), 0.0, -1, 0});
    n.follows_up = true;
    return;
  } else {
    const bool arriving = s.kind == Kind::kArrive;
    for_segments_ending(x_, lattice_, s.t, s.c, [&](std::int64_t k, double score) {
      const double before = lattice_enter(x_, lattice_, s.t - k, k, s.c);
      const bool opens = x_.tail != nullptr && k == longest_;
      if (before > kNegInf && arriving != opens)
        add(before, score - before + end, arriving ? k : 0);
    });
    if (x_.tail != nullptr && arriving) add(lattice_.open[s.t * stride_ + s.c], end, longest_);
    if (!arriving && !x_.is_forced(s.t - 1))
      add(lattice_.open[(s.t - 1) * stride_ + s.c],
          x_.tail[s.c] + x_.row.emission[(s.t - 1) * stride_ + s.c] + base(s.t - 1) - base(s.t), 1);
  }
  const auto order = [&](const Way& a, const Way& b) { return is_after(s, a, b); };
  std::make_heap(n.candidates.begin(), n.candidates.end(), order);
  n.follows_up = true;
  step(s, n);
}

/// Moves the best candidate to the end of the list; false when there is none.
bool Search::step(const State& s, Node& n) {
  if (n.candidates.empty()) return false;
  std::pop_heap(n.candidates.begin(), n.candidates.end(),
                [&](const Way& a, const Way& b) { return is_after(s, a, b); });
  n.found.push_back(n.candidates.back());
  n.candidates.pop_back();
  n.follows_up = n.found.back().choice < 0;
  return true;
}

Node& Search::node(const State& s) {
  const std::int64_t key =
      ((s.t * (longest_ + 1) + s.k) * classes_ + s.c) * 4 + static_cast<std::int64_t>(s.kind);
  const auto [found, is_new] = nodes_.try_emplace(key);
  if (is_new) open_up(s, found->second);
  return found->second;
}

/// Makes the list of a state at least rank + 1 long, where there are so many ways. A state waits on
/// `pending_` until the state before it has the way that its own next candidate needs.
bool Search::extend(const State& goal, std::int64_t rank) {
  pending_.emplace_back(goal, rank);
  while (!pending_.empty()) {
    const auto [state, wanted] = pending_.back();
    Node& n = node(state);
    const auto size = static_cast<std::int64_t>(n.found.size());
    if (size > wanted || (n.follows_up && n.candidates.empty())) {
      pending_.pop_back();
      continue;
    }
    if (!n.follows_up) {
      const Way last = n.found.back();
      const State previous = before(state, last.choice);
      Node& p = node(previous);
      const auto next = static_cast<std::size_t>(last.rank) + 1;
      if (p.found.size() <= next && !(p.follows_up && p.candidates.empty())) {
        pending_.emplace_back(previous, static_cast<std::int64_t>(next));
        continue;
      }
      n.follows_up = true;
      if (p.found.size() > next) {
        n.candidates.push_back(
            {p.found[next].score + last.edge, last.edge, last.choice, last.rank + 1});
        std::push_heap(n.candidates.begin(), n.candidates.end(),
                       [&](const Way& a, const Way& b) { return is_after(state, a, b); });
      }
    }
    step(state, n);
  }
  return static_cast<std::int64_t>(node(goal).found.size()) > rank;
}

std::vector<Piece> Search::path(std::int64_t n) {
  std::vector<Piece> out;
  State s{Kind::kFinal, x_.row.length, 0, 0};
  std::int64_t end = 0;
  for (std::int64_t rank = n;;) {
    if (s.kind == Kind::kArrive) end = s.t;
    if (s.kind == Kind::kEnter)
      out.push_back({static_cast<std::int32_t>(s.t), static_cast<std::int32_t>(end - s.t),
                     static_cast<std::int32_t>(s.c)});
    const Way way = node(s).found[static_cast<std::size_t>(rank)];
    if (way.choice < 0) return out;
    s = before(s, way.choice);
    rank = way.rank;
  }
}

/// The n best of one row, by score.
RowList best_of_row(const LatticeInput& input, std::int64_t n, Lattice& lattice) {
  RowList list;
  if (lattice_forward(input, Sum::kMax, lattice) == kNegInf) return list;
  Search search(input, lattice);
  std::vector<std::pair<double, std::vector<Piece>>> ranked;
  for (std::int64_t i = 0; i < n && search.find(i); ++i) {
    std::vector<Piece> path = search.path(i);
    std::reverse(path.begin(), path.end());
    ranked.emplace_back(score_of(input, path), std::move(path));
  }
  // The search adds scores up in another order; this makes the list fall, to the last bit.
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [score, path] : ranked) list.append(path, score);
  return list;
}

}  // namespace

template <class T>
void Inference::k_best(const Potentials<T>& potentials, const Scope& scope, std::int64_t n,
                       SegmentationLists& best) {
  if (n < 1)
    throw UsageError("semicrf: {} best segmentations were asked for, expected 1 or more", n);
  const Dims dims = check_potentials(potentials);
  check_scope(scope, dims, potentials.lengths);
  ScopedModel model;
  load_scoped(potentials, scope, dims, model);
  std::vector<RowList> rows(static_cast<std::size_t>(dims.batch));
  state_->for_rows(0, dims.batch, [&](std::int64_t b, LatticeWorkspace& w) {
    load_scoped_row(potentials, scope.constraints, dims, b, w.scoped);
    RowList& mine = rows[static_cast<std::size_t>(b)];
    if (w.scoped.row.length == 0) return mine.append({}, 0.0);
    mine = best_of_row(lattice_of(model, w.scoped), n, w.lattice);
  });
  collect(rows, best);
}

template void Inference::k_best(const Potentials<float>&, const Scope&, std::int64_t,
                                SegmentationLists&);
template void Inference::k_best(const Potentials<double>&, const Scope&, std::int64_t,
                                SegmentationLists&);

}  // namespace segfuse::semicrf
