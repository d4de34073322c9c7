#pragma once
// What a training run is made of, so that a checkpoint of another one is recognised and named.

#include <string>
#include <utility>
#include <vector>

#include "base/json/json.h"
#include "learn/train/commands/config.h"
#include "learn/train/loop/corpus.h"

namespace segfuse::learn {

/// Names and values, in order. Two runs with equal recipes give the same bits.
using Recipe = std::vector<std::pair<std::string, std::string>>;

/// The settings, the labels in their order and the folding map of the metrics. The title, the
/// data's path and that of the initial model are left out: what lies there counts (add_data,
/// InitialModel::hash), not where. The number of epochs counts: the learning rate of every step
/// depends on it. What is as it was before there was a setting for it is not named (one shard a
/// step, no folds, no groups, the whole of the training set, no augmentation, an encoder that is
/// not causal, a table of durations): older runs go on.
Recipe recipe_of(const TrainConfig& config, const Alphabet& labels);

/// Adds what the recordings of one set ("training") hold: their ids, hashes of their features, as
/// computed, and of their gold segments.
void add_data(Recipe& recipe, const std::string& set, const std::vector<Sequence>& sequences);

/// The first few entries that are not the same, as "features.kind: log_mel then, mfcc now"; empty
/// when there are none.
std::string differences(const Recipe& then, const Recipe& now);

/// An object of strings, as it stands in checkpoints and models.
Json recipe_json(const Recipe& recipe);
/// DataError where that is not one.
Recipe recipe_from_json(const JsonPlace& json);

}  // namespace segfuse::learn
