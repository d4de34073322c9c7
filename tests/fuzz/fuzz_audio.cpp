// libFuzzer target: recordings that libsndfile decodes, whole and block by block. It looks at what
// is in a file; our own checks look at the name, too, so each name gets its share.

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "learn/data/audio/parsers.h"
#include "segfuse/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace segfuse;
  constexpr std::array kNames = {"x.wav",  "x.flac", "x.mp3", "x.ogg", "x.oga",  "x.opus",
                                 "x.aiff", "x.aif",  "x.caf", "x.w64", "x.rf64", "x.au"};
  AudioOptions options;
  options.channel = AudioOptions::kStack;
  try {
    const Audio audio = data::read_audio_bytes({reinterpret_cast<const char*>(data), size},
                                               kNames[size % kNames.size()], options);
    if (audio.samples.empty() || audio.sample_rate <= 0 || audio.stacked < 1) std::abort();
    if (audio.samples.size() % static_cast<std::size_t>(audio.stacked) != 0) std::abort();
    for (const float sample : audio.samples)
      if (!std::isfinite(sample)) std::abort();
  } catch (const DataError&) {
  }
  return 0;
}
