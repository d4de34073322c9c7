// Alignments with orders of labels, against a list of all of them.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "segfuse/error.h"
#include "segfuse/semicrf/orders.h"
#include "unit/semicrf/problems.h"

namespace segfuse::semicrf::testing {
namespace {

using Labels = std::vector<std::int64_t>;

LabelOrders chain(const Labels& labels) {
  LabelOrders orders;
  for (std::size_t i = 0; i < labels.size(); ++i)
    orders.nodes.push_back(
        {static_cast<std::int32_t>(labels[i]), i == 0, i + 1 == labels.size(), {}});
  for (std::size_t i = 0; i + 1 < labels.size(); ++i)
    orders.nodes[i].next = {static_cast<std::int32_t>(i + 1)};
  return orders;
}

/// Any acyclic graph, with doubles of all kinds.
LabelOrders random_orders(std::int64_t nodes, std::int64_t classes, Rng& rng) {
  LabelOrders orders;
  for (std::int64_t n = 0; n < nodes; ++n) {
    LabelOrders::Node node{
        static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(classes))),
        n == 0 || rng.below(3) == 0,
        n + 1 == nodes || rng.below(3) == 0,
        {}};
    for (std::int64_t m = n + 1; m < nodes; ++m)
      if (rng.below(2) == 0) node.next.push_back(static_cast<std::int32_t>(m));
    orders.nodes.push_back(node);
  }
  return orders;
}

/// All label sequences of a graph, each once.
std::set<Labels> sequences_of(const LabelOrders& orders) {
  std::set<Labels> all;
  const auto visit = [&](const auto& self, std::int32_t n, Labels prefix) -> void {
    const LabelOrders::Node& node = orders.nodes[static_cast<std::size_t>(n)];
    prefix.push_back(node.label);
    if (node.last) all.insert(prefix);
    for (const std::int32_t next : node.next) self(self, next, prefix);
  };
  for (std::size_t n = 0; n < orders.nodes.size(); ++n)
    if (orders.nodes[n].first) visit(visit, static_cast<std::int32_t>(n), {});
  return all;
}

/// Segments, and the pieces that they consist of.
struct Candidate {
  std::vector<Path> segments;
  double score = 0;
  Path whole() const {
    Path path;
    for (const Path& pieces : segments)
      path.push_back({pieces.front().start,
                      pieces.back().start + pieces.back().duration - pieces.front().start,
                      pieces.front().label});
    return path;
  }
  /// What ties are decided by, the last piece first.
  std::vector<std::tuple<std::int64_t, std::int64_t, bool>> key() const {
    std::vector<std::tuple<std::int64_t, std::int64_t, bool>> key;
    for (auto pieces = segments.rbegin(); pieces != segments.rend(); ++pieces)
      for (auto piece = pieces->rbegin(); piece != pieces->rend(); ++piece)
        key.emplace_back(piece->duration, piece->label, piece == pieces->rbegin());
    return key;
  }
};

struct Case {
  const Problem<double>& p;
  const std::vector<PieceRule>& rules;

