#include "learn/train/commands/config_keys.h"

#include <fmt/format.h>

#include <limits>

#include "comm/tree.h"
#include "segfuse/semicrf_models.h"
#include "segfuse/train.h"

namespace segfuse::learn {
namespace {

constexpr double kHuge = 1e9;
constexpr auto kMax = std::numeric_limits<std::int64_t>::max();

/// Rows of one section. `get` gives the place of the value in a configuration.
class Section {
 public:
  Section(std::vector<ConfigKey>& keys, std::string name) : keys_(keys), name_(std::move(name)) {}

  template <class Get>
  void text(const std::string& key, Get get, const std::string& doc) {
    add(key, "string", doc,
        [key, get](const TomlReader& t, TrainConfig& c) { get(c) = t.string(key, get(c)); });
  }

  template <class Get>
  void boolean(const std::string& key, Get get, const std::string& doc) {
    add(key, "boolean", doc,
        [key, get](const TomlReader& t, TrainConfig& c) { get(c) = t.boolean(key, get(c)); });
  }

  template <class Get>
  void whole(const std::string& key, Get get, std::int64_t least, std::int64_t most,
             const std::string& doc) {
    const std::string type = most == kMax ? fmt::format("integer, at least {}", least)
                                          : fmt::format("integer, {} to {}", least, most);
    add(key, type, doc, [key, get, least, most](const TomlReader& t, TrainConfig& c) {
      auto& value = get(c);
      value = static_cast<std::remove_reference_t<decltype(value)>>(
          t.integer(key, static_cast<std::int64_t>(value), least, most));
    });
  }

  template <class Get>
  void number(const std::string& key, Get get, double least, double most, const std::string& doc) {
    const std::string type = most == kHuge ? fmt::format("number, at least {}", least)
                                           : fmt::format("number, {} to {}", least, most);
    add(key, type, doc, [key, get, least, most](const TomlReader& t, TrainConfig& c) {
      get(c) = t.number(key, get(c), least, most);
    });
  }

  /// `values` of `names`, in their order; the configuration has one of them.
  template <class Get, class Value>
  void choice(const std::string& key, Get get,
              const std::vector<std::pair<std::string, Value>>& values, const std::string& doc) {
    std::vector<std::string> names;
    std::string type;
    for (const auto& [name, value] : values) {
      names.push_back(name);
      type += fmt::format("{}\"{}\"", type.empty() ? "" : ", ", name);
    }
    add(key, type, doc, [key, get, values, names](const TomlReader& t, TrainConfig& c) {
      std::string fallback;
      for (const auto& [name, value] : values)
        if (value == get(c)) fallback = name;
      const std::string chosen = t.choice(key, fallback, names);
      for (const auto& [name, value] : values)
        if (name == chosen) get(c) = value;
    });
  }

  void add(const std::string& key, const std::string& type, const std::string& doc,
           std::function<void(const TomlReader&, TrainConfig&)> read) {
    keys_.push_back({name_, key, type, doc, std::move(read)});
  }

