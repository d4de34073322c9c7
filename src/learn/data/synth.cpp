#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <set>

#include "base/json/json.h"
#include "base/os/file.h"
#include "base/outputs.h"
#include "base/rng.h"
#include "learn/data/audio/parsers.h"
#include "learn/data/text.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;
using Weights = std::vector<double>;

constexpr std::size_t kFormants = 3;
constexpr double kAmplitudes[kFormants] = {0.12, 0.08, 0.05};
constexpr std::size_t kMaxDuration = 100'000;  // frames
// Streams of random numbers under one seed; recordings take 2 i and 2 i + 1 behind the first.
constexpr std::uint64_t kVoiceStream = 0x10000000000ULL;

void require(bool condition, std::string_view what) {
  if (!condition) throw UsageError(fmt::format("synthetic corpus: {}", what));
}

bool all_non_negative(const Weights& weights) {
  return std::all_of(weights.begin(), weights.end(),
                     [](double w) { return std::isfinite(w) && w >= 0; });
}

double sum_of(const Weights& weights) {
  return std::accumulate(weights.begin(), weights.end(), 0.0);
}

std::int64_t hop_samples(const SynthConfig& config) {
  return std::llround(config.sample_rate * config.hop_ms / 1000);
}

void check_durations(const SynthConfig& config) {
  const std::size_t labels = config.labels.size();
  if (!config.durations.empty()) {
    require(config.durations.size() == labels, "durations needs one table a label");
    for (const Weights& table : config.durations)
      require(all_non_negative(table) && sum_of(table) > 0,
              "a duration table needs weights that are not negative and not all zero");
    return;
  }
  require(config.mean_frames.size() == labels && config.shape.size() == labels,
          "mean_frames and shape need one number a label");
  for (std::size_t c = 0; c < labels; ++c)
    require(config.mean_frames[c] >= 1 && config.mean_frames[c] < 1e4 && config.shape[c] > 0,
            "mean_frames must be 1 to 10000 and shape above 0");
}

void check_synth(const SynthConfig& config) {
  const std::size_t labels = config.labels.size();
  require(labels >= 2, "at least two labels are needed");
  const Alphabet checked(config.labels);
  require(config.initial.size() == labels && config.transition.size() == labels,
          "initial and transition need one entry a label");
  require(all_non_negative(config.initial) && sum_of(config.initial) > 0,
          "initial needs weights that are not negative and not all zero");
  for (std::size_t c = 0; c < labels; ++c) {
    const Weights& row = config.transition[c];
    require(row.size() == labels && all_non_negative(row) && sum_of(row) > 0,
            "each row of transition needs one weight a label, not negative and not all zero");
    require(row[c] == 0, "the diagonal of transition must be zero: a segment ends by changing");
  }
  check_durations(config);
  require(config.sounds.empty() || config.sounds.size() == labels,
          "sounds needs one label for each");
  require(std::ranges::all_of(config.sounds,
                              [&](std::int64_t label) {
                                return label >= 0 && label < static_cast<std::int64_t>(labels);
                              }),
          "sounds has to name labels");
  require(config.sample_rate >= 100 && config.hop_ms > 0 &&
              std::abs(config.sample_rate * config.hop_ms / 1000 -
                       static_cast<double>(hop_samples(config))) < 1e-9 &&
              hop_samples(config) >= 1,
          "hop_ms must be a whole number of samples");
  require(config.min_frames >= 1 && config.max_frames >= config.min_frames,
          "min_frames must be at least 1 and max_frames no less");
  require(config.train >= 0 && config.test >= 0 && config.train + config.test >= 1,
          "train and test must not be negative nor both zero");
  require(config.coarticulation_ms >= 0, "coarticulation_ms must not be negative");
}

/// Probabilities of 1 + NB(shape, mean - 1) = 1, 2, ...; the tail beyond 1e-12 is cut.
Weights negative_binomial(double mean, double shape) {
  const double stop = shape / (shape + mean - 1);
  const double go = std::log1p(-stop);  // -infinity for mean 1
  Weights out;
  double total = 0;
  for (std::size_t k = 0; k < kMaxDuration && total < 1 - 1e-12; ++k) {
    const auto count = static_cast<double>(k);
    const double log_mass = std::lgamma(count + shape) - std::lgamma(shape) -
                            std::lgamma(count + 1) + shape * std::log(stop) +
                            (k == 0 ? 0 : count * go);
    out.push_back(std::exp(log_mass));
    total += out.back();
    if (out.back() < 1e-15 && count > mean) break;
  }
  return out;
}

Weights normalised(Weights weights) {
  const double total = sum_of(weights);
  for (double& weight : weights) weight /= total;
  return weights;
}

