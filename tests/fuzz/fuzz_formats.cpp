// libFuzzer target: label formats of many programs, by the names of their files.

#include "fuzz/labels.h"
#include "segfuse/data/formats.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace segfuse;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const char* name :
       {"x.eaf", "x_annot.json", "x.xml", "x.mat", "x.ctm", "x.bed", "x.gff3", "x.txt", "x.csv"}) {
    for (LabelOptions options : fuzz::all_options()) {
      fuzz::parse(bytes, name, options);
      options.recording = "a.wav";
      options.tier = "b";
      fuzz::parse(bytes, name, options);
    }
    try {
      for (const LabelTier& tier : inspect_label_text(bytes, name).tiers)
        fuzz::require(tier.segments >= 0);
    } catch (const DataError&) {
    }
  }
  return 0;
}
