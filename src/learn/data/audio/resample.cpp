#include <fmt/core.h>
#include <soxr.h>

#include <algorithm>
#include <limits>

#include "learn/data/audio/parsers.h"
#include "learn/data/recordings.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

void check_rates(const Audio& audio, int sample_rate) {
  if (sample_rate <= 0)
    throw UsageError(fmt::format("{}: it cannot have a sample rate of {} Hz", data::name_of(audio),
                                 sample_rate));
  const std::int64_t low = std::min(audio.sample_rate, sample_rate);
  if (low <= 0 || std::max(audio.sample_rate, sample_rate) > low * kMaxResampling)
    throw DataError(fmt::format(
        "{}: sample rate {} Hz; it cannot be resampled to {} Hz, since the rates may differ by a "
        "factor of {} at most; set features.sample_rate to one that is nearer",
        data::name_of(audio), audio.sample_rate, sample_rate, kMaxResampling));
}

}  // namespace

namespace data {

std::int64_t length_at(std::int64_t samples, std::int64_t from, std::int64_t to) {
  const std::int64_t seconds = samples / from;
  const std::int64_t rest = samples % from;
  return std::max<std::int64_t>(1, seconds * to + (rest * to + from / 2) / from);
}

struct Resampler::Filter {
  soxr_t handle = nullptr;
  ~Filter() { soxr_delete(handle); }
};

Resampler::Resampler(const Audio& audio, int sample_rate)
    : source_(audio.source),
      from_(audio.sample_rate),
      to_(sample_rate),
      channels_(static_cast<std::size_t>(audio.stacked)) {
  if (from_ == to_) return;
  check_rates(audio, sample_rate);
  const soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
  const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
  const soxr_runtime_spec_t runtime = soxr_runtime_spec(1);
  soxr_error_t failure = nullptr;
  filter_ = std::make_unique<Filter>();
  filter_->handle =
      soxr_create(static_cast<double>(from_), static_cast<double>(to_),
                  static_cast<unsigned>(channels_), &failure, &io, &quality, &runtime);
  if (failure != nullptr)
    throw InternalError(
        fmt::format("{}: resampling from {} to {} Hz failed: {}", source_, from_, to_, failure));
}

Resampler::~Resampler() = default;

/// At the end no more than what the samples last: what the filter makes beyond that is its tail.
void Resampler::process(std::span<const float> samples, bool last, std::vector<float>& out) {
  constexpr std::size_t kBlock = 1 << 13;
  std::vector<float> block(kBlock * channels_);
  const std::int64_t most =
      last ? length_at(arrived_, from_, to_) : std::numeric_limits<std::int64_t>::max();
  const float* next = samples.data();
  std::size_t left = samples.size() / channels_;
  for (;;) {
    std::size_t used = 0;
    std::size_t made = 0;
    const soxr_error_t failure = soxr_process(filter_->handle, last ? nullptr : next, left, &used,
                                              block.data(), kBlock, &made);
    if (failure != nullptr)
      throw InternalError(
          fmt::format("{}: resampling from {} to {} Hz failed: {}", source_, from_, to_, failure));
    const auto kept = std::min(static_cast<std::int64_t>(made), most - made_);
    out.insert(out.end(), block.begin(),
               block.begin() + kept * static_cast<std::int64_t>(channels_));
    made_ += kept;
    next += used * channels_;
    left -= used;
    if (left == 0 && made < kBlock) return;
  }
}

void Resampler::push(std::span<const float> samples, std::vector<float>& out) {
  if (!filter_) {
    out.insert(out.end(), samples.begin(), samples.end());
    return;
  }
  arrived_ += static_cast<std::int64_t>(samples.size() / channels_);
  if (!samples.empty()) process(samples, false, out);
}

void Resampler::end(std::vector<float>& out) {
  if (!filter_) return;
  process({}, true, out);
  // A fraction of a sample at the end.
  const auto missing = static_cast<std::size_t>(length_at(arrived_, from_, to_) - made_);
  out.insert(out.end(), missing * channels_, 0.0F);
}

}  // namespace data

Audio resample(Audio audio, int sample_rate) {
  if (audio.sample_rate == sample_rate) return audio;
  data::Resampler resampler(audio, sample_rate);
  std::vector<float> out;
  out.reserve(static_cast<std::size_t>(
      (data::length_at(audio.frames(), audio.sample_rate, sample_rate) + 1) * audio.stacked));
  resampler.push(audio.samples, out);
  resampler.end(out);
  audio.samples = std::move(out);
  audio.sample_rate = sample_rate;
  return audio;
}

}  // namespace segfuse