std::vector<Weights> duration_tables(const SynthConfig& config) {
  if (!config.durations.empty()) return config.durations;
  std::vector<Weights> out;
  for (std::size_t c = 0; c < config.labels.size(); ++c)
    out.push_back(negative_binomial(config.mean_frames[c], config.shape[c]));
  return out;
}

/// How a label sounds.
struct Voice {
  double hertz[kFormants] = {};
  double noise = 0;
};

/// Formants in three bands of equal width on a logarithmic scale; labels are spread over each band
/// in an order of its own, so that no two sound alike.
std::vector<Voice> voices_of(const SynthConfig& config) {
  const std::size_t labels = config.labels.size();
  std::vector<Voice> voices(labels);
  Rng rng(config.seed, kVoiceStream);
  const double low = 0.02 * config.sample_rate;
  const double band = std::log(0.45 / 0.02) / kFormants;
  for (std::size_t k = 0; k < kFormants; ++k) {
    std::vector<std::size_t> order(labels);
    std::iota(order.begin(), order.end(), std::size_t{0});
    rng.shuffle(order);
    for (std::size_t c = 0; c < labels; ++c) {
      const double place = (static_cast<double>(order[c]) + 0.5) / static_cast<double>(labels);
      voices[c].hertz[k] = low * std::exp(band * (static_cast<double>(k) + place));
    }
  }
  for (Voice& voice : voices) voice.noise = 0.05 * rng.uniform();
  if (config.sounds.empty()) return voices;
  std::vector<Voice> shared;
  for (const std::int64_t label : config.sounds)
    shared.push_back(voices[static_cast<std::size_t>(label)]);
  return shared;
}

/// Mixture of a sample's voice between two labels: share of the later one.
double glide(double distance, double width) {
  if (width <= 0) return distance < 0 ? 0 : 1;
  const double x = std::clamp(distance / width + 0.5, 0.0, 1.0);
  return 0.5 - 0.5 * std::cos(std::numbers::pi * x);
}

std::vector<float> render(const SynthConfig& config, const std::vector<Voice>& voices,
                          const std::vector<FrameSegment>& segments, Rng rng) {
  const double width = config.coarticulation_ms * config.sample_rate / 1000;
  const double noise_scale = std::pow(10, -config.snr_db / 20);
  const std::int64_t hop = hop_samples(config);
  std::vector<float> out;
  double phase[kFormants] = {};
  double power = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const std::int64_t begin = segments[s].start * hop;
    const std::int64_t end = begin + segments[s].duration * hop;
    for (std::int64_t n = begin; n < end; ++n) {
      // The nearer edge decides which neighbour mixes in.
      const bool to_next = 2 * n >= begin + end;
      const std::size_t other = to_next ? std::min(s + 1, segments.size() - 1) : s - (s > 0);
      const double at = static_cast<double>(n);
      const double share = to_next ? glide(at - static_cast<double>(end), width)
                                   : 1 - glide(at - static_cast<double>(begin), width);
      const Voice& mine = voices[static_cast<std::size_t>(segments[s].label)];
      const Voice& near = voices[static_cast<std::size_t>(segments[other].label)];
      double value = (mine.noise + share * (near.noise - mine.noise)) * rng.normal();
      for (std::size_t k = 0; k < kFormants; ++k) {
        const double hertz = mine.hertz[k] + share * (near.hertz[k] - mine.hertz[k]);
        phase[k] = std::fmod(phase[k] + 2 * std::numbers::pi * hertz / config.sample_rate,
                             2 * std::numbers::pi);
        value += kAmplitudes[k] * std::sin(phase[k]);
      }
      power += value * value;
      out.push_back(static_cast<float>(value));
    }
  }
  const double level = noise_scale * std::sqrt(power / static_cast<double>(out.size()));
  for (float& sample : out) sample += static_cast<float>(level * rng.normal());
  return out;
}

std::string truth_json(const SynthConfig& config) {
  Json out;
  out["labels"] = config.labels;
  out["initial"] = normalised(config.initial);
  for (const Weights& row : config.transition) out["transition"].push_back(normalised(row));
  for (const Weights& table : duration_tables(config))
    out["durations"].push_back(normalised(table));
  if (config.durations.empty()) {
    out["mean_frames"] = config.mean_frames;
    out["shape"] = config.shape;
  }
  if (!config.sounds.empty()) out["sounds"] = config.sounds;
  for (const Voice& voice : voices_of(config)) {
    out["formants_hz"].push_back(std::vector<double>(voice.hertz, voice.hertz + kFormants));
    out["noise"].push_back(voice.noise);
  }
  out["sample_rate"] = config.sample_rate;
  out["hop_ms"] = config.hop_ms;
  out["min_frames"] = config.min_frames;
  out["max_frames"] = config.max_frames;
  out["snr_db"] = config.snr_db;
  out["coarticulation_ms"] = config.coarticulation_ms;
  out["train"] = config.train;
  out["test"] = config.test;
  out["seed"] = config.seed;
  return json_text(out, 2) + "\n";
}

}  // namespace

