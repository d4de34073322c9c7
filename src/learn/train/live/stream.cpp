// Decoding of what comes through a file descriptor.

#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "base/os/interrupt.h"
#include "learn/data/audio/parsers.h"
#include "learn/data/recordings.h"
#include "learn/train/decode/decoder_state.h"
#include "learn/train/live/stream_input.h"
#include "segfuse/error.h"
#include "segfuse/model.h"
#include "segfuse/train.h"

namespace segfuse {
namespace {

/// Bytes as they come; none at the end or when the process is to end.
class ByteSource {
 public:
  ByteSource(int descriptor, std::string name) : descriptor_(descriptor), name_(std::move(name)) {}

  std::string_view next() {
    while (!interrupt_.requested()) {
      // A signal between the question above and poll() is seen a moment later.
      constexpr int kMilliseconds = 100;
      pollfd wait{descriptor_, POLLIN, 0};
      const int ready = ::poll(&wait, 1, kMilliseconds);
      if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
      const ssize_t size = ::read(descriptor_, buffer_.data(), buffer_.size());
      if (size >= 0) return {buffer_.data(), static_cast<std::size_t>(size)};
      if (errno != EINTR && errno != EAGAIN)
        throw DataError(fmt::format("{}: it cannot be read: {}", name_, std::strerror(errno)));
    }
    return {};
  }
  bool was_interrupted() const { return interrupt_.requested(); }

 private:
  InterruptScope interrupt_;
  int descriptor_;
  std::string name_;
  std::array<char, 1 << 14> buffer_;
};

class Streaming {
 public:
  Streaming(const StreamOptions& options, std::string name)
      : options_(options),
        name_(std::move(name)),
        model_(Model::load(options.model, options.context, options.channel)),
        live_(model_, {options.lookahead}) {
    check();
  }
  StreamSummary run();

 private:
  bool has_values() const { return model_.features().kind == FeatureKind::kValues; }
  void check() const;
  void give(const std::vector<LabelSegment>& segments);
  learn::SampleBytes sample_bytes() const;
  Tensor rows_of(learn::NumberLines& lines, std::optional<std::string_view> bytes);
  void give_rows(const Tensor& rows);
  void read_lines(ByteSource& source);
  void read_samples(ByteSource& source);
  void push_audio(std::span<const float> interleaved, const learn::StreamFormat& format);

