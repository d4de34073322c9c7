// Segments from labels per frame on the device: those of the host's function.

#include <optional>

#include "segfuse/error.h"
#include "unit/gpu/gpu_test.h"

namespace segfuse::semicrf::testing {
namespace {

/// Labels of B rows of T frames, padded with `ignore`, in runs of up to `longest_run`.
template <class Int>
struct Labels {
  std::int64_t B, T_;
  std::vector<Int> values;
  std::vector<std::int64_t> lengths;

  Labels(std::int64_t rows, std::int64_t frames, std::int64_t classes, std::uint64_t longest_run,
         Rng& rng)
      : B(rows), T_(frames), values(static_cast<std::size_t>(rows * frames), Int{-100}) {
    for (std::int64_t b = 0; b < B; ++b) {
      lengths.push_back(
          static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(frames) + 1)));
      for (std::int64_t t = 0; t < lengths.back();) {
        const auto label = static_cast<Int>(rng.below(static_cast<std::uint64_t>(classes)));
        const auto end =
            std::min(lengths.back(), t + 1 + static_cast<std::int64_t>(rng.below(longest_run)));
        while (t < end) at(b, t++) = label;
      }
    }
  }
  Int& at(std::int64_t b, std::int64_t t) { return values[static_cast<std::size_t>(b * T_ + t)]; }
};

template <class Int>
Segmentations device_segments(const runtime::DeviceAccess& gpu, const Labels<Int>& labels,
                              bool with_lengths, const LabelRules& rules) {
  DeviceArrays device(gpu);
  const std::int64_t most = labels.B * labels.T_;
  const DeviceSegmentations out{{device.space<std::int64_t>(labels.B + 1), {labels.B + 1}},
                                {device.space<std::int32_t>(most), {most}},
                                {device.space<std::int32_t>(most), {most}},
                                {device.space<std::int32_t>(most), {most}}};
  const View<const Int, 2> view(device.copy(labels.values), {labels.B, labels.T_});
  Lengths lengths;
  if (with_lengths) lengths = View<const std::int64_t, 1>(device.copy(labels.lengths), {labels.B});
  auto* const frames = device.space<std::int64_t>(labels.B);
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
  engine.segmentations_from_labels(view, lengths, rules, out, {frames, {labels.B}});
  engine.check();
  EXPECT_EQ(device.read(frames, labels.B), labels.lengths);
  return on_host(out, device);
}

template <class Int>
void expect_segments_of_the_host(const runtime::DeviceAccess& gpu, Rng& rng) {
  for (int round = 0; round < 12; ++round) {
    const auto classes = static_cast<std::int64_t>(1 + rng.below(4));
    const auto longest = static_cast<std::int64_t>(1 + rng.below(7));
    const bool split = round % 2 == 0;
    const Labels<Int> labels(1 + round % 4, round % 3 == 0 ? 700 : 40, classes,
                             split ? 30 : static_cast<std::uint64_t>(longest), rng);
    const LabelRules rules{.max_duration = split ? longest : 700,
                           .classes = classes,
                           .long_runs = split ? LongRuns::kSplit : LongRuns::kError};
    const View<const Int, 2> view(labels.values.data(), {labels.B, labels.T_});
    for (const bool with_lengths : {false, true}) {
      Lengths lengths;
      if (with_lengths) lengths = View<const std::int64_t, 1>(labels.lengths);
      EXPECT_EQ(device_segments(gpu, labels, with_lengths, rules),
                segmentations_from_labels(view, lengths, rules));
    }
  }
}

TEST_P(GpuSemiCrf, SegmentsFromLabelsAreTheHosts) {
  Rng rng(41);
  expect_segments_of_the_host<std::int32_t>(gpu, rng);
  expect_segments_of_the_host<std::int64_t>(gpu, rng);
}

/// The sentence of the error, from the device; the host must refuse the same labels.
std::string label_fault(const runtime::DeviceAccess& gpu, const Labels<std::int64_t>& labels,
                        bool with_lengths, const LabelRules& rules) {
  const View<const std::int64_t, 2> view(labels.values.data(), {labels.B, labels.T_});
  Lengths lengths;
  if (with_lengths) lengths = View<const std::int64_t, 1>(labels.lengths);
  EXPECT_THROW(segmentations_from_labels(view, lengths, rules), Error);
  try {
    device_segments(gpu, labels, with_lengths, rules);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

TEST_P(GpuSemiCrf, FaultsOfLabelsAreTold) {
  Rng rng(42);
  Labels<std::int64_t> good(2, 10, 3, 1, rng);
  good.lengths = {10, 6};
  for (std::int64_t t = 0; t < 10; ++t) good.at(0, t) = t % 3, good.at(1, t) = t < 6 ? t % 2 : -100;
  const LabelRules rules{.max_duration = 2, .classes = 3};
  Labels<std::int64_t> bad = good;
  bad.at(1, 4) = 3;
  EXPECT_EQ(label_fault(gpu, bad, true, rules),
            "semicrf: batch 1, time 4: the label is not in [0, 3)");
  bad.at(1, 4) = -100;
  EXPECT_EQ(label_fault(gpu, bad, true, rules),
            "semicrf: batch 1, time 4: the label is not in [0, 3)");
  EXPECT_EQ(label_fault(gpu, bad, false, rules),
            "semicrf: batch 1, time 5: a label after ignored frames");
  bad = good;
  bad.at(0, 3) = bad.at(0, 4) = bad.at(0, 5) = 1;
  EXPECT_EQ(
      label_fault(gpu, bad, true, rules),
      "semicrf: batch 0, time 3: a run of one label is longer than the longest segment, 2 frames; "
      "raise K or split long runs");
  bad = good;
  bad.lengths[1] = 11;
  EXPECT_NE(label_fault(gpu, bad, true, rules).find("batch 1"), std::string::npos);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
