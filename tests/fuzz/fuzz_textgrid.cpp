#include "fuzz/labels.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  segfuse::fuzz::parse(bytes, "x.TextGrid", false);
  segfuse::fuzz::parse(bytes, "x.TextGrid", true);
  return 0;
}
