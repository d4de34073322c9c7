#pragma once
// What is known of a kind of recording before its data is seen.

#include <string>
#include <vector>

#include "learn/folder/survey.h"

namespace segfuse::learn {

struct Preset {
  const char* name;
  const char* title;
  bool raw;            ///< samples as they are; else log-mel
  double hop_ms;       ///< at most
  double window_hops;  ///< window over hop
  double fmin, fmax;   ///< fmax 0: half the sample rate
  int n_mels;
  int deltas;
  std::vector<double> tolerances;
  int stem_kernel, kernel;
  std::vector<int> dilations;
  double dropout;
  double weight_decay;
};

/// The one for all that has none of its own, such as recordings that are not audio.
inline constexpr const char* kGeneric = "generic";

const std::vector<Preset>& presets();
/// UsageError for a name that there is none of.
const Preset& preset_named(const std::string& name);

struct PresetChoice {
  const Preset* preset;
  std::string reason;
};
/// The one that fits best, and why; `rate` is the sample rate of most recordings.
PresetChoice choose_preset(const Survey& survey, int rate);

}  // namespace segfuse::learn
