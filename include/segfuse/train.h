#pragma once
// Training, evaluation and decoding of segmenters: from files to files.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "segfuse/context.h"
#include "segfuse/data.h"
#include "segfuse/metrics.h"

namespace segfuse {

struct Encoder;  // segfuse/model.h, where it is EncoderSource

struct TrainOptions {
  std::filesystem::path config;        ///< TOML; see examples/
  std::string config_text;             ///< instead of the file's content, where not empty
  std::vector<std::string> overrides;  ///< "section.key=value", winning over the file
  std::string data;  ///< manifest or directory; empty: the configuration's data.path
  std::vector<Recording> recordings{};  ///< instead of `data`, where there are any: see hold()
  std::filesystem::path out;            ///< directory, made if missing
  /// Replaces the encoder of [model] if it is set; called once the data is read.
  std::function<Encoder(std::int64_t, const std::vector<std::string>&)> encoder{};
  /// A model as Model::load() takes it, whose weights the training begins with; wins over
  /// training.init. Its features and encoder must be those of the training (UsageError);
  /// plan_training() ensures this. Its normalisation is kept, its labels may be others, and its
  /// file is only read.
  std::filesystem::path init{};
  bool resume = false;             ///< continue from the checkpoints in `out`, where there are any
  double checkpoint_minutes = 10;  ///< at most so long between two checkpoints; 0: one an epoch
  /// Of several ranks: seconds that one may do the same while others wait for it; 0: any number.
  double rank_timeout = 0;
  /// Of several ranks, how they exchange gradients: "peer" or "nccl" (each needs a GPU of its
  /// own), "mpi", "tcp". Empty: the first of "peer" and "nccl" that can be used, else the MPI that
  /// started them, else TCP.
  std::string comm{};
  /// For ranks that exchange over TCP: the least number of ranks, with the first among them, that
  /// continue after a rank is lost and repeat its step. A process that is started in its place
  /// joins them at the next step. The bits stay the same. 0: all ranks end.
  int min_ranks = 0;
  bool overwrite = false;       ///< replace a run, and files that are not ours, in `out`
  bool allow_commands = false;  ///< run the commands of the manifest
  /// Also train the same encoder with a linear chain and a per-frame softmax, and clean up what the
  /// softmax finds with the minimum duration and majority vote that are best on the development
  /// set.
  bool compare = false;
  bool reference = false;    ///< steps run in the interpreter, in double precision: slow
  std::string introduction;  ///< logged by the first rank, once the directory is its own
  std::string command_line;  ///< command line to show in the report; empty: none
  Context context = {};      ///< its options say device, back end, threads and progress
};

struct TrainedSystem {
  std::string head;  ///< semi_markov, linear_chain, softmax or softmax_cleaned
  Metrics metrics;
  std::int64_t parameters = 0;
  std::int64_t best_epoch = 0;
  double train_seconds = 0;
  double decode_seconds = 0;
};

struct TrainResult {
  std::vector<TrainedSystem> systems;  ///< that of the configuration; with `compare` others too;
                                       ///< none on ranks other than the first
  Split measured_on = Split::kTest;
  double seconds = 0;
  int rank = 0;      ///< of the processes that trained together; only the first writes and measures
  std::string json;  ///< the text of metrics.json: Metrics::to_json() of the first, and the above
};

/// Trains on the training recordings, keeps the epoch that is best on the development recordings
/// and measures it on the test recordings (on the development ones when there are none, and says
/// so). Writes to `out`: model.safetensors, metrics.json, recordings.json (for compare()),
/// report.html, sequence.svg (a picture of one decoded test recording) and checkpoint.safetensors;
/// with `compare` also softmax/ and linear_chain/. An existing run or file is never replaced
/// (UsageError) unless it is resumed or `overwrite` is set; a model that is overwritten is kept as
/// model.previous.safetensors. While it runs, no other training can write to `out`. The model's
/// bits depend on the configuration and the data alone, not on threads or interruptions. Throws
/// Interrupted (exit code 130) after saving when SIGINT (Ctrl-C), SIGTERM or SIGHUP came.
///
/// Processes that a launcher (mpirun, srun, torchrun, train_on_ranks()) started together share the
/// training: each computes some shards of every step (training.shards), the first one writes the
/// files, and the bits are those of one process with as many shards. All need the same
/// configuration and data (UsageError). With the device "cuda" each has the GPU of its number on
/// its machine. If one fails, all end: with EndedByRank on those that need not report the cause.
/// CommError when they cannot meet.
TrainResult train(const TrainOptions& options);

struct RanksRequest {
  std::vector<std::string> command;  ///< a program that calls train(), with its arguments
  int ranks = 0;  ///< 2 or more, unless there are devices; 1 where it may be started again
  std::vector<std::string> devices;  ///< a rank on each: the variable SEGFUSE_DEVICE
  int min_ranks = 0;                 ///< TrainOptions::min_ranks of the command
  /// How many times all ranks are restarted from the newest checkpoint of the job after one was
  /// lost or they could not reach each other (CommError); the result has the same bits. With
  /// `min_ranks`, while the others go on, the lost one alone is started again and joins them; that
  /// counts too. Errors that would recur do not cause a restart: arguments, data, a step that is
  /// not finite, a failing device, a request to end.
  int restarts = 0;
  std::filesystem::path out = {};  ///< TrainOptions::out of the command, where restarts > 0
  bool resume = false;             ///< TrainOptions::resume of the command
  bool compare = false;            ///< TrainOptions::compare of the command: nobody joins then
};
/// Runs a command as processes of this machine that share a training; returns its exit code, that
/// of the first that failed. The first one has the streams of this process, lines of the others
/// begin with "rank N |", and signals are passed on. Says by which signal a rank was ended, and
/// from where ranks that are started again go on. UsageError for less than 2 ranks (1 with
/// `restarts`) or where this process is a rank itself.
int train_on_ranks(const RanksRequest& request);

/// The devices of "all", "cuda:0-3", "cuda:0,cuda:2" and "cpu". UsageError for what this machine
/// lacks, DeviceError where it has no GPU.
std::vector<std::string> devices_of(const std::string& text);

struct NumericsReport;  // segfuse/doctor/numerics.h

struct TrainingNumericsOptions {
  std::filesystem::path config;        ///< as in TrainOptions
  std::vector<std::string> overrides;  ///< as in TrainOptions
  std::string data;                    ///< as in TrainOptions
  bool allow_commands = false;         ///< as in TrainOptions
  std::filesystem::path model;         ///< parameters of a trained model; empty: the first ones
  std::int64_t sequences = 2;          ///< of the first batch; 0: all
  std::int64_t frames = 64;            ///< of each, from its beginning; 0: all
  int runs = 4;                        ///< of each group
  Context context = {};                ///< as in TrainOptions
};

/// segfuse doctor numerics for the step that a training begins with: forward and backward, as
/// examine_numerics() does it. The larger the batch, the longer it takes: everything is also
/// computed by the interpreter, several times.
NumericsReport examine_training_numerics(const TrainingNumericsOptions& options);

struct EvaluateOptions {
  std::filesystem::path model;  ///< as Model::load() takes it
  std::string data;             ///< manifest or directory; empty: the one it was trained on
  bool allow_commands = false;  ///< run the commands of the manifest; not of one a model names
  std::optional<Split> split = Split::kTest;  ///< nothing: all recordings
  std::string channel;            ///< of files with several: a number or "mean"; empty: the model's
  std::filesystem::path out;      ///< directory for metrics.json and report.html; empty: none
  bool overwrite = false;         ///< replace what is there and not ours, or belongs to a training
  std::string command_line = {};  ///< as in TrainOptions
  Context context = {};           ///< as in TrainOptions
  std::vector<std::string> overrides = {};  ///< "evaluation.KEY=VALUE"; UsageError for others
};

struct EvaluateResult {
  Metrics metrics;
  double decode_seconds = 0;
  std::string json;  ///< the text of metrics.json
};

/// Measures a model on labelled recordings.
EvaluateResult evaluate(const EvaluateOptions& options);

struct CompareOptions {
  std::filesystem::path first;   ///< the directory of a training, or --out of an evaluation
  std::filesystem::path second;  ///< as `first`
  std::string first_system;      ///< of a training with `compare`; empty: the one it is about
  std::string second_system;     ///< as `first_system`
  std::filesystem::path out;     ///< directory for compare.json and compare.html; empty: none
  bool overwrite = false;        ///< replace what is there and not ours
};

struct Comparison {
  std::string first;  ///< how the two are called in `json`
  std::string second;
  std::int64_t recordings = 0;
  /// "systems": the measures of both by name, with intervals, and of the second "difference", which
  /// is second minus first with an interval over the same draws of recordings; "bootstrap": how
  /// they were made; "settings": those that differ, each with both values.
  std::string json;
};

/// Compares two runs by their counts per recording (recordings.json). UsageError when the
/// recordings, their gold labels or the tolerances differ, because then the figures cannot be
/// compared.
Comparison compare(const CompareOptions& options);

struct StudyOptions {
  TrainOptions training;       ///< what all runs have; `out` is the directory of the study
  std::vector<double> shares;  ///< of the training recordings, above 0, rising; empty: all of them
  std::int64_t folds = 0;      ///< 2 or more: every recording is in the test set of one of them
  std::int64_t seeds = 1;      ///< so many, from training.seed on
  std::vector<std::string> search;  ///< "section.key=a,b,c": each value, with each of the others
};

/// Several trainings of one configuration, and what they say together. Every run is a train() with
/// overrides of its own: `data.train_share` (with as many steps as the whole set has),
/// `data.folds` and `data.test_fold`, `training.seed`, or the settings of the search, which goes
/// with seeds alone. Runs that differ in their fold or seed only are one point, whose counts of a
/// recording are added up. Writes a directory for each run, study.json, study.html, and for each
/// point of several runs a recordings.json (for compare()). With `training.resume` a started run
/// goes on and a finished one is only measured again; without it, and without
/// `training.overwrite`, no run may be there (UsageError), nor one of another study in any case.
/// Returns the text of study.json.
std::string study(const StudyOptions& options);

struct DecodedFile {
  std::filesystem::path audio;
  std::filesystem::path labels;
  double seconds = 0;
  std::int64_t segments = 0;
  double log_probability = 0;  ///< of the segmentation under the model; NaN for a softmax head
  bool skipped = false;        ///< DecodeOptions::resume: its files were there
  std::string error;           ///< why there are no labels; empty: there are
  bool out_of_memory = false;  ///< that is why
};

struct DecodeOptions {
  std::filesystem::path model;                  ///< as above
  std::vector<std::filesystem::path> inputs;    ///< audio files, or directories of them
  std::filesystem::path out;                    ///< directory for one label file a recording
  std::string channel = {};                     ///< as above
  LabelFormat format = LabelFormat::kTextGrid;  ///< any but kAuto
  bool minimum_risk = false;  ///< the best expected boundary F1 instead of the most probable
  std::int64_t k_best = 0;    ///< number of most probable segmentations in NAME.json
  std::int64_t samples = 0;   ///< number of drawn segmentations in NAME.json
  std::uint64_t seed = 0;     ///< of the samples
  bool posteriors = false;    ///< probabilities of labels and boundaries by frame, NAME.frames.csv
  /// A directory of label files, NAME of a recording and any ending: each of their boundaries is
  /// one of the result. Recordings without such a file are decoded as usual; those with one are
  /// held in memory. UsageError when it is not a directory, or for a model that is not semi-Markov.
  std::filesystem::path boundaries = {};
  /// The same for any model, with labels that the frames they cover then have; DataError for a
  /// label that the model lacks.
  std::filesystem::path known = {};
  bool overwrite = false;  ///< replace files that are not ours
  bool resume = false;     ///< skip recordings all of whose files are there, by any writer
  Context context = {};    ///< as in TrainOptions
  /// Called for each recording once its files are written or it is given up, in their order.
  std::function<void(const DecodedFile&)> each = {};
};

/// Segments recordings. TextGrid and CSV carry for every segment its posterior, the mean posterior
/// of its label over its frames and the confidence of its start. A recording that cannot be read or
/// decoded does not stop the others: its DecodedFile gives the error. An error that would affect
/// all later recordings (a full disk) is thrown. Existing files that segfuse did not write, and
/// files that two recordings would share, are a UsageError before any file is written.
std::vector<DecodedFile> decode(const DecodeOptions& options);

struct OrderOptions {
  std::filesystem::path folder;  ///< where the orders are; empty: each beside its recording
  std::string optional;  ///< a label that may stand before, between and after words; empty: none
};

/// Finds where the labels of recordings are, given their order: NAME.txt or NAME.lab has the labels
/// of NAME.wav, separated by white space. `a?` may be left out; `{a b|c}` is one of its variants,
/// and one word; a word that is a label of the model is that label. As decode() in all else; the
/// probabilities are those given the order, and there is no confidence of starts. A recording
/// without an order, or whose order does not fit, does not stop the others. UsageError for options
/// of decode() that ask for other segmentations or for posteriors by frame, and for an optional
/// label that the model lacks.
std::vector<DecodedFile> align(const DecodeOptions& options, const OrderOptions& orders = {});

struct StreamOptions {
  std::filesystem::path model;  ///< as above
  std::string channel = {};     ///< as above
  /// What comes: "wav", "s16le" or "f32le" (samples of all channels alternate), "text" (a line of
  /// numbers, between commas or white space, is a row of values). Empty: text for a model of
  /// values; else WAV where it begins with "RIFF", and s16le where it does not.
  std::string encoding = {};
  int sample_rate = 0;                ///< of audio without a header; 0: the model's
  int channels = 0;                   ///< of what has no header; 0: 1
  std::optional<double> lookahead{};  ///< as LiveOptions has it
  int input = 0;                      ///< file descriptor
  Context context = {};               ///< as in TrainOptions
  /// Called for each segment when it is final, in order.
  std::function<void(const LabelSegment&)> each = {};
};

struct StreamSummary {
  std::int64_t segments = 0;
  double seconds = 0;  ///< of what came
};

/// Segments audio or values as they arrive, until the end of the input. Memory as LiveDecoder has
/// it. An input that ends in the middle of a sample, or before the end that its header announces,
/// is a DataError once the segments of what came were given. SIGINT (Ctrl-C), SIGTERM and SIGHUP
/// end the input: the rest is given, then Interrupted is thrown (exit code 130).
StreamSummary stream(const StreamOptions& options);

/// Writes files for a user, each with its content, into existing directories. If a file exists that
/// segfuse did not write, or that was changed since, it is replaced with `overwrite`; otherwise
/// that is a UsageError and nothing is written.
void write_outputs(const std::vector<std::pair<std::filesystem::path, std::string>>& files,
                   bool overwrite = false);

// --------------------------------------------------------------------------------- configuration

struct FolderOptions {
  std::filesystem::path folder;         ///< as load_manifest() reads it
  std::vector<Recording> recordings{};  ///< instead, where there are any: see hold()
  std::string preset;                   ///< one of preset_names(); empty: the one that fits best
  std::string tier;                    ///< of labels with several; empty: the one that can be meant
  std::string group{};                 ///< ManifestOptions::group, of recordings in files
  std::optional<double> frame_rate{};  ///< rows a second of recordings that are not audio; nothing:
                                       ///< what their labels say
  bool allow_commands = false;         ///< run the commands of a manifest
  bool has_arguments = false;          ///< messages call settings "frame_rate=", not "--frame-rate"
  Context context = {};                ///< its threads read the files
};

struct FolderPlan {
  std::string configuration;  ///< TOML with comments: what train() is to read
  std::string card;  ///< what is in the folder, what is left out, and what follows, as text
};

/// Examines the data of a folder and derives a configuration: sample rate, frames, mel range, K,
/// tier, fill label, sizes of the training. Recordings without labels and labels without a
/// recording are left out; where there is no audio, files of numbers are the recordings. The same
/// folder gives the same text. DataError where a file is wrong or too little is labelled,
/// UsageError when the tier or the number of rows per second cannot be derived.
FolderPlan plan_folder(const FolderOptions& options);

/// Plans a training on the folder that stands in options.config, or on options.recordings: puts the
/// configuration in place of the file's content, and the card into the introduction. What is to
/// be planned, the commands that are allowed and the context are those of the training.
void plan_training(TrainOptions& options, FolderOptions how);

/// birdsong, speech, ecg, mouse, bat, generic.
std::vector<std::string> preset_names();

/// What outputs are named after: the last part of the folder's path, or the file's name without
/// its extension.
std::string output_name(const std::filesystem::path& source);
/// A directory that is not there yet, named after the data or the configuration: "song-model",
/// "song-model-2". UsageError among ranks that others started: each would find its own.
std::filesystem::path free_output_folder(const std::filesystem::path& source,
                                         const std::string& kind = "model");

struct ConfigurationKey {
  std::string name;      ///< "section.key"
  std::string type;      ///< with the values that are allowed
  std::string fallback;  ///< the default as TOML; empty: none
  std::string doc;
};
/// Every key that a configuration may have, as the reader reads it.
std::vector<ConfigurationKey> configuration_keys();
/// They as a page of Markdown: docs/configuration.md.
std::string configuration_page();

/// What train() would run with: the configuration with overrides and defaults, as TOML.
std::string effective_configuration(const TrainOptions& options);

}  // namespace segfuse
