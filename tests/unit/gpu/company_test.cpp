// What a call says of a row depends on that row alone: not on the rows beside it, its place, the
// frames that rows are padded to, what else is requested, or the number of multiprocessors.

#include <numeric>

#include "support/emulator/gpu_emulator.h"
#include "unit/gpu/gpu_test.h"
#include "unit/semicrf/company.h"

namespace segfuse::semicrf::testing {
namespace {

template <class T>
void append(std::vector<double>& facts, const std::vector<T>& values, std::int64_t begin,
            std::int64_t n) {
  for (std::int64_t i = begin; i < begin + n; ++i)
    facts.push_back(static_cast<double>(values[static_cast<std::size_t>(i)]));
}

/// Calls on one device; company.h has what it is asked.
struct OnDevice {
  runtime::DeviceAccess gpu;
  CudaOptions options;

  template <class T>
  RowFacts loss(const Problem<T>& p, const Segmentations& gold) const {
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
    const Results r = device_loss(gpu, engine, p, gold, {});
    const std::int64_t cells = p.B * p.T_ * p.C;
    const std::int64_t shared = p.slices() * p.C * p.C + p.K * p.C + 2 * p.C;
    RowFacts facts(p.B);
    for (std::int64_t b = 0; b < p.B; ++b) {
      const auto i = static_cast<std::size_t>(b);
      facts.of_row[i] = {r.loss[i], r.log_partition[i], r.score[i]};
      for (const std::int64_t from : {std::int64_t{0}, cells + shared, 2 * cells + shared})
        append(facts.of_row[i], r.gradients, from + b * p.T_ * p.C, p.length(b) * p.C);
    }
    append(facts.shared, r.gradients, cells, shared);
    return facts;
  }

  template <class T>
  RowFacts partition(const Problem<T>& p) const {
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
    DeviceArrays device(gpu);
    const View<double, 1> out(device.space<double>(p.B), {p.B});
    engine.log_partition<T>(on_device(p, device), {out, {}});
    engine.check();
    RowFacts facts(p.B);
    const std::vector<double> values = device.read(out.data(), p.B);
    for (std::size_t b = 0; b < values.size(); ++b) facts.of_row[b] = {values[b]};
    return facts;
  }

  template <class T>
  RowFacts posteriors(const Problem<T>& p) const {
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
    DeviceArrays device(gpu);
    const std::int64_t cells = p.B * p.T_ * p.C;
    const std::array<std::int64_t, 3> frames{p.B, p.T_, p.C};
    Posteriors<T> r;
    r.label = {device.space<T>(cells), frames};
    r.boundary = {device.space<T>(p.B * p.T_), {p.B, p.T_}};
    r.duration = {device.space<T>(p.B * p.K * p.C), {p.B, p.K, p.C}};
    r.entropy = {device.space<double>(p.B), {p.B}};
    r.log_partition = {device.space<double>(p.B), {p.B}};
    engine.posteriors(on_device(p, device), r);
    engine.check();
    const auto label = device.read(r.label.data(), cells);
    const auto boundary = device.read(r.boundary.data(), p.B * p.T_);
    const auto duration = device.read(r.duration.data(), p.B * p.K * p.C);
    const auto entropy = device.read(r.entropy.data(), p.B);
    const auto log_partition = device.read(r.log_partition.data(), p.B);
    RowFacts facts(p.B);
    for (std::int64_t b = 0; b < p.B; ++b) {
      std::vector<double>& row = facts.of_row[static_cast<std::size_t>(b)];
      append(row, log_partition, b, 1);
      append(row, entropy, b, 1);
      append(row, duration, b * p.K * p.C, p.K * p.C);
      append(row, boundary, b * p.T_, p.length(b));
      append(row, label, b * p.T_ * p.C, p.length(b) * p.C);
    }
    return facts;
  }

