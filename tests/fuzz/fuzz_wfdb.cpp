// libFuzzer target: WFDB records. Up to a line "%%" the bytes are a header, up to the next one a
// file of signals or the header of a segment, and then annotations.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "learn/data/labels/parsers.h"
#include "learn/data/wfdb/wfdb.h"
#include "segfuse/error.h"

namespace {

using namespace segfuse;

std::string_view part(std::string_view& bytes) {
  const std::size_t end = bytes.find("%%\n");
  const std::string_view out = bytes.substr(0, end);
  bytes = end == std::string_view::npos ? "" : bytes.substr(end + 3);
  return out;
}

void read_signals(std::string_view header, std::string_view content) {
  for (const int channel : {AudioOptions::kStack, AudioOptions::kMean, 0}) {
    AudioOptions options;
    options.channel = channel;
    try {
      const Audio audio = data::parse_wfdb(
          header, "x.hea", [&](const std::string&) { return std::string(content); }, options);
      if (audio.samples.empty() || audio.sample_rate <= 0) std::abort();
      for (const float sample : audio.samples)
        if (!std::isfinite(sample)) std::abort();
    } catch (const DataError&) {
    }
  }
}

/// Whatever is accepted is in order and has a length and a label.
void read_annotations(std::string_view bytes) {
  try {
    const data::WfdbAnnotations read = data::parse_wfdb_annotations(bytes, "x.atr");
    for (data::RawTier& tier : data::wfdb_tiers(read, "atr", 250, 10, "x.atr")) {
      if (!tier.intervals || tier.raw.segments.empty()) continue;
      const Annotation whole = data::make_contiguous(std::move(tier.raw), "x.atr", "fill");
      if (whole.segments.empty() || whole.duration > 10.2) std::abort();
    }
  } catch (const DataError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string_view header = part(bytes);
  const std::string_view content = part(bytes);
  read_signals(header, content);
  read_annotations(bytes);
  read_annotations(header);
  return 0;
}
