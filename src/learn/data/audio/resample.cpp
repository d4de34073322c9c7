#include <fmt/core.h>
#include <soxr.h>

#include <algorithm>

#include "segfuse/data.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

/// N samples at `from` Hz last as long as so many at `to` Hz.
std::int64_t length_at(std::int64_t samples, std::int64_t from, std::int64_t to) {
  const std::int64_t seconds = samples / from;
  const std::int64_t rest = samples % from;
  return std::max<std::int64_t>(1, seconds * to + (rest * to + from / 2) / from);
}

void check_rates(const Audio& audio, int sample_rate) {
  if (sample_rate <= 0)
    throw UsageError(
        fmt::format("{}: it cannot have a sample rate of {} Hz", audio.source, sample_rate));
  const std::int64_t low = std::min(audio.sample_rate, sample_rate);
  if (low <= 0 || std::max(audio.sample_rate, sample_rate) > low * kMostResampling)
    throw DataError(fmt::format(
        "{}: sample rate {} Hz; it cannot be resampled to {} Hz, since the rates may differ by a "
        "factor of {} at most; set features.sample_rate to one that is nearer",
        audio.source, audio.sample_rate, sample_rate, kMostResampling));
}

}  // namespace

Audio resample(Audio audio, int sample_rate) {
  if (audio.sample_rate == sample_rate) return audio;
  check_rates(audio, sample_rate);
  const auto channels = static_cast<std::size_t>(audio.stacked);
  const auto wanted =
      static_cast<std::size_t>(length_at(audio.frames(), audio.sample_rate, sample_rate));
  std::vector<float> out((wanted + 1) * channels);
  const soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
  const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
  const soxr_runtime_spec_t runtime = soxr_runtime_spec(1);
  std::size_t used = 0;
  std::size_t made = 0;
  const soxr_error_t failure =
      soxr_oneshot(audio.sample_rate, sample_rate, static_cast<unsigned>(channels),
                   audio.samples.data(), audio.samples.size() / channels, &used, out.data(),
                   wanted + 1, &made, &io, &quality, &runtime);
  if (failure != nullptr)
    throw InternalError(fmt::format("{}: resampling from {} to {} Hz failed: {}", audio.source,
                                    audio.sample_rate, sample_rate, failure));
  // A fraction of a sample at the end.
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(made * channels), out.end(), 0.0F);
  out.resize(wanted * channels);
  audio.samples = std::move(out);
  audio.sample_rate = sample_rate;
  return audio;
}

}  // namespace segfuse
