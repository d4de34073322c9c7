// A trained model inside a program: samples in, segments with their probabilities out. Without an
// argument it trains a small model on synthetic recordings first.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "segfuse/error.h"
#include "segfuse/model.h"
#include "segfuse/train.h"

namespace fs = std::filesystem;

// A corpus from a known model, and a training of a second; returns its directory.
static fs::path trained_on_synthetic_recordings(const fs::path& folder) {
  segfuse::SynthConfig synth = segfuse::random_synth_config(4, 1);
  synth.train = 8;
  synth.test = 2;
  segfuse::write_synthetic_corpus(synth, folder / "corpus", true);
  std::ofstream(folder / "config.toml") << "[features]\nn_mels = 16\n"
                                           "[model]\nwidth = 16\nkernel = 3\ndilations = [1]\n"
                                           "[training]\nepochs = 3\nlearning_rate = 3e-3\n";
  segfuse::TrainOptions options;
  options.config = folder / "config.toml";
  options.data = folder / "corpus";
  options.out = folder / "run";
  options.overwrite = true;
  segfuse::train(options);
  return options.out;
}

int main(int argc, char** argv) try {
  const fs::path folder =
      fs::temp_directory_path() / ("segfuse_example_" + std::to_string(::getpid()));
  const bool own = argc < 3;
  const segfuse::Model model =
      segfuse::Model::load(own ? trained_on_synthetic_recordings(folder) : fs::path(argv[1]));
  const fs::path file = own ? folder / "corpus/test/r00000.wav" : fs::path(argv[2]);

  // Samples may come from anywhere; here from a file.
  const segfuse::Audio audio = segfuse::read_audio(file);
  const segfuse::Prediction found = model.decode(audio);
  for (const segfuse::PredictedSegment& segment : found.segments)
    std::printf("%8.3f %8.3f  %-8s %.3f\n", segment.start, segment.end, segment.label.c_str(),
                segment.posterior);
  if (own) fs::remove_all(folder);
  return found.segments.empty() || found.segments.back().end != audio.seconds();
} catch (const segfuse::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.exit_code());
}
