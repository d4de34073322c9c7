#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "segfuse/data.h"

namespace segfuse::cli {

void add_synth(Command app, Common& common) {
  struct Arguments {
    std::filesystem::path out;
    std::int64_t labels = 6;
    std::int64_t train = 80;
    std::int64_t test = 20;
    std::uint64_t seed = 1;
    double snr_db = 10;
    double shape = 0;
    bool alike = false;
  };
  auto a = std::make_shared<Arguments>();
  Command command = app.add("synth", "Write recordings sampled from a known semi-Markov model");
  command.option("out", a->out, "Directory to write to").required();
  command.option("--labels", a->labels, "Number of labels").shows_default();
  command.option("--train", a->train, "Number of training recordings").shows_default();
  command.option("--test", a->test, "Number of test recordings").shows_default();
  command.option("--seed", a->seed, "Seed of the model and the samples").shows_default();
  command.option("--snr", a->snr_db, "Signal-to-noise ratio in dB").shows_default();
  command.option("--shape", a->shape,
                 "Shape of the durations of all labels: 1 is geometric, larger is more regular; "
                 "default: random, 2 to 12");
  command.flag(
      "--alike", a->alike,
      "Make pairs of labels that sound the same, but whose second label lasts three times as long "
      "on average");
  command.footer(
      "\nExample:\n  segfuse synth out/synth && segfuse train examples/synth.toml --data out/synth "
      "--out out/run");
  command.runs([a, &common] {
    SynthConfig config = random_synth_config(a->labels, a->seed, a->alike);
    if (a->shape != 0) config.shape.assign(config.labels.size(), a->shape);
    config.train = a->train;
    config.test = a->test;
    config.snr_db = a->snr_db;
    write_synthetic_corpus(config, a->out, common.overwrite);
    if (common.json) {
      print_json({{"out", a->out.string()}}, -1);
    } else {
      put("wrote {} training and {} test recordings to {}; the true model is in truth.json\n",
          a->train, a->test, a->out.string());
    }
  });
}

}  // namespace segfuse::cli