namespace {

void pair_labels(SynthConfig& config) {
  for (std::size_t c = 0; c < config.labels.size(); ++c) {
    const bool is_second = c % 2 == 1;
    config.sounds.push_back(static_cast<std::int64_t>(is_second ? c - 1 : c));
    config.mean_frames[c] =
        is_second ? 3 * config.mean_frames[c - 1] : 4 + 0.4 * (config.mean_frames[c] - 4);
  }
}

}  // namespace

SynthConfig random_synth_config(std::int64_t labels, std::uint64_t seed, bool alike) {
  require(labels >= 2 && labels <= 10'000, "2 to 10000 labels can be made");
  SynthConfig config;
  config.seed = seed;
  Rng rng(seed, kVoiceStream + 1);
  const auto count = static_cast<std::size_t>(labels);
  for (std::size_t c = 0; c < count; ++c) {
    config.labels.push_back(fmt::format("s{:02}", c));
    config.initial.push_back(1);
    Weights row(count);
    for (std::size_t d = 0; d < count; ++d)
      if (d != c) row[d] = -std::log1p(-rng.uniform()) + 1e-3;  // flat over the simplex
    config.transition.push_back(row);
    config.mean_frames.push_back(4 + 20 * rng.uniform());
    config.shape.push_back(2 + 10 * rng.uniform());
  }
  if (alike) pair_labels(config);
  return config;
}

std::vector<FrameSegment> sample_segmentation(const SynthConfig& config, std::int64_t index) {
  check_synth(config);
  Rng rng(config.seed, 2 * static_cast<std::uint64_t>(index));
  const auto spread = static_cast<std::uint64_t>(config.max_frames - config.min_frames);
  const std::int64_t frames = config.min_frames + static_cast<std::int64_t>(rng.below(spread + 1));
  const std::vector<Weights> tables = duration_tables(config);
  std::vector<FrameSegment> out;
  std::size_t label = rng.categorical(config.initial);
  for (std::int64_t at = 0; at < frames;) {
    const auto drawn = static_cast<std::int64_t>(rng.categorical(tables[label])) + 1;
    const std::int64_t duration = std::min(drawn, frames - at);
    out.push_back({at, duration, static_cast<std::int32_t>(label)});
    at += duration;
    label = rng.categorical(config.transition[label]);
  }
  return out;
}

namespace {

/// Recordings of an earlier corpus that would stay would be trained on with those of this one.
void refuse_others(const fs::path& folder, std::int64_t recordings) {
  std::set<std::string> ours;
  for (std::int64_t i = 0; i < recordings; ++i) ours.insert(fmt::format("r{:05}.wav", i));
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path& path = entry->path();
    if (is_audio_file(path) && !ours.contains(path.filename().string()))
      throw UsageError(
          fmt::format("{} is not a recording of this corpus, but trainings would read it as one; "
                      "remove it, or name another directory",
                      path.string()));
  }
}

}  // namespace

void write_synthetic_corpus(const SynthConfig& config, const fs::path& directory, bool overwrite) {
  check_synth(config);
  const auto stem_of = [&](std::int64_t i) {
    const bool train = i < config.train;
    return (directory / (train ? "train" : "test") /
            fmt::format("r{:05}", train ? i : i - config.train))
        .string();
  };
  Outputs outputs(overwrite, ".segfuse-corpus");
  for (std::int64_t i = 0; i < config.train + config.test; ++i)
    for (const char* extension : {".wav", ".phn"})
      outputs.announce(stem_of(i) + extension, "the corpus");
  outputs.announce(directory / "truth.json", "the corpus");
  outputs.check();
  refuse_others(directory / "train", config.train);
  refuse_others(directory / "test", config.test);
  for (const char* split : {"train", "test"}) make_directories(directory / split);
  const Alphabet alphabet(config.labels);
  const std::vector<Voice> voices = voices_of(config);
  LabelOutput output;
  output.format = LabelFormat::kPhn;
  output.sample_rate = config.sample_rate;
  for (std::int64_t i = 0; i < config.train + config.test; ++i) {
    const std::vector<FrameSegment> segments = sample_segmentation(config, i);
    const Rng rng(config.seed, 2 * static_cast<std::uint64_t>(i) + 1);
    const std::string wav = stem_of(i) + ".wav";
    outputs.write(wav,
                  data::format_wav(wav, render(config, voices, segments, rng), config.sample_rate));
    outputs.write(
        stem_of(i) + ".phn",
        format_labels(to_annotation(segments, alphabet, config.hop_ms / 1000, 0), output));
  }
  outputs.write(directory / "truth.json", truth_json(config));
}

}  // namespace segfuse
