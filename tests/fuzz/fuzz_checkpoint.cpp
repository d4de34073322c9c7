// libFuzzer target: a checkpoint as a whole, and the state in its metadata by itself.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "learn/train/files/checkpoint.h"
#include "segfuse/error.h"
#include "support/tiny_model.h"

namespace {

using namespace segfuse;

void read(const learn::TensorFile& file) {
  try {
    const learn::TrainingState state =
        learn::state_of(file, "input", test::tiny_specs(), test::kTinyRecipe);
    if (state.parameters.size() != test::tiny_specs().size()) std::abort();
    if (static_cast<std::int64_t>(state.history.size()) != state.epoch) std::abort();
  } catch (const DataError&) {
  } catch (const UsageError&) {  // the checkpoint of another run
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  static const learn::TensorFile whole = test::tiny_checkpoint_file();
  try {
    read(learn::parse_safetensors(test::without_checksum(bytes), "input"));
  } catch (const DataError&) {
  }
  learn::TensorFile changed = whole;
  changed.metadata["state"] = bytes;
  read(changed);
  return 0;
}
