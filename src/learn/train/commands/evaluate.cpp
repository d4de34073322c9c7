#include <fmt/core.h>

#include "base/os/file.h"
#include "learn/train/commands/experiment.h"
#include "learn/train/decode/loaded_model.h"
#include "learn/train/files/run_folder.h"
#include "learn/train/report/report_builder.h"
#include "learn/train/report/report_files.h"
#include "segfuse/error.h"
#include "segfuse/train.h"

namespace segfuse {

EvaluateResult evaluate(const EvaluateOptions& options) {
  if (options.allow_commands && options.data.empty())
    throw UsageError(
        "--allow-commands: without --data, the model file names the manifest, and commands of such "
        "a manifest are never run; pass --data PATH");
  learn::TrainedModel model = learn::open_model(options.model, options.channel);
  model.config.data.allow_commands = options.allow_commands;
  learn::set_evaluation(model.config, options.overrides);
  Outputs outputs(options.overwrite);
  if (!options.out.empty()) {
    if (!options.overwrite && learn::holds_run(options.out))
      throw UsageError(
          fmt::format("{}: this directory has a training, whose metrics and report would be "
                      "replaced; name another directory, or pass --overwrite",
                      options.out.string()));
    learn::announce_report(outputs, options.out);
  }
  const std::string data = options.data.empty() ? model.config.data.path : options.data;
  const learn::LabelledSet set = learn::load_labelled(model, data, options.split, options.context);
  const learn::Evaluation evaluation = learn::evaluate_model(model, set, options.context);
  const std::string split(options.split ? name_of(*options.split) : "all");
  const learn::RunFacts facts = learn::facts_of(set, split, options.context, options.command_line);
  EvaluateResult result{
      evaluation.metrics, evaluation.decode_seconds,
      learn::evaluation_json(model, set, evaluation, facts, {options.model.string(), data, split})};
  if (!options.out.empty()) {
    make_directories(options.out);
    learn::write_report(outputs, options.out,
                        learn::build_report(model, set, evaluation, facts, data, learn::today()),
                        result.json, learn::recordings_json(model, set, evaluation));
  }
  return result;
}

}  // namespace segfuse