  std::int64_t longest(std::int64_t c) const {
    std::int64_t most = 0;
    for (std::int64_t d = 1; d <= p.K; ++d)
      if (p.duration[(d - 1) * p.C + c] > -kInf) most = d;
    return most;
  }
  double score(std::int64_t b, const Candidate& y) const {
    double sum = 0;
    const Piece* former = nullptr;
    for (const Path& pieces : y.segments)
      for (const Piece& s : pieces) {
        sum += former ? p.transition[former->label * p.C + s.label] : p.initial[s.label];
        former = &s;
        const std::int64_t row = b * p.T_;
        for (std::int64_t t = s.start; t < s.start + s.duration; ++t)
          sum += p.emission[(row + t) * p.C + s.label];
        sum += p.duration[(s.duration - 1) * p.C + s.label];
        sum += p.start[(row + s.start) * p.C + s.label];
        sum += p.end[(row + s.start + s.duration - 1) * p.C + s.label];
      }
    return sum + p.final[former->label];
  }
  void list(std::int64_t b, const Labels& labels, std::size_t next, Candidate& prefix,
            std::vector<Candidate>& out) const {
    std::int64_t t = 0;
    if (!prefix.segments.empty()) {
      const Piece& last = prefix.segments.back().back();
      t = last.start + last.duration;
      const PieceRule rule = rules[last.label];
      const bool more = rule == PieceRule::kAny ||
                        (rule == PieceRule::kAfterFull && last.duration == longest(last.label));
      for (std::int64_t d = 1; more && d <= std::min(p.K, p.length(b) - t); ++d) {
        Path kept = prefix.segments.back();
        prefix.segments.back().push_back({t, d, kept.back().label});
        list(b, labels, next, prefix, out);
        prefix.segments.back() = kept;
      }
    }
    if (next == labels.size()) {
      if (t != p.length(b)) return;
      out.push_back(prefix);
      out.back().score = score(b, prefix);
      if (out.back().score == -kInf) out.pop_back();
      return;
    }
    for (std::int64_t d = 1; d <= std::min(p.K, p.length(b) - t); ++d) {
      prefix.segments.push_back({{t, d, labels[next]}});
      list(b, labels, next + 1, prefix, out);
      prefix.segments.pop_back();
    }
  }
};

void check(const Case& c, std::int64_t b, const LabelOrders& orders, const Alignment& found,
           bool exact) {
  std::vector<Candidate> all;
  for (const Labels& labels : sequences_of(orders)) {
    Candidate prefix;
    c.list(b, labels, 0, prefix, all);
  }
  const double slack = rounding(c.p);
  if (all.empty()) {
    EXPECT_EQ(found.status, RowStatus::kNoPath);
    EXPECT_EQ(found.score, -kInf);
    EXPECT_EQ(found.log_partition, -kInf);
    EXPECT_TRUE(found.segments.empty());
    return;
  }
  ASSERT_EQ(found.status, RowStatus::kOk);
  const Candidate* best = &all[0];
  for (const Candidate& y : all)
    if (y.score > best->score || (y.score == best->score && y.key() < best->key())) best = &y;
  double z = 0;
  for (const Candidate& y : all) z += std::exp(y.score - best->score);
  z = best->score + std::log(z);
  EXPECT_NEAR(found.score, best->score, slack);
  EXPECT_NEAR(found.log_partition, z, slack);
  Path path;
  for (const AlignedSegment& s : found.segments) path.push_back({s.start, s.duration, s.label});
  if (exact) {
    EXPECT_EQ(path, best->whole());
  }
  double reached = -kInf;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, double> posterior;
  std::vector<double> label(static_cast<std::size_t>(c.p.T_ * c.p.C));
  for (const Candidate& y : all) {
    if (y.whole() == path) reached = std::max(reached, y.score);
    for (const Piece& s : y.whole()) {
      posterior[{s.start, s.duration, s.label}] += std::exp(y.score - z);
      for (std::int64_t t = s.start; t < s.start + s.duration; ++t)
        label[t * c.p.C + s.label] += std::exp(y.score - z);
    }
  }
  EXPECT_NEAR(reached, best->score, slack);
  for (const AlignedSegment& s : found.segments) {
    EXPECT_NEAR(s.posterior, (posterior[{s.start, s.duration, s.label}]), slack);
    double mean = 0;
    for (std::int64_t t = s.start; t < s.start + s.duration; ++t)
      mean += label[t * c.p.C + s.label] / static_cast<double>(s.duration);
    EXPECT_NEAR(s.label_posterior, mean, slack);
  }
}

