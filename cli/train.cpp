#include "segfuse/train.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands.h"
#include "folder.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"

namespace segfuse::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSplits = "train, dev, test or all";
std::optional<Split> split_of(const std::string& word) {
  if (word == "all") return std::nullopt;
  for (const Split split : {Split::kTrain, Split::kDev, Split::kTest})
    if (word == name_of(split)) return split;
  throw UsageError(fmt::format("there is no split '{}'; use {}", word, kSplits));
}

void print(const Common& common, const std::string& metrics) {
  if (common.json && common.kernels) {
    Json all = Json::parse(metrics);
    add_kernels(all, common);
    print_json(all);
  } else if (common.json) {
    put("{}", metrics);
  } else {
    put_metrics(metrics);
  }
}

Json row_of(const DecodedFile& file) {
  Json row{{"audio", file.audio.string()}};
  if (!file.error.empty()) {
    row["error"] = file.error;
    return row;
  }
  row["labels"] = file.labels.string();
  if (file.skipped) {
    row["skipped"] = true;
    return row;
  }
  row["seconds"] = file.seconds;
  row["segments"] = file.segments;
  row["log_probability"] = file.log_probability;
  return row;
}

/// Names as they come; what could not be done stands at the end, where it is seen.
void run_decode(DecodeOptions options, const OrderOptions* orders, Common& common) {
  if (!common.json)
    options.each = [](const DecodedFile& file) {
      if (!file.error.empty() || file.skipped) return;
      put("{}  {} segments\n", file.labels.string(), file.segments);
      std::fflush(stdout);
    };
  const std::vector<DecodedFile> files = orders ? align(options, *orders) : decode(options);
  Json rows = Json::array();
  std::string undone;
  std::size_t count = 0;
  std::size_t of_memory = 0;
  std::size_t skipped = 0;
  for (const DecodedFile& file : files) {
    skipped += file.skipped;
    rows.push_back(row_of(file));
    if (file.error.empty()) continue;
    ++count;
    of_memory += file.out_of_memory;
    undone += "\n  " + terminal_line(file.error);
  }
  if (common.json && common.kernels) {
    Json all{{"files", rows}};
    add_kernels(all, common);
    rows = std::move(all);
  }
  if (common.json)
    print_json(rows);
  else if (skipped > 0)
    put("{} of {} recordings have their labels already and were skipped\n", skipped, files.size());
  if (count == 0) return;
  if (files.size() == 1)
    fmt::print(stderr, "segfuse: {}\n", terminal_line(files[0].error));
  else
    fmt::print(stderr, "segfuse: {} of {} recordings could not be {}:{}\n", count, files.size(),
               orders ? "aligned" : "decoded", undone);
  common.status = static_cast<int>(count == of_memory ? ExitCode::kDevice : ExitCode::kData);
}

}  // namespace

void add_allow_commands(Command command, bool& allow) {
  command.flag(
      "--allow-commands", allow,
      "Allow commands in the manifest in place of audio files; they are run to get the audio");
}

namespace {

/// This process's command line.
std::vector<std::string> words_of_process() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (words.empty()) throw InternalError("/proc/self/cmdline cannot be read");
  return words;
}

/// As a shell would read it.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain = "%+,-./:=@_";
  const bool plain = !word.empty() && std::ranges::all_of(word, [&](unsigned char c) {
    return std::isalnum(c) != 0 || kPlain.find(static_cast<char>(c)) != kPlain.npos;
  });
  if (plain) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// What tells ranks how the user started them.
constexpr const char* kStartedAs = "SEGFUSE_STARTED_AS";

}  // namespace

std::string command_line() {
  if (const char* line = std::getenv(kStartedAs)) return line;
  std::string line;
  for (const std::string& word : words_of_process())
    line += (line.empty() ? "" : " ") + quoted(word);
  return line;
}

