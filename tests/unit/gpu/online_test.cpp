// CudaOnlineDecoder on the emulator beside the CPU's decoder: windows and histories that move, and
// bounded delays.

#include <gtest/gtest.h>

#include "segfuse/error.h"
#include "support/emulator/gpu_emulator.h"
#include "unit/gpu/device_problem.h"

namespace segfuse::semicrf::testing {
namespace {

struct OnlineCase {
  std::int64_t frames, K, C, piece, max_delay;
  bool tail;
};

/// Frames [from, to) of a problem's emission scores.
View<const double, 2> piece_of(const Problem<double>& p, const double* emission, std::int64_t from,
                               std::int64_t to) {
  return {emission + from * p.C, {to - from, p.C}};
}

void expect_the_cpus_decisions(const OnlineCase& size) {
  SCOPED_TRACE(::testing::Message() << "frames " << size.frames << " K " << size.K << " delay "
                                    << size.max_delay << " tail " << size.tail);
  Rng rng(31);
  auto p = random_problem<double>(1, size.frames, size.K, size.C, false, gaussian, rng);
  for (double& v : p.emission) v *= 0.3;
  const std::vector<double> tail(static_cast<std::size_t>(size.C), -0.3);
  const auto gpu = segfuse::testing::make_gpu_emulator();
  DeviceArrays device(gpu);
  const Potentials<double> q = on_device(p, device);
  View<const double, 1> host_tail, device_tail;
  if (size.tail) host_tail = tail, device_tail = {device.copy(tail), {size.C}};
  OnlineDecoder host(p.potentials(), {size.max_delay}, host_tail);
  CudaOnlineDecoder decoder = OverDevice::online(gpu, q, {size.max_delay}, device_tail);
  Segmentations wanted, found;
  for (int row = 0; row < 2; ++row) {  // a decoder is used again
    for (std::int64_t from = 0; from < size.frames; from += size.piece) {
      const std::int64_t to = std::min(from + size.piece, size.frames);
      host.push<double>(piece_of(p, p.emission.data(), from, to), wanted);
      decoder.push<double>(piece_of(p, q.emission.data(), from, to));
      if (from % 3 == 0) decoder.take(found);
    }
    decoder.check();
    EXPECT_EQ(decoder.frames(), size.frames);
    EXPECT_EQ(decoder.decided_frames(), host.decided_frames());
    EXPECT_LT(relative(decoder.log_partition(), host.log_partition()), 1e-13);
    EXPECT_LT(relative(decoder.best_score(), host.best_score()), 1e-13);
    EXPECT_EQ(decoder.finish(found), host.finish(wanted));
    EXPECT_EQ(found, wanted);
    if (size.frames > 300) return;
  }
}

TEST(CudaOnline, DecidesWhatTheCpuDecides) {
  // Windows have 2 K + 64 frames, and move by multiples of K.
  expect_the_cpus_decisions({100, 3, 2, 7, 0, false});
  expect_the_cpus_decisions({100, 3, 2, 30, 0, true});
  expect_the_cpus_decisions({5, 8, 1, 5, 0, true});
}

TEST(CudaOnline, BoundedDelaysAreTheCpus) {
  expect_the_cpus_decisions({90, 4, 2, 11, 4, false});
  expect_the_cpus_decisions({90, 4, 2, 90, 9, true});
}

TEST(CudaOnline, TheHistoryMovesWhenItIsFull) {
  expect_the_cpus_decisions({330, 2, 2, 100, 0, false});
}

TEST(CudaOnline, ANumberThatIsNoneIsAFault) {
  const auto gpu = segfuse::testing::make_gpu_emulator();
  Rng rng(1);
  auto p = random_problem<float>(1, 9, 3, 2, false, gaussian, rng);
  p.emission[7 * 2 + 1] = static_cast<float>(kNaN);
  DeviceArrays device(gpu);
  const std::size_t before = segfuse::testing::bytes_in_use(gpu);
  {
    DeviceArrays mine(gpu);
    const Potentials<float> q = on_device(p, mine);
    CudaOnlineDecoder decoder = OverDevice::online(gpu, q);
    decoder.push<float>({q.emission.data(), {5, 2}});
    decoder.check();
    decoder.push<float>({q.emission.data() + 10, {4, 2}});
    try {
      decoder.check();
      FAIL();
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("emission at batch 0, time 7, class 1"),
                std::string::npos)
          << error.what();
    }
  }
  EXPECT_EQ(segfuse::testing::bytes_in_use(gpu), before);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