TEST(Align, EverythingIsEnumerated) {
  Rng rng(1);
  std::size_t draw_number = 0;
  for (const Draw& draw : all_draws()) {
    const bool exact = ++draw_number >= 5;  // ties and zeros: sums of small integers
    for (int round = 0; round < 300; ++round) {
      const auto K = static_cast<std::int64_t>(1 + rng.below(3));
      const auto C = static_cast<std::int64_t>(1 + rng.below(3));
      const auto T = static_cast<std::int64_t>(1 + rng.below(8));
      Problem<double> p = random_problem<double>(2, T, K, C, false, draw, rng);
      p.lengths = {T, 1 + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(T)))};
      std::vector<PieceRule> pieces;
      for (std::int64_t c = 0; c < C; ++c) pieces.push_back(static_cast<PieceRule>(rng.below(3)));
      std::vector<LabelOrders> orders;
      for (int b = 0; b < 2; ++b)
        orders.push_back(random_orders(1 + static_cast<std::int64_t>(rng.below(5)), C, rng));
      for (const auto algorithm : {AlignAlgorithm::kFast, AlignAlgorithm::kReference}) {
        AlignOptions options;
        options.pieces = pieces, options.algorithm = algorithm;
        const std::vector<Alignment> found = align(Context::process_default(), p.potentials(),
                                                   std::span<const LabelOrders>(orders), options);
        for (std::int64_t b = 0; b < 2; ++b)
          check({p, pieces}, b, orders[static_cast<std::size_t>(b)],
                found[static_cast<std::size_t>(b)], exact);
        if (HasFailure()) {
          ADD_FAILURE() << "draw " << draw_number << " round " << round << " K " << K << " C " << C;
          return;
        }
      }
    }
  }
}

void expect_fast_is_plain(const Problem<double>& p, const std::vector<LabelOrders>& orders,
                          AlignOptions options) {
  const auto run = [&](AlignAlgorithm algorithm) {
    options.algorithm = algorithm;
    return align(Context::process_default(), p.potentials(), std::span<const LabelOrders>(orders),
                 options);
  };
  const std::vector<Alignment> fast = run(AlignAlgorithm::kFast);
  const std::vector<Alignment> plain = run(AlignAlgorithm::kReference);
  for (std::size_t b = 0; b < orders.size(); ++b) {
    EXPECT_EQ(fast[b].score, plain[b].score);
    ASSERT_EQ(fast[b].segments.size(), plain[b].segments.size());
    ASSERT_GT(plain[b].score, -kInf);
    EXPECT_NEAR(fast[b].log_partition, plain[b].log_partition, 1e-8);
    for (std::size_t i = 0; i < fast[b].segments.size(); ++i) {
      EXPECT_EQ(fast[b].segments[i].start, plain[b].segments[i].start);
      EXPECT_NEAR(fast[b].segments[i].posterior, plain[b].segments[i].posterior, 1e-8);
      EXPECT_NEAR(fast[b].segments[i].label_posterior, plain[b].segments[i].label_posterior, 1e-8);
    }
  }
}

/// An order of many labels, each of which may be left out, but not two in a row.
LabelOrders skipping_orders(std::int64_t nodes, std::int64_t classes, Rng& rng) {
  LabelOrders orders;
  for (std::int64_t i = 0; i < nodes; ++i) {
    const auto label = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(classes)));
    orders.nodes.push_back({label, i < 2, i + 2 >= nodes, {}});
    for (std::int64_t next = i + 1; next < std::min(i + 3, nodes); ++next)
      orders.nodes.back().next.push_back(static_cast<std::int32_t>(next));
  }
  return orders;
}

/// Without forbidden frames many frames of a node are worked on at a time: durations below and
/// above the frames of such a group, segments of many full pieces, gaps among the durations, and
/// scores so far apart that sums are formed again by logarithms.
TEST(Align, ManyFramesAtATimeAreThoseOfOneByOne) {
  Rng rng(3);
  for (const double scale : {0.5, 4.0, 60.0}) {
    for (const std::int64_t K : {1, 2, 7, 64, 150}) {
      const std::int64_t C = 4;
      Problem<double> p = random_problem<double>(2, 400, K, C, false, Draw(gaussian), rng);
      p.lengths = {400, 333};
      for (double& score : p.emission) score *= scale;
      for (std::int64_t d = 0; d + 1 < K; ++d)
        if (rng.below(4) == 0) p.duration[static_cast<std::size_t>(d * C) + rng.below(C)] = -kInf;
      AlignOptions options;
      options.pieces = {PieceRule::kOne, PieceRule::kAfterFull, PieceRule::kAfterFull,
                        PieceRule::kAny};
      std::vector<LabelOrders> orders;
      for (int b = 0; b < 2; ++b) orders.push_back(skipping_orders(K < 7 ? 250 : 40, C, rng));
      expect_fast_is_plain(p, orders, options);
      if (HasFailure()) FAIL() << "K " << K << " scale " << scale;
    }
  }
}