namespace {

/// The command line without what is for the launcher of ranks, and with the directory that was
/// chosen where the user named none.
std::vector<std::string> command_of_rank(const std::filesystem::path& chosen_out) {
  std::vector<std::string> words = words_of_process();
  words[0] = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    if (name != "--ranks" && name != "--devices" && name != "--restarts")
      kept.push_back(words[i]);
    else if (name == words[i])
      ++i;  // its value
  }
  if (!chosen_out.empty()) kept.insert(kept.end(), {"--out", chosen_out.string()});
  return kept;
}

/// The options of the launcher of ranks.
struct Launch {
  int ranks = 0;
  std::string devices;
  int restarts = 0;
};

int start_ranks(const Launch& launch, std::vector<std::string> devices,
                const std::filesystem::path& chosen_out, const TrainOptions& options) {
  ::setenv(kStartedAs, command_line().c_str(), 1);
  RanksRequest request;
  request.command = command_of_rank(chosen_out);
  request.ranks = launch.ranks == 0 ? 1 : launch.ranks;
  request.devices = std::move(devices);
  request.min_ranks = options.min_ranks;
  request.restarts = launch.restarts;
  request.out = options.out;
  request.resume = options.resume;
  request.compare = options.compare;
  return train_on_ranks(request);
}

/// The devices, of which one is this process's where it is not to be started again.
std::vector<std::string> devices_for(const std::string& text, const Launch& launch,
                                     TrainOptions& options) {
  const std::string& device = options.context.options().get(options::kDevice);
  if (device != Options().get(options::kDevice))
    throw UsageError(fmt::format(
        "--devices {} and --device {} (or SEGFUSE_DEVICE) both say where to train; leave one out",
        text, device));
  std::vector<std::string> devices = devices_of(text);
  if (devices.size() > 1 || launch.restarts != 0) return devices;
  options.context = options.context.with(options::kDevice, devices[0]);
  return {};
}

/// The exit code of the ranks, where this process is to start some.
std::optional<int> perhaps_start_ranks(const Launch& launch,
                                       const std::filesystem::path& chosen_out,
                                       TrainOptions& options) {
  std::vector<std::string> devices;
  if (!launch.devices.empty()) devices = devices_for(launch.devices, launch, options);
  const bool alone = devices.empty() && (launch.ranks == 0 || launch.ranks == 1);
  if (alone && launch.restarts == 0) return {};
  return start_ranks(launch, std::move(devices), chosen_out, options);
}

void add_rank_options(Command& command, const std::shared_ptr<TrainOptions>& options,
                      const std::shared_ptr<Launch>& launch) {
  const Option by_number = command.option(
      "--ranks", launch->ranks,
      "Number of processes on this machine to train with; the result is bit-identical to that of "
      "one process with the same training.shards");
  command
      .option("--devices", launch->devices,
              "Train with one process for each of these GPUs: all, cuda:0-3 or cuda:0,cuda:2; the "
              "result is bit-identical to that of one GPU with the same training.shards")
      .excludes(by_number);
  command
      .option(
          "--comm", options->comm,
          "How ranks exchange gradients: peer, nccl, mpi or tcp; default: the first that can be "
          "used")
      .is_one_of({"peer", "nccl", "mpi", "tcp"});
  command
      .option("--comm-timeout", options->rank_timeout,
              "With several ranks: a rank counts as lost if it makes no progress for this many "
              "seconds while others wait for it; 0: they wait without limit")
      .shows_default();
  command.option("--min-ranks", options->min_ranks,
                 "Continue without lost ranks while at least this many are left (over TCP); the "
                 "result is bit-identical to that of an undisturbed run");
  command.option(
      "--restarts", launch->restarts,
      "After a process is lost, restart all processes from the newest checkpoint (with "
      "--min-ranks: only the lost one), at most this many times; the result is bit-identical to "
      "that of an undisturbed run");
}

}  // namespace

