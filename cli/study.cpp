// Several trainings of one configuration: study and learncurve.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "folder.h"
#include "segfuse/error.h"
#include "segfuse/train.h"

namespace segfuse::cli {
namespace {

struct Arguments {
  StudyOptions study;
  FolderChoice folder;
  std::string shares = "0.0625,0.125,0.25,0.5,1";
};

std::vector<double> shares_of(const std::string& text) {
  std::vector<double> shares;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t comma = std::min(text.find(',', from), text.size());
    shares.push_back(
        number_of("--shares", text.substr(from, comma - from), "a share of the training set"));
    from = comma + 1;
  }
  return shares;
}

std::shared_ptr<Arguments> add_arguments(Command command) {
  auto arguments = std::make_shared<Arguments>();
  TrainOptions& training = arguments->study.training;
  command.option("config", training.config, "Folder of recordings and labels, or a TOML file")
      .required();
  command.option("--data", training.data,
                 "Manifest or directory of the data, if the argument is a TOML file");
  command.option("--out", training.out,
                 "Directory for the study and its runs; default: a new directory NAME-study "
                 "(NAME-study-2 if that exists, and so on)");
  add_folder_choice(command, arguments->folder);
  add_allow_commands(command, training.allow_commands);
  command.option("--set", training.overrides, "Override one setting of all runs")
      .takes_one_at_a_time();
  command.option("--init", training.init,
                 "Start every run from the weights of this model, as `segfuse train --init` does");
  command.option("--folds", arguments->study.folds,
                 "Cross-validate: divide the recordings into this many folds, each of which is the "
                 "test set once");
  command
      .option("--seeds", arguments->study.seeds,
              "Train with this many seeds: training.seed and the numbers after it")
      .shows_default();
  command.flag("--compare", training.compare,
               "In every run, also train the systems of `segfuse train --compare`");
  command.flag("--resume", training.resume,
               "Continue the study in --out; a finished run is only measured again");
  return arguments;
}

void run_study(Arguments& arguments, Common& common) {
  TrainOptions& training = arguments.study.training;
  training.context = Context::process_default();
  choose_out(training, "study");
  prepare(training, arguments.folder);
  training.overwrite = common.overwrite;
  training.command_line = command_line();
  const std::string json = study(arguments.study);
  if (common.json) {
    put("{}", json);
    return;
  }
  put_study(json);
  put("\nreport: {}\n", (training.out / "study.html").string());
}

}  // namespace

void add_study(Command app, Common& common) {
  Command command = app.add("study", "Train several times: folds, seeds, or a search of settings");
  const auto arguments = add_arguments(command);
  command
      .option("--search", arguments->study.search,
              "Try each of these values, as in model.width=32,64; the development set chooses")
      .takes_one_at_a_time();
  command.footer(
      "\nExamples:\n  segfuse study recordings --folds 5 --out out/folds\n"
      "  segfuse study examples/ecg.toml --data ludb_lead_ii --seeds 5 --out out/seeds\n"
      "  segfuse study recordings --search model.width=32,64 --search training.learning_rate=1e-3,"
      "3e-3");
  command.runs([arguments, &common] { run_study(*arguments, common); });
}

void add_learncurve(Command app, Common& common) {
  Command command =
      app.add("learncurve", "Show how errors decrease with the number of labelled recordings");
  const auto arguments = add_arguments(command);
  command
      .option("--shares", arguments->shares,
              "Shares of the training recordings, in rising order, separated by commas")
      .shows_default();
  command.footer("\nExample:\n  segfuse learncurve recordings --seeds 3 --out out/curve");
  command.runs([arguments, &common] {
    arguments->study.shares = shares_of(arguments->shares);
    run_study(*arguments, common);
  });
}

}  // namespace segfuse::cli