/// Rows long enough for the scales of fast sums to change, and an order with optional labels.
TEST(Align, FastSumsAreThoseOfLogarithms) {
  Rng rng(2);
  for (const Draw& draw : {Draw(gaussian), Draw(wide)}) {
    Problem<double> p = random_problem<double>(2, 300, 40, 5, false, draw, rng);
    for (double& score : p.emission)
      score = rng.below(100) == 0 ? -kInf : score * 4;  // hundreds of nats within a segment
    for (std::size_t i = 0; i < 10; ++i) p.duration[i] = -kInf;  // at least 3 frames
    std::vector<LabelOrders> orders(2);
    for (int i = 0; i < 60; ++i)
      for (LabelOrders& of_row : orders)
        of_row.nodes.push_back(
            {static_cast<std::int32_t>(rng.below(5)), i < 2, i >= 58, {i + 1, i + 2}});
    for (LabelOrders& of_row : orders) {
      of_row.nodes[58].next = {59};
      of_row.nodes[59].next = {};
    }
    AlignOptions options;
    options.pieces = {PieceRule::kOne, PieceRule::kAfterFull, PieceRule::kAny, PieceRule::kOne,
                      PieceRule::kAfterFull};
    expect_fast_is_plain(p, orders, options);
  }
}

/// A segment has at least 7 frames of e^-122 each: what its sum is made of is e^-735 of what is too
/// short for it, and loses its last digits at a common scale.
TEST(Align, FastSumsDoNotHideSmallTerms) {
  Rng rng(5);
  Problem<double> p = random_problem<double>(1, 20, 18, 2, false, gaussian, rng);
  for (std::size_t i = 0; i < p.emission.size(); i += 2)
    p.emission[i] = -122.5 + 0.1 * p.emission[i];
  for (std::int64_t d = 1; d <= p.K; ++d)
    if (d < 7 || d > 9) p.duration[(d - 1) * p.C] = -kInf;
  expect_fast_is_plain(p, {chain({1, 0, 1})}, {});
}

/// A row of many segments whose frames tell their labels, and their order with some left out.
struct Spoken {
  Spoken(std::int64_t segments, Rng& rng) {
    constexpr std::int64_t kLabels = 6;
    std::vector<std::int64_t> label_of;
    std::int64_t former = -1;
    for (std::int64_t i = 0; i < segments; ++i) {
      std::int64_t label = static_cast<std::int64_t>(rng.below(kLabels));
      while (label == former) label = static_cast<std::int64_t>(rng.below(kLabels));
      former = label;
      label_of.insert(label_of.end(), 3 + rng.below(9), label);
      if (label_of.size() > 500 && label_of.size() < 520)
        label_of.insert(label_of.end(), 70, label);  // longer than K
      const auto n = static_cast<std::int32_t>(i);
      orders.nodes.push_back({static_cast<std::int32_t>(label), i == 0, i + 1 == segments, {}});
      if (i + 1 < segments) orders.nodes.back().next.push_back(n + 1);
      if (i % 5 == 0 && i + 2 < segments) orders.nodes.back().next.push_back(n + 2);
    }
    p = random_problem<double>(1, std::ssize(label_of), 15, kLabels, false, gaussian, rng);
    for (std::vector<double>* scores : {&p.emission, &p.transition, &p.duration, &p.start, &p.end})
      for (double& score : *scores) score *= 0.2;
    for (std::size_t c = 0; c < kLabels; ++c) p.transition[c * kLabels + c] -= 8;
    for (std::size_t t = 0; t < label_of.size(); ++t) {
      p.emission[t * kLabels + static_cast<std::size_t>(label_of[t])] += 10;
      if (rng.below(200) == 0)  // heard wrongly
        p.emission[t * kLabels + rng.below(kLabels)] += 12;
    }
  }
  LabelOrders orders;
  Problem<double> p;
};