  const StreamOptions& options_;
  std::string name_;
  Model model_;
  LiveDecoder live_;
  std::optional<Audio> audio_;
  std::optional<data::ChannelMixer> mixer_;
  StreamSummary summary_;
  std::int64_t rows_ = 0;           ///< of values, that were given
  std::optional<std::string> cut_;  ///< what is wrong behind all that was given
};

void Streaming::check() const {
  const std::string& encoding = options_.encoding;
  if (encoding != "" && encoding != "wav" && encoding != "s16le" && encoding != "f32le" &&
      encoding != "text")
    throw UsageError(
        fmt::format("there is no encoding '{}'; use wav, s16le, f32le or text", encoding));
  if (has_values() && (encoding == "wav" || encoding == "s16le"))
    throw UsageError(fmt::format(
        "the model was trained on values, and {} is audio; use text or f32le", encoding));
  if (!has_values() && encoding == "text")
    throw UsageError("the model was trained on audio, and text is values; use wav, s16le or f32le");
  if (options_.sample_rate < 0 || options_.channels < 0)
    throw UsageError(fmt::format("the stream cannot have {} Hz and {} channels",
                                 options_.sample_rate, options_.channels));
  if (!has_values()) return;
  const double rate = 1 / model_.hop_seconds();
  if (options_.sample_rate != 0 && std::abs(options_.sample_rate - rate) > 1e-6 * rate)
    throw UsageError(
        fmt::format("the rate is {}, and the model was trained on {:g} rows a second; send rows of "
                    "that rate",
                    options_.sample_rate, rate));
}

void Streaming::give(const std::vector<LabelSegment>& segments) {
  for (const LabelSegment& segment : segments) {
    ++summary_.segments;
    if (options_.each) options_.each(segment);
  }
}

learn::SampleBytes Streaming::sample_bytes() const {
  learn::StreamFormat given{{}, options_.sample_rate, options_.channels};
  if (options_.encoding == "s16le") given.encoding = learn::SampleEncoding::kS16;
  if (options_.encoding == "f32le") given.encoding = learn::SampleEncoding::kF32;
  return {name_, given, options_.encoding == "wav", {{}, model_.features().sample_rate, 1}};
}

/// Those of some more bytes, or of a last line without an end; up to a line that is wrong.
Tensor Streaming::rows_of(learn::NumberLines& lines, std::optional<std::string_view> bytes) {
  try {
    return bytes ? lines.push(*bytes) : lines.finish();
  } catch (const DataError& error) {
    cut_ = error.what();
    return lines.take();
  }
}

/// Up to a row with a number that is not finite.
void Streaming::give_rows(const Tensor& rows) {
  if (rows.shape().at(0) == 0) return;
  const std::span<const float> values = rows.span<float>();
  const std::int64_t columns = rows.shape()[1];
  std::int64_t whole = rows.shape()[0];
  try {
    data::check_finite(rows, name_, rows_);
  } catch (const DataError& error) {
    cut_ = error.what();
    whole = (learn::first_not_finite(values) - values.begin()) / columns;
  }
  const auto some = values.first(static_cast<std::size_t>(whole * columns));
  give(live_.push_values(
      Tensor::from(std::vector<float>(some.begin(), some.end()), {whole, columns})));
  rows_ += whole;
}

void Streaming::read_lines(ByteSource& source) {
  learn::NumberLines lines(name_);
  while (!cut_) {
    const std::string_view bytes = source.next();
    if (bytes.empty()) break;
    give_rows(rows_of(lines, bytes));
  }
  if (!source.was_interrupted() && !cut_) give_rows(rows_of(lines, std::nullopt));
}

/// Up to a sample that is not finite.
void Streaming::push_audio(std::span<const float> interleaved, const learn::StreamFormat& format) {
  if (!mixer_) {
    audio_.emplace();
    audio_->sample_rate = format.sample_rate;
    audio_->channels = format.channels;
    audio_->source = name_;
    AudioOptions how;
    how.channel = model_.features().channel;
    if (format.channels > 1) data::check_channel(how.channel, format.channels, name_);
    mixer_.emplace(*audio_, how);
  }
  try {
    mixer_->add(interleaved);
  } catch (const DataError& error) {
    cut_ = error.what();
    audio_->samples.resize(audio_->samples.size() -
                           audio_->samples.size() % static_cast<std::size_t>(audio_->stacked));
  }
  give(live_.push(*audio_));
  audio_->samples.clear();
}

void Streaming::read_samples(ByteSource& source) {
  learn::SampleBytes reader = sample_bytes();
  std::vector<float> samples;
  while (!cut_) {
    const std::string_view bytes = source.next();
    if (bytes.empty()) break;
    samples.clear();
    reader.push(bytes, samples);
    if (samples.empty()) continue;
    if (has_values()) {
      const std::int64_t channels = reader.format().channels;
      give_rows(Tensor::from(samples, {std::ssize(samples) / channels, channels}));
    } else {
      push_audio(samples, reader.format());
    }
  }
  if (source.was_interrupted() || cut_) return;
  try {
    reader.check_end();
  } catch (const DataError& error) {
    cut_ = error.what();
  }
}

StreamSummary Streaming::run() {
  ByteSource source(options_.input, name_);
  const bool lines = has_values() && options_.encoding != "f32le";
  lines ? read_lines(source) : read_samples(source);
  summary_.seconds = live_.seconds();
  const bool interrupted = source.was_interrupted();
  if (summary_.seconds > 0)
    give(live_.finish());
  else if (!interrupted && !cut_)
    throw DataError(fmt::format("{}: the stream was empty; expected at least one sample", name_));
  if (interrupted) throw Interrupted("interrupted; the input until then was decoded");
  if (cut_) throw DataError(*cut_);
  return summary_;
}

}  // namespace

StreamSummary stream(const StreamOptions& options) {
  return Streaming(options, options.input == 0 ? "standard input" : "the input").run();
}

}  // namespace segfuse
