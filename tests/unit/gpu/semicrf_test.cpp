// The CUDA engine against the CPU's plain recursion: on the emulator everywhere, and on a CUDA
// device where there is one.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "segfuse/error.h"
#include "unit/gpu/gpu_test.h"

namespace segfuse::semicrf::testing {
namespace {

CudaOptions options_of(int lanes) {
  CudaOptions options;
  options.lanes_per_class = lanes;
  return options;
}

INSTANTIATE_TEST_SUITE_P(Devices, GpuSemiCrf, ::testing::Values("emulator", "cuda"),
                         [](const auto& suite) { return std::string(suite.param); });

TEST_P(GpuSemiCrf, LossAndGradientsAreThoseOfThePlainRecursion) {
  Rng rng(11);
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
  for (const Draw& draw : all_draws()) {
    for (int round = 0; round < 12; ++round) {
      const auto B = static_cast<std::int64_t>(1 + rng.below(3));
      const auto frames = static_cast<std::int64_t>(1 + rng.below(9));
      const auto K = static_cast<std::int64_t>(1 + rng.below(4));
      const auto C = static_cast<std::int64_t>(1 + rng.below(3));
      Problem<double> p = random_problem<double>(B, frames, K, C, false, draw, rng);
      p.with_start = rng.below(2) == 0;
      p.with_end = rng.below(2) == 0;
      p.with_initial = rng.below(2) == 0;
      p.with_final = rng.below(2) == 0;
      std::vector<double> weights;
      for (std::int64_t b = 0; b < B; ++b) {
        if (round % 2 == 0)
          p.lengths.push_back(
              static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(frames) + 1)));
        if (round % 3 == 0) weights.push_back(rng.normal());
      }
      SCOPED_TRACE(::testing::Message() << "B " << B << " T " << frames << " K " << K << " C " << C
                                        << " round " << round);
      const Segmentations gold = random_gold(p, rng);
      expect_same(device_loss(gpu, engine, p, gold, weights),
                  host_loss(p, gold, weights, Algorithm::kReference), rounding(p), 40.0);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(GpuSemiCrf, EveryLayoutOfAPassAgrees) {
  Rng rng(12);
  const Problem<double> p = random_problem<double>(2, 37, 4, 3, false, gaussian, rng);
  const Segmentations gold = random_gold(p, rng);
  const Results expected = host_loss(p, gold, {}, Algorithm::kReference);
  for (const int lanes : {1, 2, 4}) {
    SCOPED_TRACE(::testing::Message() << lanes << " lanes");
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options_of(lanes));
    expect_same(device_loss(gpu, engine, p, gold, {}), expected, 1e-11, 1.0);
  }
  SCOPED_TRACE("log domain");
  CudaOptions plain;
  plain.algorithm = Algorithm::kReference;
  CudaEngine exact = OverDevice::make<CudaEngine>(gpu, plain);
  expect_same(device_loss(gpu, exact, p, gold, {}), expected, 1e-11, 1.0);
}

/// All posteriors but the log-partition, in one list each.
template <class Space>
Posteriors<double> all_posteriors(const Problem<double>& p, Space space) {
  const std::array<std::int64_t, 3> frames{p.B, p.T_, p.C};
  const std::int64_t cells = p.B * p.T_ * p.C;
  Posteriors<double> r;
  r.label = {space(cells), frames};
  r.start = {space(cells), frames};
  r.end = {space(cells), frames};
  r.boundary = {space(p.B * p.T_), {p.B, p.T_}};
  r.duration = {space(p.B * p.K * p.C), {p.B, p.K, p.C}};
  r.entropy = {space(p.B), {p.B}};
  return r;
}

TEST_P(GpuSemiCrf, PosteriorsAreTheCpus) {
  Rng rng(14);
  for (const Draw& draw : all_draws()) {
    for (const bool by_duration : {false, true}) {
      // The last row has several slices of time.
      Problem<double> p =
          random_problem<double>(3, by_duration ? 9 : 150, 3, 2, by_duration, draw, rng);
      p.lengths = {9, 0, p.T_};
      DeviceArrays device(gpu);
      std::vector<std::pair<double*, std::int64_t>> arrays;
      const Posteriors<double> r = all_posteriors(p, [&](std::int64_t n) {
        arrays.emplace_back(device.space<double>(n), n);
        return arrays.back().first;
      });
      CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
      engine.posteriors(on_device(p, device), r);
      engine.check();
      std::vector<std::vector<double>> expected;
      const Posteriors<double> host = all_posteriors(p, [&](std::int64_t n) {
        return expected.emplace_back(static_cast<std::size_t>(n)).data();
      });
      Engine(1).posteriors(p.potentials(), host);
      for (std::size_t i = 0; i < arrays.size(); ++i) {
        const std::vector<double> mine = device.read(arrays[i].first, arrays[i].second);
        // An entropy is the difference of two sums over the row.
        const double tolerance = (i == 5 ? 400 : 40) * rounding(p);
        for (std::size_t j = 0; j < mine.size(); ++j)
          ASSERT_NEAR(mine[j], expected[i][j], tolerance) << "output " << i << ", element " << j;
      }
    }
  }
}

/// Each of the two that are sums over a row alone.
TEST_P(GpuSemiCrf, DurationsAndEntropyAlone) {
  Rng rng(20);
  for (const bool by_duration : {false, true}) {
    const Problem<double> p = random_problem<double>(2, 20, 3, 2, by_duration, gaussian, rng);
    DeviceArrays device(gpu);
    std::vector<double> duration(2 * 3 * 2), entropy(2);
    Posteriors<double> host;
    host.duration = {duration.data(), {2, 3, 2}};
    host.entropy = entropy;
    Engine(1).posteriors(p.potentials(), host);
    Posteriors<double> first, second;
    first.duration = {device.space<double>(12), {2, 3, 2}};
    second.entropy = {device.space<double>(2), {2}};
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
    engine.posteriors(on_device(p, device), first);
    engine.posteriors(on_device(p, device), second);
    engine.check();
    const std::vector<double> d = device.read(first.duration.data(), 12);
    for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(d[i], duration[i], 1e-11);
    const std::vector<double> h = device.read(second.entropy.data(), 2);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(h[i], entropy[i], 1e-11);
  }
}

/// Ties in long rows of small whole numbers: the CPU's choice, in every layout.
TEST_P(GpuSemiCrf, TiesAreBrokenAsOnTheCpu) {
  Rng rng(24);
  for (int round = 0; round < 12; ++round) {
    CudaOptions options;
    options.algorithm = round % 2 == 0 ? Algorithm::kFast : Algorithm::kReference;
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
    const Problem<double> p = random_problem<double>(2, 60, 4, 1 + round % 3, false, ties, rng);
    ASSERT_EQ(device_best(gpu, engine, p).path, host_best(p).path);
  }
}

TEST_P(GpuSemiCrf, BestPathIsTheCpus) {
  Rng rng(15);
  for (const Draw& draw : all_draws()) {
    for (int round = 0; round < 8; ++round) {
      CudaOptions options;  // in registers, or with state in memory and any size
      options.algorithm = round % 2 == 0 ? Algorithm::kFast : Algorithm::kReference;
      CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
      const auto K = static_cast<std::int64_t>(1 + rng.below(round % 2 == 0 ? 4 : 5));
      const auto C = static_cast<std::int64_t>(1 + rng.below(round % 2 == 0 ? 3 : 11));
      Problem<double> p = random_problem<double>(3, 11, K, C, false, draw, rng);
      p.lengths = {static_cast<std::int64_t>(rng.below(12)), 11, 0};
      p.with_start = rng.below(2) == 0;
      const BestPaths mine = device_best(gpu, engine, p);
      const BestPaths host = host_best(p);
      ASSERT_EQ(mine.path, host.path);
      ASSERT_EQ(mine.status, host.status);
      for (std::size_t b = 0; b < 3; ++b)
        ASSERT_LT(relative(mine.score[b], host.score[b]), rounding(p));
    }
  }
}

/// Chunks from a short warm-up on must give what one pass gives, whether they fit or are redone.
TEST_P(GpuSemiCrf, ChunksInTimeGiveTheWholePass) {
  struct Case {
    std::string name;
    double scale;        ///< of emissions
    double sticky;       ///< added to transitions to other labels
    std::int64_t least;  ///< shorter durations are forbidden
  };
  Rng rng(17);
  for (const Case& c : {Case{"mixing", 1.0, 0.0, 0}, Case{"sharp", 5.0, 0.0, 0},
                        Case{"sticky", 0.3, -10.0, 0}, Case{"long", 0.3, 0.0, 4}}) {
    SCOPED_TRACE(c.name);
    Problem<double> p = random_problem<double>(2, 210, 4, 3, false, gaussian, rng);
    p.lengths = {210, 173};
    for (double& e : p.emission) e *= c.scale;
    for (std::int64_t i = 0; i < 9; ++i)
      if (i % 4 != 0) p.transition[static_cast<std::size_t>(i)] += c.sticky;
    for (std::int64_t k = 1; k < c.least; ++k)
      for (std::int64_t y = 0; y < 3; ++y)
        p.duration[static_cast<std::size_t>((k - 1) * 3 + y)] = -kInf;
    if (c.least == 4) p.lengths = {208, 172};
    Segmentations gold;
    for (const std::int64_t length : p.lengths) {
      for (std::int64_t t = 0; t < length; t += 4)
        gold.append(t, std::min<std::int64_t>(4, length - t), t / 4 % 3);
      gold.end_row();
    }
    CudaOptions options;
    options.chunked = false;
    CudaEngine whole = OverDevice::make<CudaEngine>(gpu, options);
    const Results expected = device_loss(gpu, whole, p, gold, {});
    for (const std::int64_t warm_up : {4, 12, 32}) {
      SCOPED_TRACE(::testing::Message() << "warm-up " << warm_up);
      options.chunked = true;
      options.warm_up = warm_up;
      CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
      expect_same(device_loss(gpu, engine, p, gold, {}), expected, 1e-10, 1.0);
      if (HasFatalFailure()) return;
    }
  }
}

/// A row that a warm-up does not settle is cut again with one four times as long. So it has the
/// bits of that one; a row beside it that settles at once keeps its own.
TEST_P(GpuSemiCrf, RowsThatSettleLateGetALongerWarmUp) {
  Rng rng(53);
  constexpr std::int64_t kFrames = 330;
  Problem<double> p = random_problem<double>(2, kFrames, 8, 2, false, gaussian, rng);
  p.with_start = p.with_end = false;
  // Durations near four frames: where a pass began is remembered over many of them.
  for (std::int64_t k = 1; k <= 8; ++k) {
    const double away = std::log(static_cast<double>(k) / 4.0) / 0.5;
    for (std::int64_t y = 0; y < 2; ++y)
      p.duration[static_cast<std::size_t>((k - 1) * 2 + y)] = -0.5 * away * away;
  }
  // Frames of the second row tell its segments.
  for (std::size_t i = 0; i < p.emission.size(); ++i) {
    const std::size_t frame = i / 2;
    const std::size_t t = frame % kFrames;
    const bool told = (t / 4 + t / 12) % 2 == i % 2;
    p.emission[i] = frame < kFrames ? 0.1 * p.emission[i] : (told ? 30.0 : 0.0);
  }
  const Segmentations gold = random_gold(p, rng);
  const auto frames = [&](const Results& of, std::int64_t row) {
    const auto begin = of.gradients.begin() + row * kFrames * 2;
    return std::vector<double>(begin, begin + kFrames * 2);
  };
  for (const bool team : {false, true}) {
    SCOPED_TRACE(team ? "team" : "registers");
    const auto with = [&](std::int64_t warm_up) {
      CudaOptions options;
      options.lanes_per_class = team ? 1024 : 4;
      options.chunked = warm_up > 0;
      options.warm_up = warm_up;
      CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
      return device_loss(gpu, engine, p, gold, {});
    };
    const Results two_rounds = with(16);
    const Results longer = with(64);
    const Results whole = with(0);
    expect_same(two_rounds, whole, 1e-10, 1.0);
    EXPECT_EQ(frames(two_rounds, 0), frames(longer, 0));
    EXPECT_NE(frames(two_rounds, 0), frames(whole, 0));
    EXPECT_NE(frames(two_rounds, 1), frames(longer, 1));
  }
}

/// The sentence of the DataError that check() throws.
std::string fault_of(const runtime::DeviceAccess& gpu, const Problem<double>& p,
                     const Segmentations& gold) {
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
  try {
    device_loss(gpu, engine, p, gold, {});
  } catch (const DataError& error) {
    engine.check();  // told once
    return error.what();
  }
  return "no error";
}

TEST_P(GpuSemiCrf, FaultsAreTold) {
  Rng rng(16);
  const Problem<double> good = random_problem<double>(2, 5, 3, 2, false, gaussian, rng);
  const Segmentations gold = random_gold(good, rng);
  EXPECT_EQ(fault_of(gpu, good, gold), "no error");
  Problem<double> bad = good;
  bad.emission[(1 * 5 + 3) * 2 + 1] = kNaN;
  EXPECT_EQ(
      fault_of(gpu, bad, gold),
      "semicrf: emission at batch 1, time 3, class 1 is NaN or +inf; scores are finite or -inf");
  bad.lengths = {5, 3};
  EXPECT_NE(fault_of(gpu, bad, gold).find("gold segment"), std::string::npos);
  bad = good;
  bad.transition[3] = kInf;
  EXPECT_EQ(fault_of(gpu, bad, gold),
            "semicrf: transition[0, 1, 1] is NaN or +inf; scores are finite or -inf");
  bad = good;
  bad.lengths = {5, 6};
  EXPECT_EQ(fault_of(gpu, bad, gold),
            "semicrf: the length of batch 1 is not in [0, 5], the frames of emission");
  Segmentations wrong = gold;
  wrong.label[1] = 2;
  EXPECT_EQ(
      fault_of(gpu, good, wrong),
      "semicrf: gold segment 1 does not fit: segments tile their row in order, with durations "
      "in [1, 3] and labels in [0, 2)");
}

struct Shape {
  std::int64_t B, T, K, C;
  int lanes;  ///< 0: chosen
  bool edges;
};

TEST_P(GpuSemiCrf, AwkwardSizes) {
  // The emulator has the passes of two shapes; everything else goes through the log domain there.
  std::vector<Shape> shapes = {{2, 70, 8, 33, 2, true}, {1, 150, 6, 39, 2, false}};
  if (is_device())
    for (const std::int64_t C : {1, 3, 24, 31, 32, 33, 39, 64, 65, 130, 200})
      for (const std::int64_t K : {1, 7, 40}) shapes.push_back({3, 150, K, C, 0, C % 2 == 0});
  Rng rng(13);
  for (const Shape& c : shapes) {
    SCOPED_TRACE(::testing::Message() << c.C << " classes, K " << c.K);
    Problem<float> p = random_problem<float>(c.B, c.T, c.K, c.C, false, gaussian, rng);
    p.with_start = p.with_end = c.edges;
    if (c.B == 3) p.lengths = {150, 97, 32};
    const Segmentations gold = random_gold(p, rng);
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options_of(c.lanes));
    // Counts of shared scores are stored as floats.
    expect_same(device_loss(gpu, engine, p, gold, {}), host_loss(p, gold, {}, Algorithm::kFast),
                4e-6, 2.0);
  }
}

/// The same bits in every run, and of a row in every company.
TEST_P(GpuSemiCrf, BitsAreTheSame) {
  Rng rng(18);
  const std::int64_t frames = is_device() ? 1500 : 90;
  Problem<float> p = random_problem<float>(3, frames, 4, 3, false, gaussian, rng);
  p.lengths = {frames, frames - 17, frames / 2};
  const Segmentations gold = random_gold(p, rng);
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
  const Results first = device_loss(gpu, engine, p, gold, {});
  for (int run = 0; run < (is_device() ? 20 : 2); ++run) {
    const Results again = device_loss(gpu, engine, p, gold, {});
    ASSERT_EQ(again.loss, first.loss);
    ASSERT_EQ(again.gradients, first.gradients);
  }
  Problem<float> turned = p;
  std::rotate(turned.lengths.begin(), turned.lengths.begin() + 1, turned.lengths.end());
  const std::int64_t cells = frames * p.C;
  for (std::vector<float>* v : {&turned.emission, &turned.start, &turned.end})
    std::rotate(v->begin(), v->begin() + cells, v->end());
  Segmentations turned_gold;
  for (const std::int64_t b : {1, 2, 0}) {
    for (const Piece& s : unpacked(gold, b)) turned_gold.append(s.start, s.duration, s.label);
    turned_gold.end_row();
  }
  const Results other = device_loss(gpu, engine, turned, turned_gold, {});
  for (std::int64_t b = 0; b < 3; ++b) {
    ASSERT_EQ(other.loss[b], first.loss[(b + 1) % 3]);
    for (std::int64_t i = 0; i < cells; ++i)
      ASSERT_EQ(other.gradients[b * cells + i], first.gradients[(b + 1) % 3 * cells + i]);
  }
}

/// Design 5.4 at T = 1e5, K = 100 with scores N(0, 1) and N(0, 10): fp32 inputs, against double.
/// A grid has at most 65,535 blocks but in one direction.
TEST_P(GpuSemiCrf, MoreChunksThanAGridIsWide) {
  if (!is_device()) GTEST_SKIP() << "too long for the emulator";
  Rng rng(20);
  Problem<double> p = random_problem<double>(1, 8 * 65600, 1, 1, false, gaussian, rng);
  p.with_start = p.with_end = false;
  CudaOptions options;
  options.warm_up = 4;  // chunks of eight frames
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
  DeviceArrays device(gpu);
  const Potentials<double> scores = on_device(p, device);
  const View<double, 1> values(device.space<double>(1), {1});
  engine.log_partition<double>(scores, {values, {}});
  engine.check();
  std::vector<double> host(1);
  Engine(1).log_partition<double>(p.potentials(), {View<double, 1>(host), {}});
  EXPECT_LT(relative(device.read(values.data(), 1)[0], host[0]), 1e-12);
}

TEST_P(GpuSemiCrf, LongRows) {
  if (!is_device()) GTEST_SKIP() << "too long for the emulator";
  Rng rng(19);
  for (const Draw& draw : {Draw(gaussian), Draw(wide)}) {
    Problem<float> p = random_problem<float>(1, 100000, 100, 24, false, draw, rng);
    p.with_start = p.with_end = false;
    const Segmentations gold = random_gold(p, rng);
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
    const Results mine = device_loss(gpu, engine, p, gold, {});
    const Results host = host_loss(p, gold, {}, Algorithm::kFast);
    EXPECT_LT(relative(mine.log_partition[0], host.log_partition[0]), 1e-12);
    double worst = 0;
    for (std::int64_t i = 0; i < p.T_ * p.C; ++i)
      worst = std::max(worst, std::abs(mine.gradients[i] - host.gradients[i]));
    EXPECT_LT(worst, 1e-6);
  }
}

}  // namespace
}  // namespace segfuse::semicrf::testing