/// What is left out of a long row does not show, and is neither held.
TEST(Align, FramesThatCannotMatterAreLeftOut) {
  Rng rng(6);
  for (int round = 0; round < 3; ++round) {
    const Spoken spoken(200, rng);
    AlignOptions options;
    for (int c = 0; c < 6; ++c)
      options.pieces.push_back(round == 2 ? PieceRule::kAny : PieceRule::kAfterFull);
    if (round == 0) options.pieces[1] = options.pieces[3] = PieceRule::kAny;
    expect_fast_is_plain(spoken.p, {spoken.orders}, options);
    options.most_bytes = std::int64_t{2} << 20;  // half of what all frames need
    const LabelOrders orders[] = {spoken.orders};
    EXPECT_EQ(align(Context::process_default(), spoken.p.potentials(), orders, options)[0].status,
              RowStatus::kOk);
    options.algorithm = AlignAlgorithm::kReference;
    EXPECT_THROW(align(Context::process_default(), spoken.p.potentials(), orders, options),
                 DataError);
  }
}

/// One order that has every segment sure: posteriors of 1, also where doubles of it stand in the
/// graph.
TEST(Align, OneOrderByTwoPathsCountsOnce) {
  Rng rng(3);
  const Problem<double> p = random_problem<double>(1, 4, 2, 2, false, gaussian, rng);
  LabelOrders twice = chain({0, 1});
  twice.nodes.push_back({1, false, true, {}});
  twice.nodes[0].next.push_back(2);
  const LabelOrders orders[] = {twice};
  const Alignment found = align(Context::process_default(), p.potentials(), orders).front();
  ASSERT_EQ(found.segments.size(), 2U);
  for (const AlignedSegment& s : found.segments) {
    EXPECT_DOUBLE_EQ(s.posterior, 1.0);
    EXPECT_DOUBLE_EQ(s.label_posterior, 1.0);
  }
  EXPECT_DOUBLE_EQ(found.log_partition, found.score);
  EXPECT_EQ(one_path_each(twice).nodes.size(), 2U);
}

TEST(Align, FramesOfAnOrder) {
  LabelOrders orders = chain({0, 1, 0});
  orders.nodes[0].next.push_back(2);  // the middle one may be left out
  const std::vector<std::int64_t> shortest = {2, 3};
  const std::vector<std::int64_t> longest = {5, 7};
  const FrameRange range = frames_of(orders, shortest, longest);
  EXPECT_EQ(range.fewest, 4);
  EXPECT_EQ(range.most, 17);
  const std::vector<PieceRule> pieces = {PieceRule::kOne, PieceRule::kAfterFull};
  EXPECT_EQ(frames_of(orders, shortest, longest, pieces).most, -1);
  EXPECT_EQ(frames_of({}, shortest, longest).most, 0);
}

TEST(Align, SaysWhatItCannotDo) {
  Rng rng(4);
  const Problem<double> p = random_problem<double>(1, 6, 3, 2, false, gaussian, rng);
  const auto run = [&](const LabelOrders& order, const AlignOptions& options = {}) {
    const LabelOrders orders[] = {order};
    return align(Context::process_default(), p.potentials(), orders, options).front();
  };
  EXPECT_THROW(run(chain({0, 2})), UsageError);
  LabelOrders back = chain({0, 1});
  back.nodes[1].next = {1};
  EXPECT_THROW(run(back), UsageError);
  AlignOptions little;
  little.most_bytes = 8;
  EXPECT_THROW(run(chain({0, 1}), little), DataError);
  EXPECT_EQ(run(chain({0})).status, RowStatus::kNoPath);
  EXPECT_EQ(run(chain({0, 1, 0, 1, 0, 1, 0})).status, RowStatus::kNoPath);
  EXPECT_EQ(run({}).status, RowStatus::kNoPath);
  const Problem<double> sliced = random_problem<double>(1, 6, 3, 2, true, gaussian, rng);
  const LabelOrders orders[] = {chain({0, 1})};
  EXPECT_THROW(align(Context::process_default(), sliced.potentials(), orders), UsageError);
  EXPECT_THROW(one_path_each(chain({0, 1, 0, 1}), 3), UsageError);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