void add_train(Command app, Common& common) {
  auto options = std::make_shared<TrainOptions>();
  auto launch = std::make_shared<Launch>();
  Command command = app.add("train", "Train a segmenter and measure it");
  auto folder = std::make_shared<FolderChoice>();
  command.option("config", options->config, "Folder of recordings and labels, or a TOML file")
      .required();
  command.option("--data", options->data,
                 "Manifest or directory of the data, if the argument is a TOML file");
  command.option("--out", options->out,
                 "Directory for model, metrics and report; default: a new directory NAME-model "
                 "(NAME-model-2 if that exists, and so on)");
  add_folder_choice(command, *folder);
  command.flag("--print-config", folder->print,
               "Print the configuration, including overrides and defaults, and exit");
  add_allow_commands(command, options->allow_commands);
  command.option("--set", options->overrides, "Override one setting, as in training.epochs=5")
      .takes_one_at_a_time();
  command.option_to(
      "--crf-reg",
      [options](const std::string& value) {
        options->overrides.push_back("training.crf_reg=" + value);
      },
      "L2 regularisation: add half of this value times the sum of squares of the CRF's parameters "
      "to the loss");
  command.option_to(
      "--fixed-length",
      [options](const std::string& value) {
        options->overrides.push_back("training.fixed_length=" + value);
      },
      "Train on pieces of exactly this many frames; shorter recordings are left out");
  command.option(
      "--init", options->init,
      "Start from the weights of this model: a file, the directory of a training run, or "
      "a name from `segfuse models`");
  command.flag("--resume", options->resume, "Continue from the last checkpoint in --out");
  command
      .option("--checkpoint-every", options->checkpoint_minutes,
              "Minutes between two checkpoints within an epoch; 0: only at the end of an epoch")
      .shows_default();
  add_rank_options(command, options, launch);
  command.flag(
      "--compare", options->compare,
      "Also train the same encoder with a linear-chain CRF and a per-frame softmax, raw and "
      "cleaned up");
  command.flag("--reference", options->reference,
               "Run the steps in the reference interpreter, in double precision (slow)");
  command.footer(
      "\nExamples:\n  segfuse train recordings\n"
      "  segfuse train examples/ecg.toml --data ludb_lead_ii --out out/ecg");
  command.runs([options, folder, launch, &common] {
    options->context = Context::process_default();
    if (folder->print) {
      prepare(*options, *folder);
      put("{}", effective_configuration(*options));
      return;
    }
    std::filesystem::path chosen_out;
    if (options->out.empty()) {
      choose_out(*options);
      chosen_out = options->out;
    }
    if (const auto status = perhaps_start_ranks(*launch, chosen_out, *options)) {
      common.status = *status;
      return;
    }
    prepare(*options, *folder);
    options->overwrite = common.overwrite;
    options->command_line = command_line();
    const TrainResult result = train(*options);
    if (result.rank > 0) return;  // the first of the ranks speaks
    print(common, result.json);
    if (!common.json) put("\nreport: {}\n", (options->out / "report.html").string());
  });
}

void add_eval(Command app, Common& common) {
  auto options = std::make_shared<EvaluateOptions>();
  Command command = app.add("eval", "Measure a model on labelled recordings");
  command.option("model", options->model, kModel).required();
  command.option("--data", options->data, "Manifest or directory; default: what it was trained on");
  add_allow_commands(command, options->allow_commands);
  auto split = std::make_shared<std::string>("test");
  command.option("--split", *split, fmt::format("Set of recordings to measure: {}", kSplits))
      .shows_default();
  command.option("--out", options->out, "Directory for metrics.json and report.html");
  command.option("--channel", options->channel, kChannel);
  command
      .option("--set", options->overrides,
              "Override a setting of [evaluation], as in evaluation.edge_tolerance=0.05")
      .takes_one_at_a_time();
  command.footer("\nExample:\n  segfuse eval out/ecg --data ludb_lead_ii --split test --json");
  command.runs([options, split, &common] {
    options->context = Context::process_default();
    options->overwrite = common.overwrite;
    options->split = split_of(*split);
    options->command_line = command_line();
    print(common, evaluate(*options).json);
  });
}

