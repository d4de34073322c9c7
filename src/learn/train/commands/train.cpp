#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <span>

#include "learn/train/commands/experiment.h"
#include "learn/train/commands/initial_model.h"
#include "learn/train/files/run_folder.h"
#include "learn/train/loop/company.h"
#include "learn/train/loop/watch.h"
#include "learn/train/report/report_builder.h"
#include "learn/train/report/report_files.h"
#include "segfuse/error.h"
#include "segfuse/model.h"
#include "segfuse/train.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The folders of the heads, the first of them `out` itself.
using Folders = std::vector<std::unique_ptr<learn::RunFolder>>;
Folders open_folders(const TrainOptions& options, const std::vector<learn::HeadKind>& heads) {
  Folders folders;
  for (const learn::HeadKind head : heads) {
    const fs::path out = folders.empty() ? options.out : options.out / name_of(head);
    folders.push_back(std::make_unique<learn::RunFolder>(out));
    folders.back()->check_free(folders.back()->continues(options.resume), options.overwrite);
  }
  return folders;
}

std::vector<learn::HeadKind> heads_of(const TrainOptions& options, learn::HeadKind own) {
  std::vector<learn::HeadKind> heads{own};
  if (options.compare)
    for (const auto head :
         {learn::HeadKind::kSemiMarkov, learn::HeadKind::kLinearChain, learn::HeadKind::kSoftmax})
      if (head != own) heads.push_back(head);
  return heads;
}

/// What a training with `compare` left in the folder would stand beside the results of another
/// model, and be taken for its comparison.
void check_compared(const TrainOptions& options, const std::vector<learn::HeadKind>& heads) {
  if (options.resume) return;
  for (const auto head :
       {learn::HeadKind::kSemiMarkov, learn::HeadKind::kLinearChain, learn::HeadKind::kSoftmax}) {
    const fs::path folder = options.out / name_of(head);
    const bool replaced = heads.size() > 1 && head != heads[0];
    if (!replaced && learn::holds_run(folder))
      throw UsageError(fmt::format(
          "{}: this directory has the results of an earlier comparison, which this training would "
          "not replace; remove it, pass --compare, or name another directory with --out",
          folder.string()));
  }
}

/// None of the folders may hold the model that the training begins with.
void keep_initial_models(const learn::TrainConfig& config, const TrainOptions& options,
                         const std::vector<learn::HeadKind>& heads) {
  learn::keep_initial_model(config, options.out);
  for (const learn::HeadKind head : heads)
    learn::keep_initial_model(config, options.out / name_of(head));
}

/// The configuration with everything that wins over it.
learn::TrainConfig configured(const TrainOptions& options) {
  learn::TrainConfig config =
      options.config_text.empty()
          ? learn::read_train_config(options.config, learn::overrides_of(options))
          : learn::parse_train_config(
                options.config_text,
                options.config.empty() ? "the configuration" : options.config.string(),
                learn::overrides_of(options));
  config.data.allow_commands = options.allow_commands;
  if (!options.data.empty()) learn::set_data_path(config, options.data);
  if (options.recordings.empty()) return config;
  if (!options.data.empty())
    throw UsageError(
        fmt::format("two places for the data: '{}' and recordings in memory", options.data));
  if (!config.data.path.empty())
    throw UsageError(fmt::format(
        "two places for the data: data.path is '{}', and recordings in memory were given; leave "
        "one of them out",
        config.data.path));
  if (!config.data.group.empty())
    throw UsageError(
        "data.group is for recordings in files; leave it out, and give each recording in memory "
        "its group");
  config.data.held = options.recordings;
  learn::set_data_path(config, "");
  return config;
}

learn::TrainConfig read_config(const TrainOptions& options) {
  learn::TrainConfig config = configured(options);
  if (options.out.empty()) throw UsageError("no output directory was given; pass --out DIR");
  if (!(options.checkpoint_minutes >= 0))
    throw UsageError(fmt::format("--checkpoint-every is {}; expected a number of minutes from 0 on",
                                 options.checkpoint_minutes));
  if (!(options.rank_timeout >= 0))
    throw UsageError(fmt::format("--comm-timeout is {}; expected a number of seconds from 0 on",
                                 options.rank_timeout));
  return config;
}

learn::TrainerOptions trainer_options(const TrainOptions& options,
                                      const learn::RankContext& ranks) {
  learn::TrainerOptions trainer;
  // Ranks decide it alike, and the first one knows whose the checkpoint is.
  trainer.resume = learn::may_continue(options.resume);
  trainer.checkpoint_seconds = 60 * options.checkpoint_minutes;
  trainer.quiet = options.context.options().get(options::kQuiet);
  trainer.execution = engine::executable_options(options.context);
  trainer.group = ranks.group;
  trainer.watch = ranks.watch;
  trainer.comm = options.comm;
  trainer.name_offender = options.context.options().get(options::kCheckNumerics) != "off";
  if (options.reference) trainer.execution.backend = "reference";
  return trainer;
}

