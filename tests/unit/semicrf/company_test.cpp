// What a call says of a row on the CPU depends on that row alone: not on the rows beside it, its
// place, the frames that rows are padded to, what else is requested, or the number of threads.

#include "company.h"

#include <memory>

#include "segfuse/semicrf_tools.h"

namespace segfuse::semicrf::testing {
namespace {

/// Calls by engines with different numbers of threads.
class OnThreads {
 public:
  static constexpr std::int64_t kMachines = 3;
  OnThreads() {
    for (const int threads : {1, 2, 5}) {
      engines_.emplace_back(threads);
      tools_.emplace_back(threads);
    }
  }

  template <class T>
  RowFacts loss(std::size_t machine, const Problem<T>& p, const Segmentations& gold) {
    OwnedGradients<T> g(p);
    const auto rows = static_cast<std::size_t>(p.B);
    std::vector<double> loss(rows), log_partition(rows), score(rows);
    LossResult result;
    result.loss = loss, result.log_partition = log_partition, result.score = score;
    engines_[machine].loss(p.potentials(), gold, result, g.views());
    RowFacts facts(p.B);
    for (std::int64_t b = 0; b < p.B; ++b) {
      const auto i = static_cast<std::size_t>(b);
      facts.of_row[i] = {loss[i], log_partition[i], score[i]};
      for (const std::vector<T>* frames : {&g.emission, &g.start, &g.end})
        add_frames(facts.of_row[i], *frames, p, b);
    }
    for (const std::vector<T>* shared : {&g.transition, &g.duration, &g.initial, &g.final})
      facts.shared.insert(facts.shared.end(), shared->begin(), shared->end());
    return facts;
  }

  template <class T>
  RowFacts partition(std::size_t machine, const Problem<T>& p) {
    std::vector<double> values(static_cast<std::size_t>(p.B));
    engines_[machine].log_partition<T>(p.potentials(), {values, {}});
    RowFacts facts(p.B);
    for (std::size_t b = 0; b < values.size(); ++b) facts.of_row[b] = {values[b]};
    return facts;
  }

  template <class T>
  RowFacts posteriors(std::size_t machine, const Problem<T>& p) {
    std::vector<T> label(static_cast<std::size_t>(p.B * p.T_ * p.C));
    std::vector<T> boundary(static_cast<std::size_t>(p.B * p.T_));
    std::vector<T> duration(static_cast<std::size_t>(p.B * p.K * p.C));
    std::vector<double> entropy(static_cast<std::size_t>(p.B));
    Posteriors<T> r;
    r.label = {label.data(), {p.B, p.T_, p.C}};
    r.boundary = {boundary.data(), {p.B, p.T_}};
    r.duration = {duration.data(), {p.B, p.K, p.C}};
    r.entropy = entropy;
    engines_[machine].posteriors(p.potentials(), r);
    RowFacts facts(p.B);
    for (std::int64_t b = 0; b < p.B; ++b) {
      std::vector<double>& row = facts.of_row[static_cast<std::size_t>(b)];
      row = {entropy[static_cast<std::size_t>(b)]};
      add_frames(row, label, p, b);
      for (std::int64_t i = 0; i < p.K * p.C; ++i)
        row.push_back(duration[static_cast<std::size_t>(b * p.K * p.C + i)]);
      for (std::int64_t t = 0; t < p.length(b); ++t)
        row.push_back(boundary[static_cast<std::size_t>(b * p.T_ + t)]);
    }
    return facts;
  }

  template <class T>
  RowFacts best(std::size_t machine, const Problem<T>& p) {
    Segmentations path;
    std::vector<double> score(static_cast<std::size_t>(p.B));
    engines_[machine].viterbi(p.potentials(), path, {score, {}});
    RowFacts facts(p.B);
    for (std::int64_t b = 0; b < p.B; ++b) {
      facts.of_row[static_cast<std::size_t>(b)] = {score[static_cast<std::size_t>(b)]};
      add_path(facts.of_row[static_cast<std::size_t>(b)], unpacked(path, b));
    }
    return facts;
  }

