#include "fuzz/labels.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const segfuse::LabelOptions& options : segfuse::fuzz::all_options())
    segfuse::fuzz::parse(bytes, "x.TextGrid", options);
  return 0;
}
