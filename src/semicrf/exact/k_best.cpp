// The n best segmentations, lazily: the best scores come from one max pass; beyond it only the
// states that some listed path goes through keep a list of their own best prefixes, made longer
// when it is asked for (recursive enumeration, Jimenez and Marzal 1999).

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "segfuse/error.h"
#include "semicrf/exact/inference.h"
#include "semicrf/exact/segment_list.h"

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
  std::int32_t node = -1;  ///< of the state before; -1 until it is looked up
};

struct Node {
  State state;
  std::vector<Way> found;       ///< best first
  std::vector<Way> candidates;  ///< a heap: one for every choice that has more
  bool follows_up = false;      ///< whether the successor of found.back() is among the candidates
  bool is_exhausted() const { return follows_up && candidates.empty(); }
};

class Search {
 public:
  Search(const LatticeInput& input, const Lattice& lattice)
      : x_(input),
        lattice_(lattice),
        stride_(input.model.dims.stride),
        classes_(input.model.dims.classes),
        longest_(input.model.dims.max_duration),
        final_(node({Kind::kFinal, x_.row.length, 0, 0})) {}

  /// Whether there is an n-th best path (from 0); makes it.
  bool find(std::int64_t n) { return extend(final_, n); }
  /// The n-th best path, last segment first.
  std::vector<Piece> path(std::int64_t n);

 private:
  Node& at(std::int32_t id) { return nodes_[static_cast<std::size_t>(id)]; }
  std::int32_t node(const State& state);
  std::int32_t before(const Node& node, Way& way);
  void open_up(Node& node);
  void open_segments(Node& node);
  bool extend(std::int32_t goal, std::int64_t rank);
  void follow_up(Node& node, const Node& previous);
  bool step(Node& node);
  State state_before(const State& state, std::int32_t choice) const;
  std::int64_t last_duration(const Node& node, Way& way);
  bool is_after(const Node& node, Way& a, Way& b);
  double base(std::int64_t t) const { return lattice_.base[static_cast<std::size_t>(t)]; }
  State enter(std::int64_t t, std::int64_t k, std::int64_t c) const {
    return {Kind::kEnter, t, x_.model.dims.by_duration ? k : 0, c};
  }
  void add(Node& node, double score_before, double edge, std::int64_t choice) {
    if (score_before + edge > kNegInf)
      node.candidates.push_back({score_before + edge, edge, static_cast<std::int32_t>(choice), 0});
  }

  const LatticeInput& x_;
  const Lattice& lattice_;
  std::int64_t stride_;
  std::int64_t classes_;
  std::int64_t longest_;
  std::unordered_map<std::int64_t, std::int32_t> ids_;
  std::deque<Node> nodes_;
  std::vector<std::pair<std::int32_t, std::int64_t>> pending_;
  std::int32_t final_;
};