/// Whether the introduction is the card of the folder that is trained on.
bool shows_card(const TrainOptions& options) {
  return !options.config_text.empty() && !options.introduction.empty() &&
         std::ranges::none_of(options.overrides, [](const std::string& override) {
           return override.starts_with("data.");
         });
}

/// On the disk that the results go to, which takes more than a folder for temporary files that may
/// itself be memory; but other ranks may run on machines without that folder.
fs::path scratch_folder(const TrainOptions& options) {
  std::error_code unknown;
  return fs::is_directory(options.out, unknown) ? options.out : fs::temp_directory_path();
}

/// One rank's part. Only the leading one writes to the folder, and has a result.
TrainResult train_as(TrainOptions options, const learn::RankContext& ranks) {
  comm::Group* const group = ranks.group;
  const double begin = now();
  const bool leads = learn::rank_of(group) == 0;
  learn::TrainConfig config;
  std::vector<learn::HeadKind> heads;
  Folders folders;
  Outputs outputs(options.overwrite);
  learn::agree(group, [&] {
    config = read_config(options);
    options.context = learn::context_of(ranks, options.context);
    if (options.encoder && !config.training.init.empty())
      throw UsageError(
          fmt::format("two sources of the encoder's initial weights: training.init is '{}', and an "
                      "encoder was given; leave one of them out",
                      config.training.init));
    if (options.encoder) learn::prepare_for_encoder(config);
    config.data.card_said_it = shows_card(options);
    heads = heads_of(options, config.model.head);
    if (!leads) return;
    check_compared(options, heads);
    if (options.compare) learn::tell_of_uneven_start(config);
    keep_initial_models(config, options, heads);
    folders = open_folders(options, heads);  // all of them, before the first one trains
    learn::announce_report(outputs, options.out);
    learn::introduce(options.introduction);
  });
  if (ranks.watch != nullptr) {
    ranks.watch->publish(options.out);
    ranks.watch->report(comm::meet::Phase::kReadingData, 0);
  }
  learn::choose_shards(config, leads ? folders[0]->checkpoint() : fs::path(),
                       leads && folders[0]->continues(options.resume), group);
  learn::Corpus corpus;
  learn::agree(group, [&] {
    corpus = learn::load_corpus(config, scratch_folder(options), options.context);
    if (options.encoder)
      learn::set_encoder(
          config, options.encoder(std::ssize(corpus.normalisation.mean), corpus.labels.labels()));
  });

  std::vector<learn::System> systems;
  learn::TrainerOptions trainer = trainer_options(options, ranks);
  for (const learn::HeadKind head : heads) {
    if (leads) {
      const learn::RunFolder& folder = *folders[systems.size()];
      trainer.checkpoint = folder.checkpoint();
      trainer.starts_anew = !folder.continues(options.resume);
    }
    trainer.name = "training " + name_of(head);
    learn::Corpus copy = corpus;  // heads cut the gold segments differently
    systems.push_back(learn::run_system(config, head, copy, trainer));
    if (!leads) continue;
    const learn::RunFolder& folder = *folders[systems.size() - 1];
    if (!options.resume) folder.keep_model();
    learn::write_model(folder.model(), systems.back().model);
  }
  if (options.compare) learn::add_cleaned(config, corpus, trainer, systems);
  TrainResult result;
  result.rank = learn::rank_of(group);
  result.measured_on = corpus.test.sequences.empty() ? Split::kDev : Split::kTest;
  result.seconds = now() - begin;
  if (!leads) return result;
  const learn::RunFacts facts =
      learn::facts_of(corpus, options.context, options.command_line, result.seconds);
  result.json = learn::metrics_json(config, corpus, systems, facts);
  learn::write_report(outputs, options.out,
                      learn::build_report(config, corpus, systems, facts, learn::today()),
                      result.json, learn::recordings_json(corpus, systems));
  for (const learn::System& system : systems)
    result.systems.push_back({system.name, system.evaluation.metrics, system.parameter_count,
                              system.outcome.best_epoch, system.seconds,
                              system.evaluation.decode_seconds});
  return result;
}

}  // namespace

TrainResult train(const TrainOptions& options) {
  TrainResult result;
  learn::run_on_ranks({options.comm, options.rank_timeout, options.min_ranks, options.compare},
                      [&](const learn::RankContext& ranks) { result = train_as(options, ranks); });
  return result;
}

std::string effective_configuration(const TrainOptions& options) {
  return learn::settings_text(configured(options));
}

}  // namespace segfuse
