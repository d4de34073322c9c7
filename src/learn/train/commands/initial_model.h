#pragma once
// The model that a training begins with (training.init): fine-tuning.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "learn/train/commands/config.h"
#include "learn/train/files/model_file.h"

namespace segfuse {
struct TrainOptions;
}

namespace segfuse::learn {

struct InitialModel {
  std::string name;  ///< as the user wrote it
  TrainedModel model;
  std::string sha256;  ///< of the file, in hexadecimal digits
};

/// The model of training.init; null where there is none. UsageError where its features (but for
/// their channel) or its encoder are not those of the configuration, with what differs.
std::shared_ptr<const InitialModel> read_initial_model(const TrainConfig& config);

/// The overrides of a training, TrainOptions::init among them.
std::vector<std::string> overrides_of(const TrainOptions& options);
/// Puts before the overrides of a training, whose configuration was made for a folder, the features
/// and the encoder of its initial model, and numbers of frames that last as long as before with
/// that model's hop; says so in the introduction. Nothing where there is no such model.
void follow_initial_model(TrainOptions& options);

/// Warns where systems that are compared begin with a model, whose head is the better off for it.
void tell_of_uneven_start(const TrainConfig& config);

/// UsageError where a training into `out` would replace its own training.init.
void keep_initial_model(const TrainConfig& config, const std::filesystem::path& out);

/// How many of the labels the model knows.
std::int64_t labels_known(const InitialModel& init, const Alphabet& labels);
/// "12 of 15 labels known from MODEL (new: a, b, c)".
std::string labels_known_text(const InitialModel& init, const Alphabet& labels);

/// Copies into the parameters of `segmenter` what the model has of them: the encoder; of the
/// emission, start and end scores the columns of labels that both have; where both have the same
/// head also the CRF's scores among those labels, of the durations that both have. Others stay.
void copy_initial_model(const InitialModel& init, const Segmenter& segmenter,
                        const Alphabet& labels, std::vector<Tensor>& parameters);

}  // namespace segfuse::learn