State Search::state_before(const State& s, std::int32_t choice) const {
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

std::int32_t Search::before(const Node& n, Way& way) {
  if (way.node < 0) way.node = node(state_before(n.state, way.choice));
  return way.node;
}

/// Duration of the last segment in the way into a kArrive state that `way`, into n, comes from.
std::int64_t Search::last_duration(const Node& n, Way& way) {
  Node* previous = &at(before(n, way));
  const std::int64_t end = previous->state.t;
  std::int32_t rank = way.rank;
  while (previous->state.kind != Kind::kEnter) {
    Way& next = previous->found[static_cast<std::size_t>(rank)];
    rank = next.rank;
    previous = &at(before(*previous, next));
  }
  return end - previous->state.t;
}

/// Order of a heap whose top is the best way: score, then the documented ties.
bool Search::is_after(const Node& n, Way& a, Way& b) {
  if (a.score != b.score) return a.score < b.score;
  if (n.state.kind == Kind::kEnter || n.state.kind == Kind::kFinal) {
    const std::int64_t of_a = last_duration(n, a);
    const std::int64_t of_b = last_duration(n, b);
    if (of_a != of_b) return of_a > of_b;
  }
  return a.choice > b.choice;
}

/// The choices of a kArrive or kOpen state.
void Search::open_segments(Node& n) {
  const State& s = n.state;
  const bool arriving = s.kind == Kind::kArrive;
  const std::int64_t last = (s.t - 1) * stride_ + s.c;
  const double end = arriving && x_.row.end != nullptr ? x_.row.end[last] : 0.0;
  for_segments_ending(x_, lattice_, s.t, s.c, [&](std::int64_t k, double score) {
    const double before = lattice_enter(x_, lattice_, s.t - k, k, s.c);
    const bool opens = x_.tail != nullptr && k == longest_;
    if (before > kNegInf && arriving != opens)
      add(n, before, score - before + end, arriving ? k : 0);
    return true;
  });
  if (x_.tail == nullptr) return;
  if (arriving) {
    add(n, lattice_.open[s.t * stride_ + s.c], end, longest_);
  } else if (!x_.is_forced(s.t - 1)) {
    add(n, lattice_.open[last], x_.tail[s.c] + x_.row.emission[last] + base(s.t - 1) - base(s.t),
        1);
  }
}

/// All choices into a state, each by its best way.
void Search::open_up(Node& n) {
  const State& s = n.state;
  n.follows_up = true;
  if (s.kind == Kind::kEnter && s.t == 0) {
    n.found.push_back(
        {lattice_enter(x_, lattice_, 0, std::max<std::int64_t>(s.k, 1), s.c), 0.0, -1, 0});
    return;
  }
  const double* value = lattice_.value.data() + s.t * stride_;
  if (s.kind == Kind::kFinal) {
    for (std::int64_t c = 0; c < classes_; ++c) add(n, value[c], x_.model.final[c], c);
  } else if (s.kind == Kind::kEnter) {
    const double* matrix = x_.model.transition_slice(std::max<std::int64_t>(s.k, 1) - 1);
    const double start = x_.row.start == nullptr ? 0.0 : x_.row.start[s.t * stride_ + s.c];
    for (std::int64_t from = 0; from < classes_; ++from)
      add(n, value[from],
          (matrix[from * stride_ + s.c] + x_.row.transitions(s.t, from, s.c)) + start, from);
  } else {
    open_segments(n);
  }
  std::make_heap(n.candidates.begin(), n.candidates.end(),
                 [&](Way& a, Way& b) { return is_after(n, a, b); });
  step(n);
}

/// Moves the best candidate to the end of the list; false when there is none.
bool Search::step(Node& n) {
  if (n.candidates.empty()) return false;
  std::pop_heap(n.candidates.begin(), n.candidates.end(),
                [&](Way& a, Way& b) { return is_after(n, a, b); });
  n.found.push_back(n.candidates.back());
  n.candidates.pop_back();
  n.follows_up = false;
  return true;
}

std::int32_t Search::node(const State& s) {
  const std::int64_t key =
      ((s.t * (longest_ + 1) + s.k) * classes_ + s.c) * 4 + static_cast<std::int64_t>(s.kind);
  const auto [found, is_new] = ids_.try_emplace(key, static_cast<std::int32_t>(nodes_.size()));
  const std::int32_t id = found->second;
  if (is_new) {
    nodes_.push_back({s, {}, {}, false});
    open_up(nodes_.back());
  }
  return id;
}

/// Makes the successor of the last found way a candidate, where the state before has it.
void Search::follow_up(Node& n, const Node& previous) {
  Way next = n.found.back();
  n.follows_up = true;
  if (previous.found.size() <= static_cast<std::size_t>(++next.rank)) return;
  next.score = previous.found[static_cast<std::size_t>(next.rank)].score + next.edge;
  n.candidates.push_back(next);
  std::push_heap(n.candidates.begin(), n.candidates.end(),
                 [&](Way& a, Way& b) { return is_after(n, a, b); });
}

/// Makes the list of a state at least rank + 1 long, where there are so many ways. A state waits on
/// `pending_` until the state before it has the way that its own next candidate needs.
bool Search::extend(std::int32_t goal, std::int64_t rank) {
  pending_.emplace_back(goal, rank);
  while (!pending_.empty()) {
    const auto [id, wanted] = pending_.back();
    Node& n = at(id);
    if (static_cast<std::int64_t>(n.found.size()) > wanted || n.is_exhausted()) {
      pending_.pop_back();
      continue;
    }
    if (!n.follows_up) {
      Way& last = n.found.back();
      const std::int32_t id_before = before(n, last);
      const Node& previous = at(id_before);
      const std::int64_t next = last.rank + std::int64_t{1};
      if (static_cast<std::int64_t>(previous.found.size()) <= next && !previous.is_exhausted()) {
        pending_.emplace_back(id_before, next);
        continue;
      }
      follow_up(n, previous);
    }
    step(n);
  }
  return static_cast<std::int64_t>(at(goal).found.size()) > rank;
}

std::vector<Piece> Search::path(std::int64_t n) {
  std::vector<Piece> out;
  std::int64_t end = 0;
  Node* state = &at(final_);
  for (std::int64_t rank = n;;) {
    const State& s = state->state;
    if (s.kind == Kind::kArrive) end = s.t;
    if (s.kind == Kind::kEnter)
      out.push_back({static_cast<std::int32_t>(s.t), static_cast<std::int32_t>(end - s.t),
                     static_cast<std::int32_t>(s.c)});
    Way& way = state->found[static_cast<std::size_t>(rank)];
    if (way.choice < 0) return out;
    rank = way.rank;
    state = &at(before(*state, way));
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

std::vector<Piece> best_path(const LatticeInput& input, Lattice& lattice) {
  if (lattice_forward(input, Sum::kMax, lattice) == kNegInf) return {};
  Search search(input, lattice);
  search.find(0);
  std::vector<Piece> path = search.path(0);
  std::reverse(path.begin(), path.end());
  return path;
}

template <class T>
void Inference::k_best(const Potentials<T>& potentials, const Scope& scope, std::int64_t n,
                       SegmentationLists& best) {
  if (n < 1)
    throw UsageError(
        fmt::format("semicrf: found {} best segmentations to list, expected 1 or more", n));
  const Dims dims = check_with_tables(potentials);
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
