#include <fmt/core.h>
#include <sndfile.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/console/log.h"
#include "base/os/file.h"
#include "base/text.h"
#include "learn/data/audio/parsers.h"
#include "learn/data/recordings.h"
#include "learn/data/text.h"
#include "learn/data/wfdb/wfdb.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"

#ifdef __SANITIZE_ADDRESS__
// libsndfile keeps what libvorbis holds of an Ogg file that it refuses.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions();
const char* __lsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "leak:vorbis_info_init\nleak:libvorbis\n";
}
#endif

namespace segfuse {
namespace data {
namespace {

constexpr int kMaxSampleRate = 100'000'000;

struct SndfileCloser {
  void operator()(SNDFILE* file) const { sf_close(file); }
};
using SndfileHandle = std::unique_ptr<SNDFILE, SndfileCloser>;

std::string read_head(const std::filesystem::path& path, const std::string& name,
                      std::size_t size) {
  if (path_is_directory(path))
    throw DataError(fmt::format("{}: is a directory; an audio file was expected", name));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw DataError(fmt::format("{}: cannot be opened: {}", name, std::strerror(errno)));
  std::string head(size, '\0');
  file.read(head.data(), static_cast<std::streamsize>(size));
  head.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return head;
}

double full_scale_of(int format) {
  switch (format & SF_FORMAT_SUBMASK) {
    case SF_FORMAT_PCM_S8:
    case SF_FORMAT_PCM_U8: return 0x1p7;
    case SF_FORMAT_PCM_24: return 0x1p23;
    case SF_FORMAT_PCM_32: return 0x1p31;
    case SF_FORMAT_FLOAT:
    case SF_FORMAT_DOUBLE: return 1;
    default: return 0x1p15;
  }
}

void check_info(const SF_INFO& info, const std::string& name) {
  if (info.samplerate <= 0 || info.samplerate > kMaxSampleRate)
    throw DataError(fmt::format("{}: the header gives a sample rate of {} Hz; expected 1 to {}",
                                name, info.samplerate, kMaxSampleRate));
  if (info.channels <= 0)
    throw DataError(
        fmt::format("{}: the header gives {} channels; expected at least 1", name, info.channels));
  if (info.frames <= 0)
    throw DataError(fmt::format("{}: the file holds no samples; expected at least one", name));
}

/// libsndfile reads what is left of a file that was cut off; its log has what a header announces
/// and what the file has: "data : 16000 (should be 7988)".
void check_whole(SNDFILE* file, const std::string& name) {
  std::string text(16384, '\0');
  const int size = sf_command(file, SFC_GET_LOG_INFO, text.data(), static_cast<int>(text.size()));
  text.resize(static_cast<std::size_t>(std::max(size, 0)));
  for (const std::string_view line : split_lines(text)) {
    const std::size_t middle = line.find(" (should be ");
    if (middle == std::string_view::npos) continue;
    const std::size_t colon = line.rfind(':', middle);
    if (colon == std::string_view::npos) continue;
    std::string_view rest = line.substr(middle + 12);
    rest = rest.substr(0, rest.find(')'));
    const std::optional<double> announced =
        parse_double(trim(line.substr(colon + 1, middle - colon - 1)));
    const std::optional<double> there = parse_double(trim(rest));
    if (announced && there && *announced > *there)
      throw DataError(fmt::format(
          "{}: the header announces {:.10g} bytes, the file has {:.10g}; it was cut off or damaged",
          name, *announced, *there));
  }
}

bool is_finite(float value) { return std::isfinite(value); }

/// Numbers of 16 bits that a program stored as floats, without dividing them. Said of one file.
void tell_scale(std::span<const float> samples, const Audio& audio) {
  constexpr float kWholeNumbers = 128, kMaxNumber = 0x1p31;  // loud floats stay below
  static std::atomic<bool> told = false;
  if (audio.full_scale != 1 || told) return;
  const float peak = std::abs(std::ranges::max(samples, {}, [](float x) { return std::abs(x); }));
  if (!(peak >= kWholeNumbers && peak <= kMaxNumber) || told.exchange(true)) return;
  log(LogLevel::kWarning,
      "{}: its samples are floating-point numbers up to {:g}, where 1 is the full scale of other "
      "files; sound at another level than a model was trained on is decoded wrongly (16-bit "
      "numbers that were stored as floats need to be divided by 32768)",
      audio.source, peak);
}

}  // namespace

void check_channel(int channel, int channels, std::string_view name) {
  if (channel == AudioOptions::kOnly && channels > 1)
    throw DataError(fmt::format(
        "{}: the file has {} channels; choose one by its number (features.channel = 0, --channel "
        "0, channel= in Python, or a column 'channel' of the manifest), \"mean\" for their mean, "
        "or "
        "\"stack\" for all",
        name, channels));
  if (channel < AudioOptions::kStack || channel >= channels)
    throw DataError(
        fmt::format("{}: there is no channel {}; the file has {} channels, counted from 0", name,
                    channel, channels));
}

ChannelMixer::ChannelMixer(Audio& audio, const AudioOptions& options)
    : audio_(audio),
      channel_(audio.channels == 1 ? 0 : options.channel),
      scale_(options.stored_scale ? static_cast<float>(audio.full_scale) : 1.0F) {
  if (channel_ == AudioOptions::kStack) audio.stacked = audio.channels;
}

void ChannelMixer::add(std::span<const float> interleaved) {
  const auto channels = static_cast<std::size_t>(audio_.channels);
  if (channels == 1 || channel_ == AudioOptions::kStack) {
    if (scale_ == 1.0F && std::ranges::all_of(interleaved, is_finite)) {
      audio_.samples.insert(audio_.samples.end(), interleaved.begin(), interleaved.end());
      pushed_ += std::ssize(interleaved);
      return;
    }
    for (const float value : interleaved) push(value);
    return;
  }
  for (std::size_t at = 0; at < interleaved.size(); at += channels) {
    float value = 0;
    if (channel_ >= 0) {
      value = interleaved[at + static_cast<std::size_t>(channel_)];
    } else {
      for (std::size_t c = 0; c < channels; ++c) value += interleaved[at + c];
      value /= static_cast<float>(channels);
    }
    push(value);
  }
}

void ChannelMixer::push(float value) {
  if (!std::isfinite(value))
    throw DataError(fmt::format("{}: sample {} is {}; expected {}", audio_.source,
                                pushed_ / audio_.stacked, value, expected_instead(value)));
  ++pushed_;
  audio_.samples.push_back(value * scale_);
}

struct AudioReader::File {
  explicit File(const std::filesystem::path& path)
      : handle(sf_open(path.c_str(), SFM_READ, &info)) {}
  SF_INFO info{};
  SndfileHandle handle;
};

AudioReader::AudioReader(const std::filesystem::path& path, const std::string& name,
                         const AudioOptions& options)
    : file_(std::make_unique<File>(path)) {
  if (!file_->handle && read_head(path, name, 8) == "APETAGEX")
    throw DataError(
        fmt::format("{}: byte 0: an APE tag precedes the audio, and libsndfile cannot skip it; "
                    "remove the tag, or convert the file, as with ffmpeg -i FILE NEW.wav",
                    name));
  if (!file_->handle)
    throw DataError(
        fmt::format("{}: byte 0: not an audio file that can be read ({}); expected WAV, FLAC, "
                    "MP3, Ogg, AIFF, CAF, NIST SPHERE or another format of libsndfile",
                    name, sf_strerror(nullptr)));
  const SF_INFO& info = file_->info;
  check_info(info, name);
  const bool checked = (info.format & SF_FORMAT_TYPEMASK) == SF_FORMAT_WAV;  // check_wav_chunks()
  if (!checked) check_whole(file_->handle.get(), name);
  if ((info.format & SF_FORMAT_TYPEMASK) == SF_FORMAT_OGG) check_ogg_pages(path, name);
  if ((info.format & SF_FORMAT_TYPEMASK) == SF_FORMAT_MPEG) counted_ = mpeg_samples(path);
  check_channel(options.channel, info.channels, name);
  audio_ = {info.samplerate, info.channels, full_scale_of(info.format), {}, name};
  mixer_.emplace(audio_, options);
}

AudioReader::AudioReader(std::unique_ptr<WfdbReader> record) : record_(std::move(record)) {}

AudioReader::~AudioReader() = default;

const Audio& AudioReader::audio() const { return record_ ? record_->audio() : audio_; }

std::unique_ptr<AudioReader> AudioReader::open(const std::filesystem::path& path,
                                               const std::string& name,
                                               const AudioOptions& options) {
  std::error_code failure;
  if (std::filesystem::is_fifo(path, failure)) return nullptr;
  const std::string head = read_head(path, name, 16);
  if (head.empty()) throw DataError(fmt::format("{}: byte 0: the file is empty", name));
  const std::string ending = extension_of(name);
  if (ending == ".hea")
    return std::unique_ptr<AudioReader>(new AudioReader(open_wfdb(path, name, options)));
  if (ending == ".cbin" || head.starts_with("NIST_1A")) return nullptr;
  if (head.starts_with("RIFF")) check_wav_chunks(path, name);
  return std::unique_ptr<AudioReader>(new AudioReader(path, name, options));
}

/// A FLAC that was written into a pipe does not say how long it is.
std::optional<std::int64_t> AudioReader::announced() const {
  if (record_) return record_->announced();
  if (counted_) return counted_;
  if (file_->info.frames == SF_COUNT_MAX) return std::nullopt;
  return file_->info.frames;
}

bool AudioReader::next() {
  if (record_) {
    const bool more = record_->next();
    frames_ += record_->audio().frames();
    return more;
  }
  constexpr sf_count_t kBlock = 1 << 14;
  SNDFILE* const file = file_->handle.get();
  const auto channels = static_cast<std::size_t>(audio_.channels);
  block_.resize(std::size_t{kBlock} * channels);
  audio_.samples.clear();
  const sf_count_t got = sf_readf_float(file, block_.data(), kBlock);
  if (got > 0) {
    const std::span<const float> block(block_.data(), static_cast<std::size_t>(got) * channels);
    tell_scale(block, audio_);
    mixer_->add(block);
    frames_ += got;
    return true;
  }
  if (counted_) {
    check_count();
    return false;
  }
  if (!announced() && sf_error(file) == 0 && frames_ > 0) return false;
  if (frames_ < file_->info.frames)
    throw DataError(
        fmt::format("{}: the header announces {} samples, the file ends or breaks after {}{}; it "
                    "was cut off or damaged",
                    audio_.source, file_->info.frames, frames_,
                    sf_error(file) != 0 ? std::string(": ") + sf_strerror(file) : ""));
  return false;
}

/// libsndfile guesses the length from the first frame, and reads no more than that. The decoder
/// leaves out its delay and frames that need what came before the file.
void AudioReader::check_count() const {
  constexpr std::int64_t kDelay = 4 * 1152;
  if (frames_ + kDelay >= *counted_) return;
  throw DataError(fmt::format(
      "{}: the MP3 has {} samples, {} could be read, since no header says its length; convert it, "
      "as with ffmpeg -i FILE NEW.wav",
      audio_.source, *counted_, frames_));
}

Audio read_audio_file(const std::filesystem::path& path, const std::string& name,
                      const AudioOptions& options) {
  const std::unique_ptr<AudioReader> reader = AudioReader::open(path, name, options);
  if (!reader) {
    std::error_code failure;
    if (std::filesystem::is_fifo(path, failure))
      return read_audio_bytes(read_file(path), name, options);
    if (extension_of(name) == ".cbin") return read_cbin(path, name, options);
    return parse_sphere(read_file(path), name, options);
  }
  Audio audio = reader->audio();
  while (reader->next()) {
    const std::vector<float>& block = reader->audio().samples;
    audio.samples.insert(audio.samples.end(), block.begin(), block.end());
  }
  return audio;
}

std::string format_wav(std::string_view name, std::span<const float> samples, int sample_rate) {
  if (sample_rate <= 0) throw UsageError(fmt::format("{}: sample rate {}", name, sample_rate));
  std::string bytes;
  const auto put = [&](std::uint32_t value, int count) {
    for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  };
  const auto size = static_cast<std::uint32_t>(2 * samples.size());
  bytes += "RIFF";
  put(36 + size, 4);
  bytes += "WAVEfmt ";
  put(16, 4);
  put(1, 2);  // PCM
  put(1, 2);  // channels
  put(static_cast<std::uint32_t>(sample_rate), 4);
  put(2 * static_cast<std::uint32_t>(sample_rate), 4);
  put(2, 2);
  put(16, 2);
  bytes += "data";
  put(size, 4);
  for (const float sample : samples) {
    const double scaled = std::clamp(std::nearbyint(sample * 32768.0), -32768.0, 32767.0);
    put(static_cast<std::uint32_t>(static_cast<std::int32_t>(scaled)), 2);
  }
  return bytes;
}

}  // namespace data

Audio read_audio(const std::filesystem::path& path, const AudioOptions& options) {
  return data::read_audio_file(path, path.string(), options);
}

int audio_channel(std::string_view text, std::string_view what) {
  if (text == "mean") return AudioOptions::kMean;
  if (text == "stack") return AudioOptions::kStack;
  int channel = -1;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), channel);
  if (failure != std::errc() || end != text.data() + text.size() || channel < 0)
    throw DataError(fmt::format("{} is {}; expected \"mean\", \"stack\" or a number from 0 on",
                                what, data::shown(std::string(text))));
  return channel;
}

void write_wav(const std::filesystem::path& path, std::span<const float> samples, int sample_rate) {
  write_file_atomically(path, data::format_wav(path.string(), samples, sample_rate));
}

}  // namespace segfuse