  /// Draws are keyed by the row's number: `rows` has those of p's.
  template <class T>
  RowFacts draws(const Arranged<T>& q) const {
    CudaInference inference = OverDevice::make<CudaInference>(gpu, options);
    constexpr std::int64_t kDraws = 3;
    const Problem<T>& p = q.problem;
    RowFacts facts(p.B);
    for (std::int64_t b = 0; b < p.B; ++b) {
      DeviceArrays device(gpu);
      const DeviceSegmentationLists out = lists_in(device, p.B, kDraws, kDraws * p.B * p.T_);
      inference.sample(on_device(p, device), {}, kDraws, 11, out,
                       q.rows[static_cast<std::size_t>(b)] - b);
      inference.check();
      const SegmentationLists drawn = fetched(out, device);
      std::vector<double>& row = facts.of_row[static_cast<std::size_t>(b)];
      for (std::int64_t i = b * kDraws; i < (b + 1) * kDraws; ++i) {
        row.push_back(drawn.score[static_cast<std::size_t>(i)]);
        add_path(row, unpacked(drawn.segmentations, i));
      }
    }
    return facts;
  }

  template <class T>
  RowFacts best(const Problem<T>& p) const {
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
    return best_facts(device_best(gpu, engine, p));
  }
  static RowFacts best_facts(const BestPaths& found) {
    RowFacts facts(found.path.rows());
    for (std::int64_t b = 0; b < found.path.rows(); ++b) {
      facts.of_row[b] = {found.score[static_cast<std::size_t>(b)]};
      add_path(facts.of_row[b], unpacked(found.path, b));
    }
    return facts;
  }
};

/// The device of the test, or emulators with several numbers of multiprocessors.
std::vector<runtime::DeviceAccess> machines(const runtime::DeviceAccess& gpu, bool is_device) {
  if (is_device) return {gpu};
  return {gpu, segfuse::testing::make_gpu_emulator(40)};
}

/// What is asked of the device.
struct Asked {
  bool loss = true;  ///< and the log-partition alone, which is that beside gradients
  bool posteriors = true;
  bool best = true;
};

template <class T>
void expect_rows_alone(const std::vector<runtime::DeviceAccess>& devices,
                       const CudaOptions& options, const Problem<T>& p, const Company& company = {},
                       const Asked& asked = {}) {
  Rng rng(7);
  const Segmentations gold = random_gold(p, rng);
  const auto on = [&](std::size_t machine) { return OnDevice{devices[machine], options}; };
  const auto expect = [&](const char* what, const auto& compute) {
    expect_company_does_not_show<T>(what, p, company, std::ssize(devices), compute);
  };
  if (asked.loss) {
    expect("loss", [&](const Arranged<T>& q, std::size_t machine) {
      return on(machine).loss(q.problem, rows_of(gold, q.rows));
    });
    const RowFacts alone = on(0).partition(p);
    const RowFacts beside = on(0).loss(p, gold);
    for (std::size_t b = 0; b < alone.of_row.size(); ++b)
      ASSERT_EQ(alone.of_row[b][0], beside.of_row[b][1]) << "row " << b;
  }
  if (asked.posteriors)
    expect("posteriors", [&](const Arranged<T>& q, std::size_t machine) {
      return on(machine).posteriors(q.problem);
    });
  if (asked.best)
    expect("best",
           [&](const Arranged<T>& q, std::size_t machine) { return on(machine).best(q.problem); });
}

CudaOptions with_warm_up(std::int64_t warm_up) {
  CudaOptions options;
  options.warm_up = warm_up;
  return options;
}

TEST_P(GpuSemiCrf, RowsCutInTimeDoNotKnowTheirCompany) {
  Rng rng(61);
  for (const Draw& draw : {Draw(gaussian), Draw(holes)}) {
    auto p = random_problem<double>(4, 130, 4, 3, false, draw, rng);
    p.lengths = {130, 97, 1, 0};
    expect_rows_alone(machines(gpu, is_device()), with_warm_up(12), p, {.pads = {300}});
    if (HasFatalFailure()) return;
  }
  auto p = random_problem<float>(2, 520, 4, 3, false, gaussian, rng);
  p.lengths = {520, 255};
  expect_rows_alone({gpu}, {}, p, {.pads = {260}}, {.best = false});
}

/// Chunks that do not fit together: rows of slowly mixing labels are done again.
TEST_P(GpuSemiCrf, RowsDoneAgainDoNotKnowTheirCompany) {
  Rng rng(62);
  auto p =
      random_problem<double>(2, 120, 4, 3, false, [](Rng& r) { return 0.3 * r.normal(); }, rng);
  p.lengths = {120, 75};
  for (std::int64_t i = 0; i < 9; ++i)
    if (i % 4 != 0) p.transition[static_cast<std::size_t>(i)] -= 10.0;
  expect_rows_alone({gpu}, with_warm_up(4), p, {.pads = {50}});
}

TEST_P(GpuSemiCrf, RowsOfOtherPassesDoNotKnowTheirCompany) {
#ifdef __SANITIZE_ADDRESS__
  if (!is_device()) GTEST_SKIP() << "too long for the emulator under a sanitizer";
#endif
  Rng rng(63);
  CudaOptions plain;
  plain.algorithm = Algorithm::kReference;
  auto p = random_problem<double>(2, 70, 3, 2, false, wide, rng);
  p.lengths = {70, 33};
  expect_rows_alone({gpu}, plain, p, {.pads = {60}});
  CudaOptions teams;
  teams.lanes_per_class = 32;  // do not fit beside each other
  auto q = random_problem<double>(2, 9, 8, 33, false, gaussian, rng);
  q.lengths = {5, 9};
  expect_rows_alone(machines(gpu, is_device()), teams, q, {.pads = {60}});
  CudaOptions cut_teams = with_warm_up(4);
  cut_teams.lanes_per_class = 1024;
  auto cut = random_problem<double>(3, 60, 4, 3, false, gaussian, rng);
  cut.lengths = {60, 37, 1};
  expect_rows_alone(machines(gpu, is_device()), cut_teams, cut, {.pads = {90}});
  auto r = random_problem<double>(2, 70, 3, 2, true, gaussian, rng);
  r.lengths = {70, 21};
  expect_rows_alone(machines(gpu, is_device()), {}, r, {.pads = {60}});
  CudaOptions alone;
  alone.teams = false;
  expect_rows_alone({gpu}, alone, r, {.pads = {}}, {.best = false});
}

TEST_P(GpuSemiCrf, DrawsDoNotKnowTheirCompany) {
  Rng rng(66);
  auto p = random_problem<double>(3, 40, 4, 3, false, gaussian, rng);
  p.lengths = {40, 1, 33};
  const auto all = machines(gpu, is_device());
  expect_company_does_not_show<double>("draws", p, {}, std::ssize(all),
                                       [&](const Arranged<double>& q, std::size_t machine) {
                                         return OnDevice{all[machine], {}}.draws(q);
                                       });
}

/// More rows than there are partial sums for; rows far shorter than what they are padded to.
TEST_P(GpuSemiCrf, RowsOfLargeBatchesDoNotKnowTheirCompany) {
  Rng rng(64);
  const auto p = random_problem<float>(60, 640, 2, 1, false, gaussian, rng);
  expect_rows_alone({gpu}, with_warm_up(320), p, {.alone = {0, 59}, .pads = {}, .others = false},
                    {.loss = false, .best = false});
  const auto q = random_problem<double>(1, 2100, 2, 2, false, gaussian, rng);
  expect_rows_alone({gpu}, {}, q, {.pads = {17000}, .others = false});
  // Partial sums that are more than a row asks for slots of its own.
  const auto r = random_problem<double>(1, 260, 44, 5, true, gaussian, rng);
  expect_rows_alone({gpu}, {}, r, {.pads = {300}, .others = false}, {.loss = false, .best = false});
}

/// Teams that need more shared memory the fewer their members are.
TEST_P(GpuSemiCrf, TeamsOfAnySizeGiveTheSameBits) {
  if (is_device()) GTEST_SKIP() << "a device has as many multiprocessors as it has";
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "too long for the emulator under a sanitizer";
#endif
  Rng rng(65);
  const auto p = random_problem<double>(1, 3, 180, 64, true, gaussian, rng);
  const Segmentations gold = random_gold(p, rng);
  const auto loss = [&](int multiprocessors) {
    const auto emulator = segfuse::testing::make_gpu_emulator(multiprocessors);
    return OnDevice{emulator, {}}.loss(p, gold);
  };
  const RowFacts one = loss(1);
  EXPECT_EQ(loss(40).of_row, one.of_row);
  auto q = random_problem<double>(1, 3, 2, 2800, false, gaussian, rng);
  q.with_start = q.with_end = false;
  const auto partition = [&](int multiprocessors) {
    const auto emulator = segfuse::testing::make_gpu_emulator(multiprocessors);
    return OnDevice{emulator, {}}.partition(q);
  };
  EXPECT_EQ(partition(40).of_row, partition(1).of_row);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
