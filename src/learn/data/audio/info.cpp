#include <fmt/core.h>
#include <sndfile.h>

#include <memory>

#include "learn/data/audio/parsers.h"
#include "segfuse/error.h"

namespace segfuse::data {

AudioInfo audio_info(const std::filesystem::path& path) {
  SF_INFO info{};
  const std::unique_ptr<SNDFILE, decltype(&sf_close)> file(sf_open(path.c_str(), SFM_READ, &info),
                                                           sf_close);
  const bool guessed = file && (info.format & SF_FORMAT_TYPEMASK) == SF_FORMAT_MPEG;
  const std::optional<std::int64_t> counted = guessed ? mpeg_samples(path) : std::nullopt;
  if (counted && info.samplerate > 0 && info.channels > 0)
    return {info.samplerate, info.channels, *counted};
  if (file && info.samplerate > 0 && info.channels > 0 && info.frames > 0)
    return {info.samplerate, info.channels, info.frames};
  // Whatever the library does not know the length of; what is wrong with it is said there.
  AudioOptions how;
  how.channel = AudioOptions::kMean;
  const Audio audio = read_audio(path, how);
  return {audio.sample_rate, audio.channels, static_cast<std::int64_t>(audio.samples.size())};
}

}  // namespace segfuse::data