void add_compare(Command app, Common& common) {
  auto options = std::make_shared<CompareOptions>();
  Command command = app.add("compare", "Compare two runs, with paired differences");
  command.option("first", options->first, "Directory of a training run, or --out of an evaluation")
      .required();
  command.option("second", options->second, "Directory of the other run, on the same recordings")
      .required();
  command.option("--system-a", options->first_system,
                 "System of the first run, if it was trained with --compare, as in "
                 "softmax_cleaned; default: its own head");
  command.option("--system-b", options->second_system, "The same for the second run");
  command.option("--out", options->out, "Directory for compare.json and compare.html");
  command.footer(
      "\nExamples:\n  segfuse compare out/ecg out/ecg-wider\n"
      "  segfuse compare out/demo out/demo --system-b softmax_cleaned --out out/demo-compared");
  command.runs([options, &common] {
    options->overwrite = common.overwrite;
    const Comparison comparison = compare(*options);
    if (common.json)
      put("{}", comparison.json);
    else
      put_metrics(comparison.json);
  });
}

namespace {

/// What decode and align have in common; returns the name of the format.
std::shared_ptr<std::string> add_recordings(Command command, DecodeOptions& options) {
  command.option("model", options.model, kModel).required();
  command
      .option("inputs", options.inputs,
              "Audio files, directories of audio files, or - for standard input")
      .required();
  command.option("--out", options.out, "Directory for the label files").required();
  auto format = std::make_shared<std::string>("textgrid");
  command.option("--format", *format, "Format of the label files: " + written_label_formats())
      .shows_default();
  command.option("--channel", options.channel, kChannel);
  command.flag("--resume", options.resume,
               "Skip recordings whose output files exist, whatever program wrote them");
  return format;
}

void run_recordings(DecodeOptions& options, const std::string& format, const OrderOptions* orders,
                    Common& common) {
  options.context = Context::process_default();
  options.overwrite = common.overwrite;
  options.format = written_label_format(format);
  run_decode(options, orders, common);
}

}  // namespace

void add_decode(Command app, Common& common) {
  auto options = std::make_shared<DecodeOptions>();
  Command command = app.add("decode", "Cut recordings into labelled segments");
  const auto format = add_recordings(command, *options);
  command.flag(
      "--min-risk", options->minimum_risk,
      "Write the segmentation with the best expected boundary F1 instead of the likeliest");
  command.option("--k-best", options->k_best,
                 "Also write the N likeliest segmentations (at most 1000) to NAME.json");
  command.option("--samples", options->samples,
                 "Also write N segmentations drawn from the model (at most 100000) to NAME.json");
  command.option("--seed", options->seed, "Seed of the samples").shows_default();
  command.flag("--posteriors", options->posteriors,
               "Also write the probabilities of labels and boundaries to NAME.frames.csv");
  command.option("--boundaries", options->boundaries,
                 "Directory of label files (NAME.*) whose boundaries the result keeps");
  command.option("--known", options->known,
                 "Directory of label files (NAME.*) whose labels the result keeps, in the frames "
                 "that they cover");
  command.footer(
      "\nExamples:\n  segfuse decode out/ecg new/*.wav --out labels --format csv\n"
      "  segfuse decode out/ecg new/*.wav --out labels --min-risk --k-best 10");
  command.runs([options, format, &common] { run_recordings(*options, *format, nullptr, common); });
}

void add_align(Command app, Common& common) {
  auto options = std::make_shared<DecodeOptions>();
  auto orders = std::make_shared<OrderOptions>();
  Command command = app.add("align", "Find where the labels of recordings are, given their order");
  const auto format = add_recordings(command, *options);
  command.option("--orders", orders->folder,
                 "Directory of the orders, NAME.txt or NAME.lab; default: beside the recordings");
  command.option(
      "--optional", orders->optional,
      "A label that may occur at the beginning, at the end, and between any two words of "
      "an order; a word is a label, or a group in braces");
  command.footer(
      "\nAn order is a list of labels separated by white space. 'a?' may be missing; '{a b|c}' is "
      "either a b or c.\n\nExample:\n  segfuse align out/speech new --out labels --optional "
      "sil");
  command.runs([options, orders, format, &common] {
    run_recordings(*options, *format, orders.get(), common);
  });
}

}  // namespace segfuse::cli