  /// Draws are keyed by the row's number: rows are drawn for one by one, each by its own.
  template <class T>
  RowFacts draws(std::size_t machine, const Arranged<T>& q) {
    RowFacts facts(q.problem.B);
    for (std::int64_t b = 0; b < q.problem.B; ++b) {
      const std::int64_t row = q.rows[static_cast<std::size_t>(b)];
      SegmentationLists drawn;
      tools_[machine].sample(q.problem.potentials(), {}, 3, 11, drawn, row - b);
      for (std::int64_t i = drawn.list_pointer[static_cast<std::size_t>(b)];
           i < drawn.list_pointer[static_cast<std::size_t>(b) + 1]; ++i) {
        facts.of_row[static_cast<std::size_t>(b)].push_back(
            drawn.score[static_cast<std::size_t>(i)]);
        add_path(facts.of_row[static_cast<std::size_t>(b)], unpacked(drawn.segmentations, i));
      }
    }
    return facts;
  }

 private:
  template <class T>
  static void add_frames(std::vector<double>& facts, const std::vector<T>& frames,
                         const Problem<T>& p, std::int64_t b) {
    for (std::int64_t i = 0; i < p.length(b) * p.C; ++i)
      facts.push_back(frames[static_cast<std::size_t>(b * p.T_ * p.C + i)]);
  }
  std::vector<Engine> engines_;
  std::vector<Inference> tools_;
};

template <class T>
void expect_rows_alone(const Problem<T>& p, const Company& company = {}) {
  OnThreads on;
  Rng rng(7);
  const Segmentations gold = random_gold(p, rng);
  const auto expect = [&](const char* what, const auto& compute) {
    expect_company_does_not_show<T>(what, p, company, OnThreads::kMachines, compute);
  };
  expect("loss", [&](const Arranged<T>& q, std::size_t machine) {
    return on.loss(machine, q.problem, rows_of(gold, q.rows));
  });
  const RowFacts alone = on.partition(1, p);
  const RowFacts beside = on.loss(0, p, gold);
  for (std::size_t b = 0; b < alone.of_row.size(); ++b)
    ASSERT_EQ(alone.of_row[b][0], beside.of_row[b][1]) << "row " << b;
  expect("posteriors", [&](const Arranged<T>& q, std::size_t machine) {
    return on.posteriors(machine, q.problem);
  });
  expect("best",
         [&](const Arranged<T>& q, std::size_t machine) { return on.best(machine, q.problem); });
}

TEST(Company, ShortRowsDoNotKnowTheirs) {
  Rng rng(71);
  for (const bool by_duration : {false, true}) {
    for (const Draw& draw : all_draws()) {
      auto p = random_problem<double>(7, 60, 6, 5, by_duration, draw, rng);
      p.lengths = {60, 41, 7, 1, 0, 59, 33};
      expect_rows_alone(p);
      if (HasFatalFailure()) return;
    }
  }
}

/// Rows long enough to be cut, beside rows that are not, in and out of the linear domain.
TEST(Company, LongRowsDoNotKnowTheirs) {
  Rng rng(72);
  for (const Draw& draw : {Draw(gaussian), Draw(wide), Draw(ties)}) {
    auto p = random_problem<float>(4, 12500, 9, 3, false, draw, rng);
    p.lengths = {8300, 12500, 8100, 300};
    expect_rows_alone(p, {.pads = {4000}});
    if (HasFatalFailure()) return;
  }
  // Parts that do not come to agree: labels that hardly follow each other.
  auto p =
      random_problem<double>(2, 9000, 6, 3, false, [](Rng& r) { return 0.1 * r.normal(); }, rng);
  for (std::size_t i = 0; i < 9; ++i)
    if (i % 4 != 0) p.transition[i] -= 40.0;
  expect_rows_alone(p, {.pads = {100}});
}

TEST(Company, DrawsDoNotKnowTheirs) {
  Rng rng(73);
  auto p = random_problem<double>(5, 40, 4, 3, false, gaussian, rng);
  p.lengths = {40, 0, 1, 33, 17};
  OnThreads on;
  expect_company_does_not_show<double>(
      "draws", p, {}, OnThreads::kMachines,
      [&](const Arranged<double>& q, std::size_t machine) { return on.draws(machine, q); });
}

}  // namespace
}  // namespace segfuse::semicrf::testing
