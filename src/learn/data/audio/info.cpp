#include <fmt/core.h>
#include <sndfile.h>

#include <memory>

#include "learn/data/audio/parsers.h"
#include "learn/data/wfdb/wfdb.h"
#include "segfuse/error.h"

namespace segfuse::data {

AudioInfo audio_info(const std::filesystem::path& path) {
  AudioOptions how;
  how.channel = AudioOptions::kMean;
  if (const auto reader = AudioReader::open(path, path.string(), how)) {  // looks if it is whole
    // Only the whole record shows whether its signals are those that the header describes.
    while (is_wfdb(path) && reader->next()) {
    }
    if (const auto frames = reader->announced(); frames && *frames > 0)
      return {reader->audio().sample_rate, reader->audio().channels, *frames};
  } else {
    SF_INFO info{};
    const std::unique_ptr<SNDFILE, decltype(&sf_close)> file(sf_open(path.c_str(), SFM_READ, &info),
                                                             sf_close);
    if (file && info.samplerate > 0 && info.channels > 0 && info.frames > 0)
      return {info.samplerate, info.channels, info.frames};
  }
  // What says no length, or is none of the library's; what is wrong with it is said there.
  const Audio audio = read_audio(path, how);
  return {audio.sample_rate, audio.channels, static_cast<std::int64_t>(audio.samples.size())};
}

}  // namespace segfuse::data
