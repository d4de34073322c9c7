#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "segfuse/data/formats.h"
#include "segfuse/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const segfuse::Audio audio = segfuse::parse_sphere(bytes, size % 2 == 0 ? "x.sph" : "x.nist");
    if (audio.samples.empty() || audio.sample_rate <= 0) std::abort();
    for (const float sample : audio.samples)
      if (!(std::abs(sample) <= 1)) std::abort();
  } catch (const segfuse::DataError&) {
  }
  return 0;
}
