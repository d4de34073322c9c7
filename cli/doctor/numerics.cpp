// segfuse doctor numerics

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "doctor/watched.h"
#include "segfuse/doctor/numerics.h"
#include "segfuse/error.h"
#include "segfuse/train.h"

namespace segfuse::cli {
namespace {

using Json = nlohmann::ordered_json;

struct NumericsArguments {
  /// A file of ours, or the words of a command.
  std::vector<std::string> words;
  std::filesystem::path file;
  bool statistics = false;
  std::vector<std::string> sizes;
  std::filesystem::path program;
  NumericsOptions options;
  TrainingNumericsOptions training;
};

Json describe(const NumericsFinding& finding) {
  Json operands = Json::array();
  for (const auto& [name, value] : finding.operands)
    operands.push_back({{"name", name}, {"value", value}});
  return {{"fault", numerics_fault_name(finding.fault)},
          {"operation", finding.operation},
          {"statement", finding.statement},
          {"position", finding.position},
          {"element", finding.element},
          {"found", finding.found},
          {"expected", finding.expected},
          {"operands", operands},
          {"group", finding.group},
          {"kernel", finding.kernel},
          {"sentence", finding.sentence},
          {"cause", finding.cause},
          {"program", finding.program}};
}

Json json_of(const NumericsReport& report) {
  Json findings = Json::array();
  for (const NumericsFinding& finding : report.findings) findings.push_back(describe(finding));
  return {{"file", report.name},     {"operations", report.operations},
          {"groups", report.groups}, {"runs", report.runs},
          {"device", report.device}, {"seconds", report.seconds},
          {"notes", report.notes},   {"findings", findings}};
}

NumericsReport examine(const NumericsArguments& arguments) {
  if (arguments.file.extension() == ".sf") {
    NumericsOptions options = arguments.options;
    options.sizes = parse_sizes(arguments.sizes);
    options.context = Context::process_default();
    return examine_numerics(arguments.file, options);
  }
  TrainingNumericsOptions options = arguments.training;
  options.config = arguments.file;
  options.runs = arguments.options.runs;
  options.context = Context::process_default();
  return examine_training_numerics(options);
}

void run_numerics(NumericsArguments& arguments, Common& common) {
  arguments.file = arguments.words.at(0);
  const std::string kind = arguments.file.extension();
  const bool ours = kind == ".sf" || kind == ".toml";
  if (ours && arguments.words.size() > 1)
    throw UsageError(fmt::format(
        "doctor numerics: '{}' and {} more; expected one program (.sf), one configuration (.toml), "
        "or a command after --",
        arguments.words[0], arguments.words.size() - 1));
  if (!ours) {
    const Json options{{"statistics", arguments.statistics}};
    run_watched({"numerics", arguments.words, options.dump()}, common);
    return;
  }
  const NumericsReport report = examine(arguments);
  if (common.json) {
    Json json = json_of(report);
    add_kernels(json, common);
    print_json(json);
  } else {
    put("{}", numerics_report_text(report));
  }
  if (report.findings.empty()) return;
  common.status = 1;
  if (arguments.program.empty()) return;
  write_outputs({{arguments.program, report.findings.front().program}}, common.overwrite);
  if (!common.json) put("  {:<10}{}\n", "program", arguments.program.string());
}

}  // namespace

void add_numerics(Command doctor, Common& common) {
  Command command = doctor.add("numerics",
                               "Find the first operation of a program that makes NaN, differs "
                               "between runs, or is inaccurate");
  auto arguments = std::make_shared<NumericsArguments>();
  command
      .option(
          "file", arguments->words,
          "One program (.sf) or configuration of a training run (.toml); or, after --, the words "
          "of a command that uses PyTorch, whose output goes to stderr")
      .required();
  command.flag("--statistics", arguments->statistics,
               "For a PyTorch command: print the largest magnitudes of each step");
  command.option("--size", arguments->sizes,
                 "Value of a symbolic size, as in B=32 (may be repeated)");
  command
      .option("--seed", arguments->options.seed,
              "Seed of the random inputs, where the file has no values")
      .shows_default();
  command.option("--runs", arguments->options.runs, "How often to run each group of operations")
      .shows_default();
  command.option("--write", arguments->program,
                 "Write the smallest program that shows the first finding to this file (.sf)");
  TrainingNumericsOptions& training = arguments->training;
  command.option("--data", training.data, "For a training run: manifest or directory");
  add_allow_commands(command, training.allow_commands);
  command.option("--set", training.overrides, "For a training run: override one setting")
      .takes_one_at_a_time();
  command.option(
      "--model", training.model,
      "For a training run: use the parameters of this model instead of initial parameters");
  command
      .option("--sequences", training.sequences,
              "For a training run: number of recordings of the first batch to use; 0: all")
      .shows_default();
  command
      .option("--frames", training.frames,
              "For a training run: number of frames of each recording to use; 0: all")
      .shows_default();
  command.footer(
      "\nExamples:\n  segfuse doctor numerics examples/layer_norm.sf --size B=4\n"
      "  segfuse doctor numerics examples/ecg.toml --data ludb_lead_ii --model out/ecg\n"
      "  segfuse doctor numerics -- python train.py");
  command.runs([arguments, &common] { run_numerics(*arguments, common); });
}

}  // namespace segfuse::cli
