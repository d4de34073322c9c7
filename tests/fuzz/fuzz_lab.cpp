#include "fuzz/labels.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const segfuse::LabelOptions& options : segfuse::fuzz::all_options())
    for (const char* name : {"x.lab", "x.phn", "x.txt", "x.csv", "x.tsv"})
      segfuse::fuzz::parse(bytes, name, options);
  return 0;
}
