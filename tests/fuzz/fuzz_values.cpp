// libFuzzer target: recordings that are numbers, and those of evTAF, whose settings are the first
// 64 bytes here.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "learn/data/audio/parsers.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace segfuse;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const char* name : {"x.npy", "x.npz", "x.csv", "x.tsv", "x.fa", "x.fasta", "x.fna"})
    for (const char* part : {"", "a"}) {
      try {
        const Tensor values = parse_values(bytes, name, part);
        if (values.shape().size() != 2 || values.shape()[0] < 1 || values.shape()[1] < 1)
          std::abort();
        for (const float value : values.span<float>())
          if (!std::isfinite(value)) std::abort();
      } catch (const DataError&) {
      }
    }
  const std::size_t cut = std::min<std::size_t>(64, size);
  try {
    const Audio audio = data::parse_cbin(bytes.substr(cut), bytes.substr(0, cut), "x.cbin", {});
    if (audio.samples.empty() || audio.sample_rate <= 0) std::abort();
  } catch (const DataError&) {
  }
  return 0;
}