 private:
  std::vector<ConfigKey>& keys_;
  std::string name_;
};

#define SEGFUSE_AT(member) [](TrainConfig& c) -> auto& { return c.member; }

void add_data_keys(std::vector<ConfigKey>& keys) {
  Section s(keys, "data");
  s.text("path", SEGFUSE_AT(data.path),
         "Manifest or directory of recordings and labels; `--data` overrides it.");
  s.text("tier", SEGFUSE_AT(data.tier),
         "The annotation to read if recordings have several: the name of a tier, or the ending of "
         "a label file, such as \"wrd\" if there are .phn and .wrd files. Empty: the first "
         "interval tier, or the .phn file if there are .phn and .wrd files.");
  s.add("fill_label", "string",
        "Label for stretches without a label: gaps, a late start, an early end. If it is not set, "
        "such a recording is an error.",
        [](const TomlReader& t, TrainConfig& c) {
          if (t.has("fill_label")) c.data.fill_label = t.string("fill_label");
        });
  s.choice("unlabelled", SEGFUSE_AT(data.unlabelled_unknown),
           std::vector<std::pair<std::string, bool>>{{"gap", false}, {"unknown", true}},
           "Meaning of stretches without a label. \"gap\": they are segments with the label "
           "`fill_label`. \"unknown\": they are not annotated, and are left out of training and "
           "evaluation.");
  s.text("fold", SEGFUSE_AT(data.fold),
         "Folding map: a file that replaces labels with others. It is applied to all labels before "
         "training.");
  s.text("metric_fold", SEGFUSE_AT(data.metric_fold),
         "Folding map that is applied for evaluation only.");
  s.boolean(
      "metric_merge", SEGFUSE_AT(data.metric_merge),
      "Whether evaluation joins neighbouring segments that `metric_fold` gives the same label.");
  s.choice("unpaired", SEGFUSE_AT(data.skip_unpaired),
           std::vector<std::pair<std::string, bool>>{{"refuse", false}, {"skip", true}},
           "Treatment of recordings without labels and labels without a recording: an error, or a "
           "warning that they are left out.");
  s.text("group", SEGFUSE_AT(data.group),
         "How to find groups of recordings that must stay in one set, such as those of one speaker "
         "or animal: \"folder\", a column of the manifest, or a regular expression such as "
         "`^(bird[0-9]+)_`, whose parentheses select the part of the name that identifies the "
         "group. Splits and folds that segfuse makes never separate a group. Empty: no groups.");
  s.whole("folds", SEGFUSE_AT(data.folds), 0, 100'000,
          "Number of folds for cross-validation, which replace the given split. Recording i of the "
          "sorted recordings, counted from 0, is in fold (i mod folds) + 1; with `group`, whole "
          "groups are distributed so that folds have similar sizes. Fold `test_fold` is the test "
          "set; every tenth of the other recordings is for development. 0: no folds.");
  s.whole("test_fold", SEGFUSE_AT(data.test_fold), 1, 100'000,
          "Number of the fold that is the test set, from 1 on.");
  s.number("train_share", SEGFUSE_AT(data.train_share), 0, 1,
           "Share of the training recordings to train on, above 0. `training.seed` selects them; a "
           "larger share contains the recordings of a smaller one.");
}

/// The distance of frames: of audio hop_ms, of values frame_rate. The other one is refused.
void add_frame_keys(Section& s) {
  s.add("hop_ms", fmt::format("number, at least {}", 1e-3),
        "Distance between the starts of successive frames, in milliseconds; segments begin and end "
        "between frames. Not for kind = \"values\".",
        [](const TomlReader& t, TrainConfig& c) {
          FeatureConfig& f = c.features;
          if (f.kind != FeatureKind::kValues)
            f.hop_ms = t.number("hop_ms", f.hop_ms, 1e-3, kHuge);
          else if (t.has("hop_ms"))
            t.refuse("hop_ms", "is 1000 / frame_rate for kind = \"values\"");
        });
  s.add("frame_rate", "number above 0",
        "Rows per second; for kind = \"values\" only, where it is required.",
        [](const TomlReader& t, TrainConfig& c) {
          FeatureConfig& f = c.features;
          if (f.kind != FeatureKind::kValues) {
            if (t.has("frame_rate")) t.refuse("frame_rate", "is for kind = \"values\" only");
            return;
          }
          f.frame_rate = t.number("frame_rate", 0, 0, kHuge);
          if (!(f.frame_rate > 0))
            t.refuse("frame_rate",
                     "is required for kind = \"values\": the number of rows per second");
          f.hop_ms = 1000 / f.frame_rate;
        });
}

/// What the keys behind it have where they are not given depends on it.
void add_kind_key(Section& s) {
  std::vector<std::string> names;
  std::string type;
  for (const FeatureKind kind :
       {FeatureKind::kLogMel, FeatureKind::kMfcc, FeatureKind::kRaw, FeatureKind::kValues,
        FeatureKind::kKaldiFbank, FeatureKind::kWhisper}) {
    names.emplace_back(name_of(kind));
    type += fmt::format("{}\"{}\"", type.empty() ? "" : ", ", names.back());
  }
  s.add("kind", type,
        "Kind of features: log-mel energies, mel cepstral coefficients, the samples themselves, "
        "the values of recordings that are not audio, or the features of Kaldi and of Whisper.",
        [names](const TomlReader& t, TrainConfig& c) {
          const std::string chosen = t.choice("kind", std::string(name_of(c.features.kind)), names);
          c.features = default_features(feature_kind_from_name(chosen));
        });
}

void add_feature_keys(std::vector<ConfigKey>& keys) {
  Section s(keys, "features");
  add_kind_key(s);
  s.whole("sample_rate", SEGFUSE_AT(features.sample_rate), 1, 10'000'000,
          "Sample rate of the features, in Hz; recordings of another rate are resampled.");
  s.number("window_ms", SEGFUSE_AT(features.window_ms), 1e-3, kHuge,
           "Length of the analysis window of a frame, in milliseconds.");
  add_frame_keys(s);
  s.whole("n_mels", SEGFUSE_AT(features.n_mels), 1, 1000,
          "Number of mel bands; if not set, 80 for `kaldi_fbank` and `whisper`.");
  s.whole("n_mfcc", SEGFUSE_AT(features.n_mfcc), 1, 1000, "Number of coefficients of `mfcc`.");
  s.number("fmin", SEGFUSE_AT(features.fmin), 0, kHuge, "Lower end of the mel scale, in Hz.");
  s.number("fmax", SEGFUSE_AT(features.fmax), 0, kHuge,
           "Upper end of the mel scale, in Hz; 0: half the sample rate.");
  s.number("preemphasis", SEGFUSE_AT(features.preemphasis), 0, 1,
           "Pre-emphasis: share of the previous sample that is subtracted from each sample.");
  s.number("lifter", SEGFUSE_AT(features.lifter), 0, kHuge,
           "Liftering of `mfcc`, which scales up the higher coefficients; 0: none.");
  s.whole("raw_bins", SEGFUSE_AT(features.raw_bins), 0, 1'000'000,
          "For `raw`: number of equal parts into which the window is divided; each feature is the "
          "mean of one part. 0: each feature is a sample.");
  s.add("snip_edges", "boolean",
        "Whether windows of `kaldi_fbank` begin with their frames (true, the default) or are "
        "centred on them (false).",
        [](const TomlReader& t, TrainConfig& c) {
          FeatureConfig& f = c.features;
          if (f.kind == FeatureKind::kKaldiFbank)
            f.snip_edges = t.boolean("snip_edges", f.snip_edges);
          else if (t.has("snip_edges"))
            t.refuse("snip_edges", "is for kind = \"kaldi_fbank\" only");
        });
  s.whole(
      "deltas", SEGFUSE_AT(features.deltas), 0, 2,
      "Orders of time derivatives to append to the features: none, first, or first and second.");
  s.boolean("normalise_recording", SEGFUSE_AT(features.normalise_recording),
            "Whether to normalise every column to mean 0 and standard deviation 1 within each "
            "recording.");
  s.add("channel", "integer from 0 on, \"mean\" or \"stack\"",
        "Channel to read from recordings with several channels: its number, their mean, or the "
        "features of all channels side by side. If it is not set, such recordings are an error.",
        [](const TomlReader& t, TrainConfig& c) {
          if (t.holds_string("channel"))
            c.features.channel =
                audio_channel(t.string("channel"), t.where("channel") + ": 'features.channel'");
          else if (t.has("channel"))
            c.features.channel = static_cast<int>(t.integer("channel", 0, 0, 1023));
        });
}

void add_model_keys(std::vector<ConfigKey>& keys) {
  Section s(keys, "model");
  s.whole("width", SEGFUSE_AT(model.width), 1, 100'000,
          "Number of channels of each layer of the encoder.");
  s.whole("stem_kernel", SEGFUSE_AT(model.stem_kernel), 1, 1001,
          "Width of the first convolution, in frames; odd.");
  s.whole("kernel", SEGFUSE_AT(model.kernel), 1, 1001,
          "Width of the convolution of each block, in frames; odd.");
  s.add("dilations", "list of positive integers",
        "Dilations of the convolution blocks; each number makes one block.",
        [](const TomlReader& t, TrainConfig& c) {
          c.model.dilations = t.integers("dilations", c.model.dilations);
        });
  s.choice("recurrence", SEGFUSE_AT(model.recurrence),
           std::vector<std::pair<std::string, nn::Recurrence>>{{"lstm", nn::Recurrence::kLstm},
                                                               {"gru", nn::Recurrence::kGru},
                                                               {"ssm", nn::Recurrence::kSsm}},
           "Kind of the recurrent blocks: LSTM, GRU, or a diagonal linear state space. On a GPU "
           "the first two are slower, because they start kernels for each frame.");
  s.whole("recurrent_blocks", SEGFUSE_AT(model.recurrent_blocks), 0, 100,
          "Number of recurrent blocks after the convolutions; bidirectional, or forward only with "
          "`causal`.");
  s.whole("recurrent_states", SEGFUSE_AT(model.recurrent_states), 1, 100'000,
          "Number of states in each direction.");
  s.whole("attention_blocks", SEGFUSE_AT(model.attention_blocks), 0, 1000,
          "Number of self-attention blocks after the convolutions and recurrent blocks.");
  s.whole("attention_heads", SEGFUSE_AT(model.attention_heads), 1, 1000,
          "Number of heads of each attention block; it must divide `width`.");
  s.whole("subsample", SEGFUSE_AT(model.subsample), 1, 64,
          "Number of frames that the encoder combines into one position; 1: a position for each "
          "frame.");
  s.boolean("causal", SEGFUSE_AT(model.causal),
            "Whether the encoder's scores of a frame depend only on that frame and earlier frames; "
            "the frames of one position (`subsample`) count as one.");
  s.number("dropout", SEGFUSE_AT(model.dropout), 0, 0.99,
           "Dropout rate of the activations in training.");
  s.choice("head", SEGFUSE_AT(model.head),
           std::vector<std::pair<std::string, HeadKind>>{{"semi_markov", HeadKind::kSemiMarkov},
                                                         {"linear_chain", HeadKind::kLinearChain},
                                                         {"softmax", HeadKind::kSoftmax}},
           "Model that turns the encoder's scores into segments.");
  s.boolean("boundary_scores", SEGFUSE_AT(model.boundary_scores),
            "Whether the semi-Markov head also scores where segments start and end.");
  using Family = semicrf::DurationFamily;
  s.choice(
      "durations", SEGFUSE_AT(model.durations),
      std::vector<std::pair<std::string, Family>>{{"table", Family::kTable},
                                                  {"geometric", Family::kGeometric},
                                                  {"negative_binomial", Family::kNegativeBinomial},
                                                  {"poisson", Family::kPoisson},
                                                  {"log_normal", Family::kLogNormal},
                                                  {"buckets", Family::kBuckets}},
      "How the semi-Markov head scores the durations of each label: by a score for each of 1 to K "
      "frames (table), by a score for each range of durations (buckets), or by a distribution with "
      "one or two parameters (the others).");
  s.whole("duration_buckets", SEGFUSE_AT(model.duration_buckets), 1, 1000,
          "Maximum number of ranges for durations = \"buckets\"; ranges have equal widths on a "
          "logarithmic scale.");
  s.whole("max_duration", SEGFUSE_AT(max_duration), 0, 1'000'000,
          "K: the longest duration that the head scores, in frames; 0: that of the longest "
          "training segment.");
  s.choice("long_segments", SEGFUSE_AT(join_long),
           std::vector<std::pair<std::string, bool>>{{"cut", false}, {"joined", true}},
           "Whether the decoded pieces of segments longer than K stay separate or are joined.");
}

void add_plan_keys(Section& s) {
  s.whole("epochs", SEGFUSE_AT(training.epochs), 1, 1'000'000,
          "Number of passes over the training set.");
  s.whole("batch_size", SEGFUSE_AT(training.batch_size), 1, 1'000'000,
          "Number of sequences per step, over all ranks.");
  s.whole("batch_frames", SEGFUSE_AT(training.batch_frames), 0, kMax,
          "Maximum number of frames per step, including padding; 0: no limit.");
  s.add("shards", fmt::format("power of two, 1 to {}", comm::kMaxShards),
        "Number of parts of the batch of each step; a rank computes whole parts. It must divide "
        "`batch_size`. If it is not set: the smallest power of two that is at least the number of "
        "ranks.",
        [](const TomlReader& t, TrainConfig& c) {
          c.training.chooses_shards = !t.has("shards");
          c.training.shards = t.integer("shards", c.training.shards, 1, comm::kMaxShards);
        });
  s.number("learning_rate", SEGFUSE_AT(training.learning_rate), 0, kHuge,
           "Peak learning rate of AdamW.");
  s.number("warmup", SEGFUSE_AT(training.warmup), 0, 1,
           "Share of all steps during which the learning rate rises; after that it falls.");
  s.number(
      "clip", SEGFUSE_AT(training.clip), 0, kHuge,
      "Maximum global norm of the gradients; larger gradients are scaled down to it. 0: no limit.");
  s.number("crf_reg", SEGFUSE_AT(training.crf_reg), 0, kHuge,
           "L2 regularisation: half of this number times the sum of squares of the head's "
           "parameters is added to the loss.");
  s.whole("fixed_length", SEGFUSE_AT(training.fixed_length), 0, 1'000'000'000,
          "Length in frames of the pieces into which training recordings are cut. Recordings that "
          "are shorter than a piece are left out. 0: whole recordings.");
}

void add_training_keys(std::vector<ConfigKey>& keys) {
  Section s(keys, "training");
  add_plan_keys(s);
  s.whole(
      "patience", SEGFUSE_AT(training.patience), 0, kMax,
      "Number of epochs without a better development score after which training ends; 0: never.");
  s.whole("select_every", SEGFUSE_AT(training.select_every), 1, 1'000'000,
          "Number of epochs from one evaluation on the development set to the next.");
  std::vector<std::pair<std::string, Selection>> criteria;
  for (const Selection selection :
       {Selection::kLabelError, Selection::kBoundaryF1, Selection::kSegmentF1, Selection::kLoss})
    criteria.emplace_back(name_of(selection), selection);
  s.choice("select_by", SEGFUSE_AT(training.select_by), criteria,
           "Measure on the development set that selects the best epoch.");
  std::vector<std::pair<std::string, Precision>> precisions;
  for (const Precision precision : {Precision::kFloat32, Precision::kTF32, Precision::kBFloat16})
    precisions.emplace_back(name_of(precision), precision);
  s.choice(
      "precision", SEGFUSE_AT(training.precision), precisions,
      "Precision of the matrix products and convolutions in training steps: float32; TF32, on GPUs "
      "only (CPUs compute in float32); or bfloat16 with sums in float32, in the encoder.");
  s.text("init", SEGFUSE_AT(training.init),
         "Model whose weights training starts from: a file, the output directory of a training "
         "run, or a name of `segfuse models`; empty: random weights.");
  s.whole("seed", SEGFUSE_AT(training.seed), 0, kMax, "Seed of all random numbers.");
  s.number("weight_decay", SEGFUSE_AT(training.adamw.weight_decay), 0, kHuge,
           "Weight decay of AdamW.");
  s.number("beta1", SEGFUSE_AT(training.adamw.beta1), 0, 0.999999,
           "Decay rate of AdamW's running mean of gradients.");
  s.number("beta2", SEGFUSE_AT(training.adamw.beta2), 0, 0.999999,
           "Decay rate of AdamW's running mean of squared gradients.");
  s.number("average", SEGFUSE_AT(training.adamw.average), 0, 0.999999,
           "Decay rate of a running mean of the parameters. The trained model has this mean in "
           "place of the parameters themselves. 0: no mean.");
}

/// The ratio of noise is drawn between two numbers.
void add_noise_key(Section& s) {
  static constexpr double kMinRatio = -40, kMaxRatio = 120;
  s.add("noise_snr_db", fmt::format("list of two numbers, {} to {}", kMinRatio, kMaxRatio),
        "Range of the signal-to-noise ratio, in dB, of Gaussian noise that is added to the "
        "normalised features. If it is not set: no noise.",
        [](const TomlReader& t, TrainConfig& c) {
          if (!t.has("noise_snr_db")) return;
          std::vector<double>& range = c.augmentation.noise_snr_db;
          range = t.numbers("noise_snr_db");
          if (range.size() != 2 || !(range[0] <= range[1]) || !(range[0] >= kMinRatio) ||
              !(range[1] <= kMaxRatio))
            t.refuse("noise_snr_db", fmt::format("must be two numbers from {} to {}, the smaller "
                                                 "one first, as in [10, 30]",
                                                 kMinRatio, kMaxRatio));
        });
}

void add_augmentation_keys(std::vector<ConfigKey>& keys) {
  Section s(keys, "augmentation");
  s.whole("time_masks", SEGFUSE_AT(augmentation.time_masks), 0, 1000,
          "Number of stretches of time per training recording and epoch that are replaced by the "
          "mean; 0: none.");
  s.number(
      "time_mask_ms", SEGFUSE_AT(augmentation.time_mask_ms), 0, kHuge,
      "Maximum length of a time mask, in milliseconds; each length is drawn at random from 0 on.");
  s.whole("frequency_masks", SEGFUSE_AT(augmentation.frequency_masks), 0, 1000,
          "Number of ranges of bands per training recording and epoch that are replaced by the "
          "mean, for features with bands; 0: none.");
  s.whole("frequency_mask_bands", SEGFUSE_AT(augmentation.frequency_mask_bands), 0, 1000,
          "Maximum width of a frequency mask, in bands.");
  s.number("gain_db", SEGFUSE_AT(augmentation.gain_db), 0, 60,
           "Maximum change of the level of each training recording, in dB up or down; 0: none.");
  add_noise_key(s);
  s.whole("transpose_bands", SEGFUSE_AT(augmentation.transpose_bands), 0, 1000,
          "Maximum shift of each training recording, in bands up or down, for features with bands; "
          "0: none.");
}

void add_grammar_keys(std::vector<ConfigKey>& keys) {
  Section s(keys, "grammar");
  s.add("next", "table of lists of labels",
        "Labels that may follow a label, as in `next.P = [\"-\", \"QRS\"]`; any label may follow a "
        "label that is not listed.",
        [](const TomlReader& t, TrainConfig& c) {
          const TomlReader table = t.section("next");
          for (const std::string& label : table.keys())
            c.grammar.next[label] = table.strings(label);
        });
  const auto list = [&s](const char* key, auto member, const char* doc) {
    s.add(key, "list of labels", doc, [key, member](const TomlReader& t, TrainConfig& c) {
      if (t.has(key)) c.grammar.*member = t.strings(key);
    });
  };
  list("first", &Grammar::first, "Labels that a recording may begin with. If it is not set: all.");
  list("last", &Grammar::last, "Labels that a recording may end with. If it is not set: all.");
  const auto durations = [&s](const char* key, auto member, const char* doc) {
    s.add(key, "table of numbers above 0", doc, [key, member](const TomlReader& t, TrainConfig& c) {
      const TomlReader table = t.section(key);
      for (const std::string& label : table.keys())
        (c.grammar.*member)[label] = table.number(label);
    });
  };
  durations("shortest", &Grammar::shortest,
            "Minimum duration of a segment of a label, in seconds, as in `shortest.P = 0.04`.");
  durations("longest", &Grammar::longest, "Maximum duration of a segment of a label, in seconds.");
}

/// The last two take no part in a training, and no recipe names them.
void add_evaluation_keys(std::vector<ConfigKey>& keys) {
  Section s(keys, "evaluation");
  s.add("tolerances", "list of numbers, at least one",
        "Tolerances for boundaries and segments, in seconds; the report uses the first.",
        [](const TomlReader& t, TrainConfig& c) {
          c.tolerances = t.numbers("tolerances", c.tolerances);
        });
  s.add("edge_tolerance", "number, 0 to 1",
        "Tolerance for onsets and offsets of a label, in seconds, for their sensitivity, PPV and "
        "errors. If it is not set: 0.15.",
        [](const TomlReader& t, TrainConfig& c) {
          if (t.has("edge_tolerance"))
            c.edge_tolerance = t.number("edge_tolerance", c.edge_tolerance, 0, 1);
        });
  s.add("background", "list of labels",
        "Labels that are not segments of interest, such as gaps and silence, after "
        "`data.metric_fold`. Chunks, edges and the segment error rate leave them out. If it is not "
        "set: `data.fill_label`.",
        [](const TomlReader& t, TrainConfig& c) {
          if (t.has("background")) c.background = t.strings("background");
        });
}

std::vector<ConfigKey> all_keys() {
  std::vector<ConfigKey> keys;
  Section(keys, "").text("title", SEGFUSE_AT(title), "Heading of the report.");
  add_data_keys(keys);
  add_feature_keys(keys);
  add_model_keys(keys);
  add_training_keys(keys);
  add_augmentation_keys(keys);
  add_grammar_keys(keys);
  add_evaluation_keys(keys);
  return keys;
}

#undef SEGFUSE_AT

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const auto& keys = *new std::vector<ConfigKey>(all_keys());
  return keys;
}

}  // namespace segfuse::learn
