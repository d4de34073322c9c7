// libFuzzer target: configurations, and indexes of models.

#include <cstddef>
#include <cstdint>
#include <string>

#include "learn/pretrained/index.h"
#include "learn/train/commands/config.h"
#include "segfuse/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace segfuse;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const learn::TrainConfig config = learn::parse_train_config(text, "input.toml");
    if (config.text != text || config.tolerances.empty()) std::abort();
  } catch (const DataError&) {
  }
  try {
    for (const PretrainedModel& model : learn::parse_model_index(text, "index.toml", "models"))
      if (model.path != "models/" + model.name + "/model.safetensors" || model.labels.empty())
        std::abort();
  } catch (const DataError&) {
  }
  return 0;
}
