// libFuzzer target: a model file as a whole, and each text in its metadata by itself. What is read
// has to have the sizes that its own configuration asks for; what is wrong is a DataError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "learn/train/files/model_file.h"
#include "learn/train/files/safetensors.h"
#include "segfuse/error.h"
#include "support/tiny_model.h"

namespace {

using namespace segfuse;

void read(const learn::TensorFile& file) {
  try {
    const learn::TrainedModel model = learn::model_of(file, "input");
    const learn::ModelConfig& m = model.config.model;
    const bool semi = m.head == learn::HeadKind::kSemiMarkov;
    if (semi && model.duration_limit.size() != m.max_duration * m.classes) std::abort();
    if (static_cast<std::int64_t>(model.normalisation.mean.size()) != m.features) std::abort();
  } catch (const DataError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  static const learn::TensorFile whole = test::tiny_model_file();
  try {
    read(learn::parse_safetensors(test::without_checksum(bytes), "input"));
  } catch (const DataError&) {
  }
  for (const char* key : {"model", "config"}) {
    learn::TensorFile changed = whole;
    changed.metadata[key] = bytes;
    read(changed);
  }
  return 0;
}
