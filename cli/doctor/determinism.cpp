// segfuse doctor determinism

#include <memory>
#include <nlohmann/json.hpp>

#include "doctor/watched.h"

namespace segfuse::cli {

void add_doctor_determinism(Command doctor, Common& common) {
  Command command = doctor.add(
      "determinism",
      "Find the first operation of a PyTorch program whose result differs between two runs");
  struct Arguments {
    std::vector<std::string> command;
    std::string vary;
    std::string seed;
  };
  auto arguments = std::make_shared<Arguments>();
  command
      .option("command", arguments->command,
              "The command, after --. It runs twice; its output goes to stderr")
      .required();
  command
      .option("--vary", arguments->vary,
              "What to change in the second run: threads (use one thread), launch (wait for each "
              "GPU kernel) or hash (use another hash seed, so that sets of strings have another "
              "order)")
      .is_one_of({"threads", "launch", "hash"});
  command.option("--seed", arguments->seed,
                 "Seed for the random numbers of Python, NumPy and PyTorch in both runs");
  command.footer("\nExample:\n  segfuse doctor determinism -- python train.py --steps 20");
  command.runs([arguments, &common] {
    nlohmann::ordered_json options = nlohmann::ordered_json::object();
    if (!arguments->seed.empty()) options["seed"] = arguments->seed;
    if (!arguments->vary.empty()) options["vary"] = arguments->vary;
    run_watched({"determinism", arguments->command, options.dump(), arguments->vary}, common);
  });
}

}  // namespace segfuse::cli
