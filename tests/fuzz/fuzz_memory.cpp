// libFuzzer target: memory records of all kinds. What is accepted is reported, and comes back the
// same from both of our own formats.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "doctor/record.h"
#include "segfuse/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace segfuse;
  try {
    const doctor::MemoryRecord record =
        doctor::parse_record({reinterpret_cast<const char*>(data), size}, "input");
    const std::string text = doctor::to_json(record);
    if (doctor::to_json(doctor::parse_record(text, "again")) != text) std::abort();
    const std::string trace = doctor::to_chrome_trace(record);
    if (doctor::to_json(doctor::parse_record(trace, "trace")) != text) std::abort();
  } catch (const DataError&) {
  }
  return 0;
}
