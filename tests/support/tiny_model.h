#pragma once
// The smallest model and checkpoint, for tests that damage them.

#include <cmath>
#include <string>

#include "base/json/json.h"
#include "learn/train/files/checkpoint.h"
#include "learn/train/files/model_file.h"

namespace segfuse::test {

inline learn::TrainedModel tiny_model(learn::HeadKind head = learn::HeadKind::kSemiMarkov) {
  learn::TrainedModel model;
  model.config = learn::parse_train_config(
      "[features]\nkind = \"log_mel\"\nn_mels = 4\n[model]\nwidth = 2\nkernel = 3\n"
      "dilations = [1]\nhead = \"" +
          learn::name_of(head) + "\"\n",
      "tiny.toml");
  model.config.data.path = "data";
  model.labels = Alphabet({"a", "b", "c"});
  learn::ModelConfig& m = model.config.model;
  m.features = 4;
  m.classes = 3;
  m.max_duration = 5;
  model.normalisation = {{0, 0, 0, 0}, {1, 1, 1, 1}};
  model.duration_limit =
      Tensor::zeros(DType::kF32, head == learn::HeadKind::kSemiMarkov ? Shape{5, 3} : Shape{0});
  const learn::Segmenter segmenter(m);
  for (const nn::ParameterSpec& spec : segmenter.parameters())
    model.parameters.push_back(nn::initial_value(spec, 1));
  return model;
}

/// Those of a file whose damage is to be found by what reads it, not by its checksum.
inline std::string without_checksum(std::string bytes) {
  const std::string key = "\"crc32\"";
  if (const std::size_t at = bytes.find(key); at != std::string::npos)
    bytes.replace(at, key.size(), "\"crc-0\"");
  return bytes;
}

inline learn::TensorFile tiny_model_file() { return learn::file_of(tiny_model()); }

inline const learn::Recipe kTinyRecipe = {{"features.kind", "log_mel"}, {"label 0", "a"}};

inline const std::vector<nn::ParameterSpec>& tiny_specs() {
  static const std::vector<nn::ParameterSpec> specs = {{"w", {2, 3}, {}, false},
                                                       {"b", {3}, {}, false}};
  return specs;
}

inline learn::TrainingState tiny_state() {
  learn::TrainingState s;
  for (const nn::ParameterSpec& spec : tiny_specs())
    for (auto* group : {&s.parameters, &s.first_moment, &s.second_moment, &s.average, &s.best})
      group->push_back(Tensor::full(DType::kF32, spec.shape, 2));
  s.step = 12;
  s.epoch = 2;
  s.batch = 3;
  s.best_epoch = 1;
  s.best_score = 0.25;
  s.history = {{1, 3, 2, 0.25, 1e-3, 1, 1, 0.25},
               {2, 2, std::nan(""), std::nan(""), 1e-3, 1, 1, std::nan("")}};
  return s;
}

inline learn::TensorFile tiny_checkpoint_file() {
  return learn::file_of(tiny_state(), tiny_specs(), kTinyRecipe);
}

}  // namespace segfuse::test
