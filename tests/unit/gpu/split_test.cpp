// One row over several devices: the bits of one device, whatever the row is and however many.

#include <gmock/gmock.h>

#include "support/message_of.h"
#include "unit/gpu/gpu_test.h"

namespace segfuse::semicrf::testing {
namespace {

using test::message_of;

/// What is wanted of a call.
struct Wanted {
  bool frames = true;
  bool shared = true;
  bool ends = true;
};

struct RowResult {
  double log_partition = 0.0;
  RowStatus status = RowStatus::kOk;
  bool split = false;
  std::vector<double> gradients;  ///< frames, then shared, then ends
};
bool operator==(const RowResult& a, const RowResult& b) {
  return a.log_partition == b.log_partition && a.status == b.status && a.gradients == b.gradients;
}

template <class T>
std::vector<T> frames_of(const std::vector<T>& row, const FrameSpan& span, std::int64_t classes) {
  return {row.begin() + span.begin * classes, row.begin() + span.end * classes};
}

/// What a device holds of a row.
template <class T>
Potentials<T> part_of(const Problem<T>& p, const FrameSpan& reads, DeviceArrays& device) {
  Potentials<T> part;
  const std::array<std::int64_t, 3> read{1, reads.end - reads.begin, p.C};
  part.emission = {device.copy(frames_of(p.emission, reads, p.C)), read};
  if (p.with_start) part.start = {device.copy(frames_of(p.start, reads, p.C)), read};
  if (p.with_end) part.end = {device.copy(frames_of(p.end, reads, p.C)), read};
  part.transition = {device.copy(p.transition), {p.slices(), p.C, p.C}};
  part.duration = {device.copy(p.duration), {p.K, p.C}};
  if (p.with_initial) part.initial = {device.copy(p.initial), {p.C}};
  if (p.with_final) part.final = {device.copy(p.final), {p.C}};
  return part;
}

/// A call over these devices; one device: a CudaEngine on it.
template <class T>
RowResult partition_over(const std::vector<runtime::DeviceAccess>& gpus, const CudaOptions& options,
                         const Problem<T>& p, const Wanted& wanted,
                         std::vector<SplitCudaEngine::Share>* shares = nullptr) {
  const bool edges = p.with_start || p.with_end;
  const RowShape shape{p.T_, p.C, p.K, edges};
  SplitCudaEngine engine = OverDevice::split(gpus, options);
  const std::vector<SplitCudaEngine::Share> held = engine.shares(shape);
  if (shares != nullptr) *shares = held;
  std::vector<std::unique_ptr<DeviceArrays>> arrays;
  std::vector<Potentials<T>> parts;
  std::vector<Gradients<T>> gradients;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    DeviceArrays& device = *arrays.emplace_back(std::make_unique<DeviceArrays>(gpus[i]));
    parts.push_back(part_of(p, held[i].reads, device));
    const std::int64_t own = held[i].writes.end - held[i].writes.begin;
    const std::array<std::int64_t, 3> written{1, own, p.C};
    Gradients<T> out;
    if (wanted.frames) {
      out.emission = {device.space<T>(own * p.C), written};
      out.start = {device.space<T>(own * p.C), written};
      out.end = {device.space<T>(own * p.C), written};
    }
    if (wanted.shared && i == 0) {
      out.transition = {device.space<T>(p.C * p.C), {1, p.C, p.C}};
      out.duration = {device.space<T>(p.K * p.C), {p.K, p.C}};
    }
    if (wanted.ends && i == 0) {
      out.initial = {device.space<T>(p.C), {p.C}};
      out.final = {device.space<T>(p.C), {p.C}};
    }
    gradients.push_back(out);
  }
  RowResult result;
  const bool any = wanted.frames || wanted.shared || wanted.ends;
  const auto found = engine.log_partition<T>(shape, parts, any ? gradients : decltype(gradients){});
  result.log_partition = found.log_partition;
  result.status = found.status;
  result.split = found.split;
  const auto add = [&](std::size_t i, const T* from, std::int64_t n) {
    if (from == nullptr) return;
    for (const T x : arrays[i]->read(from, n)) result.gradients.push_back(static_cast<double>(x));
  };
  for (View<T, 3> Gradients<T>::* of :
       {&Gradients<T>::emission, &Gradients<T>::start, &Gradients<T>::end})
    for (std::size_t i = 0; i < gpus.size(); ++i)
      add(i, (gradients[i].*of).data(), (gradients[i].*of).extent(1) * p.C);
  add(0, gradients[0].transition.data(), p.C * p.C);
  add(0, gradients[0].duration.data(), p.K * p.C);
  add(0, gradients[0].initial.data(), p.C);
  add(0, gradients[0].final.data(), p.C);
  return result;
}

/// The same device some times over, or emulators of their own.
std::vector<runtime::DeviceAccess> devices(const runtime::DeviceAccess& gpu, bool cuda, int n) {
  std::vector<runtime::DeviceAccess> out{gpu};
  const int present = cuda ? runtime::cuda_device_count() : n;
  for (int i = 1; i < n; ++i)
    out.push_back(cuda ? runtime::access_cuda(i % present) : segfuse::testing::make_gpu_emulator());
  return out;
}

class GpuSplit : public GpuSemiCrf {
 protected:
  /// kShort: the row belongs to one device; kGathered: that shows only when it is done.
  enum Way { kSplit, kGathered, kShort };
  template <class T>
  void expect_bits_of_one(const Problem<T>& p, const CudaOptions& options, Way way = kSplit,
                          int most = 3) {
    const Wanted all;
    const RowResult expected = partition_over<T>({gpu}, options, p, all);
    for (int n = 2; n <= most; ++n) {
      SCOPED_TRACE(::testing::Message() << n << " devices");
      std::vector<SplitCudaEngine::Share> shares;
      const RowResult found =
          partition_over(devices(gpu, is_device(), n), options, p, all, &shares);
      EXPECT_EQ(shares.back().writes.end > shares.back().writes.begin, way != kShort);
      EXPECT_EQ(found.split, way == kSplit);
      EXPECT_EQ(found.log_partition, expected.log_partition);
      EXPECT_EQ(found.status, expected.status);
      EXPECT_TRUE(found.gradients == expected.gradients);
    }
  }
};

CudaOptions with(std::int64_t warm_up, bool team) {
  CudaOptions options;
  options.warm_up = warm_up;
  if (team) options.lanes_per_class = 1024;
  return options;
}

TEST_P(GpuSplit, HasTheBitsOfOneDevice) {
  Rng rng(71);
  auto gaps = random_problem<double>(1, 421, 4, 3, false, gaussian, rng);
  expect_bits_of_one(gaps, with(16, false));
  gaps.transition[1] = gaps.transition[5] = gaps.duration[4] = -kInf;
  for (const std::size_t at : {7, 600, 601, 900, 1000}) gaps.emission[at] = -kInf;
  for (const std::size_t at : {100, 650}) gaps.start[at] = gaps.end[at + 90] = -kInf;
  expect_bits_of_one(gaps, with(24, false));
  expect_bits_of_one(random_problem<double>(1, 330, 4, 3, false, gaussian, rng), with(12, true),
                     kSplit, 2);
  // Parts that end where a chunk does.
  expect_bits_of_one(random_problem<double>(1, 512, 4, 3, false, gaussian, rng), with(16, false));
  // More chunks than are joined from the first one on.
  const auto chain = random_problem<double>(1, 8 * 140, 1, 1, false, gaussian, rng);
  expect_bits_of_one(chain, with(4, false), kSplit, 2);
  std::vector<double> host(1);
  Engine(1).log_partition<double>(chain.potentials(), {View<double, 1>(host), {}});
  EXPECT_LT(relative(partition_over({gpu}, with(4, false), chain, {}).log_partition, host[0]),
            1e-13);
  auto p = random_problem<float>(1, 420, 3, 2, false, gaussian, rng);
  p.with_start = p.with_end = p.with_initial = p.with_final = false;
  expect_bits_of_one(p, with(12, false), kSplit, 2);
}

/// Whatever way a row takes, it has the bits of one device.
TEST_P(GpuSplit, RandomRows) {
  static std::uint64_t seed = 8;  // others where the test is repeated
  Rng rng(seed++);
  for (int round = 0; round < 6; ++round) {
    const auto pick = [&](std::uint64_t n) { return static_cast<std::int64_t>(rng.below(n)); };
    auto p = random_problem<double>(1, 150 + pick(350), 1 + pick(4), 1 + pick(3), false,
                                    round % 3 == 2 ? Draw(wide) : Draw(gaussian), rng);
    p.with_start = pick(2) == 0;
    p.with_end = pick(2) == 0;
    p.with_initial = pick(2) == 0;
    const CudaOptions options = with(p.K + pick(24), pick(4) == 0);
    const Wanted wanted{pick(4) != 0, pick(4) != 0, pick(4) != 0};
    const int n = static_cast<int>(2 + pick(4));
    SCOPED_TRACE(::testing::Message() << "T " << p.T_ << " K " << p.K << " C " << p.C << " warm-up "
                                      << options.warm_up << ", " << n << " devices");
    EXPECT_TRUE(partition_over({gpu}, options, p, wanted) ==
                partition_over(devices(gpu, is_device(), n), options, p, wanted));
  }
}

/// Rows that are done in two rounds, that no cut settles, and that leave the range of doubles.
TEST_P(GpuSplit, RowsThatAreDoneAgain) {
  Rng rng(53);
  for (const double spread : {0.5, 0.01}) {
    SCOPED_TRACE(spread);
    auto p = random_problem<double>(1, 330, 8, 2, false, gaussian, rng);
    for (double& e : p.emission) e *= 0.1;
    for (std::int64_t k = 1; k <= 8; ++k) {
      const double away = std::log(static_cast<double>(k) / 4.0) / spread;
      for (std::int64_t y = 0; y < 2; ++y)
        p.duration[static_cast<std::size_t>((k - 1) * 2 + y)] = -0.5 * std::min(away * away, 400.0);
    }
    p.with_start = p.with_end = false;
    CudaOptions options = with(16, false);
    options.lanes_per_class = 4;
    expect_bits_of_one(p, options, spread > 0.1 ? kSplit : kGathered, 2);
  }
  auto far = random_problem<double>(1, 300, 4, 3, false, gaussian, rng);
  far.emission[600] = -2000.0;
  expect_bits_of_one(far, with(12, false), kGathered, 2);
  auto impossible = random_problem<double>(1, 300, 4, 3, false, gaussian, rng);
  for (std::size_t c = 0; c < 3; ++c) impossible.emission[600 + c] = -kInf;
  expect_bits_of_one(impossible, with(12, false), kGathered, 2);
}

TEST_P(GpuSplit, WhatIsNotWantedDoesNotShow) {
  Rng rng(73);
  const auto p = random_problem<double>(1, 333, 4, 3, false, gaussian, rng);
  const auto two = devices(gpu, is_device(), 2);
  for (int mask = 0; mask < 8; ++mask) {
    const Wanted wanted{(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0};
    EXPECT_TRUE(partition_over(two, with(12, false), p, wanted) ==
                partition_over({gpu}, with(12, false), p, wanted))
        << mask;
  }
}

TEST_P(GpuSplit, ShortRowsBelongToOneDevice) {
  Rng rng(74);
  for (const std::int64_t frames : {0, 1, 60, 200})
    expect_bits_of_one(random_problem<double>(1, frames, 4, 3, false, gaussian, rng),
                       with(100, false), kShort);
  CudaOptions whole;
  whole.chunked = false;
  expect_bits_of_one(random_problem<double>(1, 300, 4, 3, false, gaussian, rng), whole, kShort);
}

TEST_P(GpuSplit, SharesCoverTheRowAndOverlap) {
  SplitCudaEngine engine = OverDevice::split(devices(gpu, is_device(), 3));
  for (const std::int64_t frames : {5000, 100001, 3000000})
    for (const bool edges : {false, true}) {
      const auto shares = engine.shares({frames, 2, 4, edges});
      std::int64_t at = 0;
      for (const auto& share : shares) {
        EXPECT_EQ(share.writes.begin, at);
        EXPECT_LT(share.writes.begin, share.writes.end);
        EXPECT_LE(share.reads.begin, share.writes.begin);
        EXPECT_GE(share.reads.end, share.writes.end);
        at = share.writes.end;
      }
      EXPECT_EQ(at, frames);
      // Beyond short rows a device holds little more than its own.
      if (frames < 3000000) continue;
      for (const auto& share : shares) EXPECT_LT(share.reads.end - share.reads.begin, 1010000);
    }
}

TEST_P(GpuSplit, FaultsAndWrongShapes) {
  Rng rng(75);
  auto p = random_problem<double>(1, 333, 4, 3, false, gaussian, rng);
  const auto two = devices(gpu, is_device(), 2);
  const CudaOptions options = with(12, false);
  p.emission[300 * 3 + 1] = std::nan("");
  EXPECT_THAT(message_of([&] { partition_over(two, options, p, {}); }),
              ::testing::HasSubstr("emission at batch 0, time 300, class 1"));
  SplitCudaEngine engine = OverDevice::split(two, options);
  const RowShape shape{333, 3, 4, false};
  EXPECT_THAT(message_of([&] { engine.log_partition<double>(shape, {}); }),
              ::testing::HasSubstr("0 parts and 0 gradients for 2 devices"));
  EXPECT_THAT(
      message_of([&] { engine.log_partition<double>(shape, std::vector<Potentials<double>>(2)); }),
      ::testing::HasSubstr("emission of device 0 is missing"));
  EXPECT_THAT(message_of([&] { engine.shares({10, 0, 4, false}); }), ::testing::HasSubstr("C = 0"));
  std::vector<Potentials<double>> wrong(2);
  double number = 0.0;
  wrong[0].emission = {&number, {1, 5, 3}};
  EXPECT_THAT(message_of([&] { engine.log_partition<double>(shape, wrong); }),
              ::testing::HasSubstr("has shape (1, 5, 3), expected (1, "));
}

/// A call that was refused leaves nothing behind, on no device.
TEST_P(GpuSplit, FaultsAreForgotten) {
  Rng rng(76);
  const auto two = devices(gpu, is_device(), 2);
  const auto good = random_problem<double>(1, 333, 4, 3, false, gaussian, rng);
  const double expected = partition_over({gpu}, with(12, false), good, {}).log_partition;
  SplitCudaEngine engine = OverDevice::split(two, with(12, false));
  const RowShape shape{333, 3, 4, true};
  const auto shares = engine.shares(shape);
  const auto call = [&](const Problem<double>& p) {
    std::vector<std::unique_ptr<DeviceArrays>> arrays;
    std::vector<Potentials<double>> parts;
    for (std::size_t i = 0; i < two.size(); ++i)
      parts.push_back(part_of(p, shares[i].reads,
                              *arrays.emplace_back(std::make_unique<DeviceArrays>(two[i]))));
    return engine.log_partition<double>(shape, parts).log_partition;
  };
  // A score that all have, and a frame at the seam, which both have.
  for (const bool seam : {false, true}) {
    auto bad = good;
    (seam ? bad.emission[static_cast<std::size_t>(shares[1].writes.begin * 3)]
          : bad.transition[2]) = std::nan("");
    EXPECT_THROW(call(bad), DataError);
    EXPECT_EQ(call(good), expected);
  }
}

/// Parts of one chunk each, of a row that no cut settles.
TEST_P(GpuSplit, MoreDevicesThanChunks) {
  Rng rng(77);
  auto p = random_problem<double>(1, 1144, 8, 2, false, gaussian, rng);
  for (double& e : p.emission) e *= 0.1;
  for (std::int64_t k = 1; k <= 8; ++k)
    for (std::int64_t y = 0; y < 2; ++y)
      p.duration[static_cast<std::size_t>((k - 1) * 2 + y)] = k == 4 ? 0.0 : -300.0;
  for (const bool team : {false, true}) {
    CudaOptions options = with(58, team);
    if (!team) options.lanes_per_class = 4;
    p.with_start = p.with_end = false;
    EXPECT_TRUE(partition_over({gpu}, options, p, {}) ==
                partition_over(devices(gpu, is_device(), 17), options, p, {}));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, GpuSplit, ::testing::Values("emulator", "cuda"),
                         [](const auto& made) { return std::string(made.param); });

}  // namespace
}  // namespace segfuse::semicrf::testing
